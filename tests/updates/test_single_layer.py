"""Networks that end in one linear layer: whole batches by equations, one record at sight, and what is not claimed."""

import copy

import pytest
import torch
from test_captured import run
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, one_hot

from one_update import foreign_update, found_all, read, update
from remanence import InputError
from remanence.core.exceptions import MisfitError
from remanence.updates.declared import Declared, LocalTraining
from remanence.updates.dense.belonging import realised_noise
from remanence.updates.dense.exposure import gradient_exposure
from remanence.updates.dense.layers import dense_head, head_inputs
from remanence.updates.guard import GradientGuard, reason_to_withhold
from remanence.updates.opening import belongs, opened, recognise

NUMBERS = 64


def layer(classes, dtype=torch.float32, bias=True):
    torch.manual_seed(0)
    return nn.Linear(NUMBERS, classes, bias=bias, dtype=dtype)


def batch(count, classes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, NUMBERS, generator=generator, dtype=torch.float64).to(dtype),
        torch.randint(classes, (count,), generator=generator),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("classes", "count"), [(10, 1), (10, 2), (10, 5), (100, 1), (100, 2), (100, 5), (100, 32)]
)
def test_whole_batches_are_proven(classes, count, dtype):
    model, (inputs, labels) = layer(classes, dtype), batch(count, classes, dtype)
    reading = read(model, update(model, inputs, labels))
    assert (reading.proof.batch_size, reading.proof.explains_all) == (count, True)
    assert found_all(reading, inputs, labels)


@pytest.mark.parametrize("loss", ["ten classes", "one output"])
@pytest.mark.parametrize("factor", [0.0131, -0.0131])
def test_clipping_a_turned_sign_and_a_weight_decay_hide_nothing(factor, loss):
    model, (inputs, labels), given = layer(10), batch(4, 10), {}
    if loss == "one output":
        torch.manual_seed(0)
        model, labels = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, 1)), labels % 2
        given = {"loss": lambda said, y: binary_cross_entropy_with_logits(said.flatten(), y.to(said))}
    reading = read(model, update(model, inputs, labels, factor, **given))
    assert found_all(reading, inputs, labels)
    assert reading.sign == (1 if factor > 0 else -1)
    own = dict(model.named_parameters())
    plain = update(model, inputs, labels, **given)
    reading = read(model, {name: value + factor / 10 * own[name].detach() for name, value in plain.items()})
    assert reading.belonging.decay == pytest.approx(factor / 10, rel=1e-3)
    assert found_all(reading, inputs, labels)


def test_half_precision_is_proven_with_many_classes():
    model, (inputs, labels) = layer(100), batch(3, 100)
    reading = read(model, {name: value.half() for name, value in update(model, inputs, labels).items()})
    assert reading.proof.count == 3
    assert found_all(reading, inputs, labels, off=1e-2)


def test_without_a_bias_the_scale_of_inputs_is_solved_for():
    model, (inputs, labels) = layer(10, bias=False), batch(2, 10)
    assert found_all(read(model, update(model, inputs, labels)), inputs, labels)


@pytest.mark.parametrize("frozen", [False, True])
def test_features_behind_convolutions_come_back(frozen):
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    trunk.requires_grad_(not frozen)
    model = nn.Sequential(trunk, nn.Linear(64, 10))
    pictures, labels = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 2, 7])
    head = dense_head(model, pictures)
    assert not head.is_whole_network
    reading = read(model, update(model, pictures, labels), pictures)
    assert found_all(reading, head_inputs(model, head, pictures), labels)


@pytest.mark.parametrize("classes", [3, 10, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_foreign_updates_and_averages_prove_nothing(dtype, classes):
    model, (inputs, labels) = layer(classes, dtype), batch(4, classes, dtype)
    sent = {
        kind: foreign_update(kind, model, inputs, labels) for kind in ("noise", "shuffled", "other", "stale")
    }
    sent["average"] = update(model, *batch(512, classes, dtype))
    for kind, gradient in sent.items():
        reading = read(model, gradient)
        assert reading.proof.count == 0
        assert reading.belonging.is_one_step == (kind != "noise")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_that_are_off_by_a_percent_show_in_half_precision(dtype):
    model, (inputs, labels) = layer(100), batch(4, 100)
    own = update(model, inputs, labels)
    for sent, proven in ((foreign_update("stale", model, inputs, labels), 0), (own, 4)):
        assert read(model, {name: value.to(dtype) for name, value in sent.items()}).proof.count == proven


@pytest.mark.parametrize("scale", [0.0, 1e-7])
def test_means_of_classes_at_weights_that_are_zero_are_no_records(scale):
    model = layer(10)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(scale)
    inputs, _ = batch(6, 10)
    for labels in ([0] * 6, [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5]):
        assert read(model, update(model, inputs, torch.tensor(labels))).proof.count == 0


@pytest.mark.parametrize("count", [9, 10, 20])
def test_as_many_records_as_the_layer_has_room_for_are_not_searched_for(count):
    model, (inputs, labels) = layer(10), batch(count, 10)
    assert read(model, update(model, inputs, labels)).proof.count == 0


def test_two_classes_prove_one_record_by_its_size_alone():
    for dtype, factor, proven in (
        (torch.float64, 1.0, 1),
        (torch.float64, 0.3, 0),
        (torch.float64, -1.0, 0),
        (torch.float32, 1.0, 0),
    ):
        model, (inputs, labels) = layer(2, dtype), batch(1, 2, dtype)
        assert read(model, update(model, inputs, labels, factor)).proof.count == proven, (dtype, factor)
    model, (inputs, labels) = layer(2, torch.float64), batch(3, 2, torch.float64)
    assert read(model, update(model, inputs, labels)).proof.count == 0


def trained(model, inputs, labels, steps, rate):
    after = copy.deepcopy(model)
    optimiser = torch.optim.SGD(after.parameters(), rate)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(after(inputs), labels).backward()
        optimiser.step()
    return after.state_dict()


def test_one_record_is_read_after_declared_steps_and_several_are_not_claimed():
    model, declared = layer(10), Declared(LocalTraining(5, 0.1))

    def reason(after, declared):
        return reason_to_withhold(
            copy.deepcopy(model), model.state_dict(), after, declared, allow_untested=True
        )

    for count in (1, 3):
        after = trained(model, *batch(count, 10), 5, 0.1)
        assert reason(after, declared) == ("1 samples can be read off it" if count == 1 else None)
    one_step = trained(model, *batch(3, 10), 1, 0.1)
    assert reason(one_step, Declared(LocalTraining(1, 0.1))) == "3 samples can be read off it"


def test_a_guard_holds_such_a_batch_back_though_no_neuron_can_be_exclusive():
    model, (inputs, labels) = layer(10), batch(4, 10)
    with pytest.raises(InputError, match="a single layer"):
        gradient_exposure(model, inputs, labels)
    guard = GradientGuard(model)
    cross_entropy(model(inputs), labels).backward()
    assert guard.withhold()
    assert guard.proven == 4


def test_noise_is_read_off_the_columns_sums():
    model, (inputs, labels) = layer(100), batch(4, 100)
    torch.manual_seed(1)
    noisy = {
        name: value + 0.25 * torch.randn_like(value) for name, value in update(model, inputs, labels).items()
    }
    head = dense_head(model)
    found, columns = realised_noise(head, head.layers_of(noisy))
    assert columns == NUMBERS
    assert abs(found / 0.25 - 1) < 5 / (2 * columns) ** 0.5


def test_another_loss_ends_with_a_sentence():
    model = layer(10)
    squares = update(model, *batch(4, 10), loss=lambda said, y: mse_loss(said, one_hot(y, 10).float()))
    reader = recognise(model)
    with pytest.raises(MisfitError, match="a loss that is not cross-entropy"):
        belongs(reader, model, opened(model, squares, Declared()), Declared())


def test_a_probe_on_a_frozen_vision_transformer_is_read_by_its_features(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(PROBE)
    namespace = {}
    exec(PROBE, namespace)  # noqa: S102
    pictures, labels = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    torch.save(update(namespace["probe"]().eval(), pictures, labels), "probe.pt")
    asked = ("--gradient", "probe.pt", "--input-shape", "1,8,8", "--out", "out")
    code, out, _ = run(capsys, monkeypatch, "net.py:probe", *asked)
    assert code == 1
    assert "4 of 4 records are proven" in " ".join(out.split())


PROBE = """
import torch
from torch import nn

def probe():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    trunk = nn.Sequential(nn.Conv2d(1, 16, 4, stride=4), nn.Flatten(2), Turned(),
                          nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), Mean())
    return nn.Sequential(trunk.requires_grad_(False), nn.Linear(16, 10))

class Turned(nn.Module):
    def forward(self, x):
        return x.mT

class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)
"""


@pytest.mark.parametrize("kind", ["module", "weight"])
def test_a_weight_that_is_used_twice_is_not_read_and_what_enters_behind_it_is(kind):
    torch.manual_seed(3)
    one = nn.Linear(24, 24)
    two = one if kind == "module" else nn.Linear(24, 24)
    two.weight = one.weight
    network = nn.Sequential(one, nn.ReLU(), two, nn.ReLU(), nn.Linear(24, 12)).double()
    inputs, labels = torch.randn(3, 24).double(), torch.tensor([1, 4, 7])
    head = dense_head(network)
    assert (head.names, head.is_whole_network) == (("4",), False)
    reading = read(network, update(network, inputs, labels))
    assert reading.belonging.is_one_step
    assert reading.proof.batch_size == 3
    features = network[:4](inputs).detach()
    claimed = reading.proof.proposal.inputs
    assert torch.cdist(features, claimed).amin(1).max() < 1e-6 * features.norm(dim=1).min()
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    with pytest.raises(InputError, match="another layer's too"):
        dense_head(tied)
