"""What is called proven is proven: foreign updates prove nothing, and no false record is claimed."""

import sys
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from test_exact import batch, leak
from torch import nn
from torch.nn.functional import cross_entropy, multi_margin_loss

from conftest import relu_network
from one_update import after_steps, off, read, update
from remanence.updates.captured import Captured
from remanence.updates.declared import Declared, LocalTraining
from remanence.updates.dense.belonging import belonging
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import Proposal, reconstruct
from remanence.updates.dense.proofs import Proof, verify, verify_rows
from remanence.updates.dense.reader import Own, _joined
from remanence.updates.inspection import _released, open_update
from remanence.updates.inspection import read as read_whole
from remanence.updates.rounding import Rounding

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import foreign_updates

FLOAT32 = Rounding(1.2e-7)


def right(reading, inputs, labels) -> int:
    """How many claims a record of the batch accounts for, within the stated error."""
    proof = reading.proof
    claimed, errors = proof.proposal[proof.proven], proof.error[proof.proven]
    named = claimed.labels[:, None]  # −1 where the label is left open
    near = off(claimed.inputs, inputs) <= 4 * errors[:, None] + 1e-6
    return int((near & ((named == labels) | (named < 0))).any(1).sum())


def subject(classes=10, width=400, count=8, seed=0):
    network = relu_network(40, width, classes, dtype=torch.float32, seed=seed)
    inputs, labels = batch(count, 40, classes, seed)
    return network, inputs.float(), labels


@pytest.mark.parametrize("seed", range(len(foreign_updates.GENUINE)))
def test_foreign_updates_claim_nothing_and_genuine_claims_are_right(seed):
    job = foreign_updates.Job(64, "ReLU", foreign_updates.SHAPES[0])
    (_, foreign, (why, _), _), (name, genuine, (wrong, again), _) = job(seed)
    assert (foreign["refused"], foreign["claimed"], why) == (1, 0, "")
    assert (genuine["false"], genuine["wrong"], wrong) == (0, 0, ""), again
    plain = ("plain", "clipped", "turned", "smoothed labels", "training mode")
    assert not (name.removeprefix("genuine: ") in plain and genuine["refused"]), again


def test_long_inputs_in_double_precision_are_not_called_another_network():
    network = relu_network(6000, 100, 10, seed=3)
    inputs, labels = batch(8, 6000, 10, 3)
    head, double = dense_head(network), Rounding.of([torch.float64])
    # How far long sums are off depends on the processor: the last bits are drawn here.
    last_bits = torch.Generator().manual_seed(0)
    gradient = {
        name: value[0]
        * (1 + 64 * double.relative * torch.randn(value[0].shape, generator=last_bits).double())
        for name, value in leak(network, inputs, labels).items()
    }
    fit = belonging(head, head.layers_of(gradient), double)
    assert fit.misfit > 4 * double.relative
    assert fit.is_one_step
    stale = dense_head(relu_network(6000, 100, 10, seed=3).apply(_moved))
    assert not belonging(stale, stale.layers_of(gradient), double).is_one_step


def _moved(layer: nn.Module) -> None:
    """Weights that are off by a part in a million million."""
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters(recurse=False):
        parameter.data *= 1 + 1e-12 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)


def test_a_batch_size_is_not_invented_from_a_scale_that_nobody_knows():
    network, inputs, labels = subject(width=60, count=32)
    reading = read(network, update(network, inputs, labels, 1 / 40.3))
    assert 0 < reading.proof.count < 32, "the problem must leave some samples hidden"
    assert right(reading, inputs, labels) == reading.proof.count
    assert reading.proof.batch_size is None


def test_class_weights_weight_decay_dropout_and_smoothed_labels_hide_little():
    network, inputs, labels = subject()
    weights = {name: value.detach() for name, value in network.named_parameters()}
    torch.manual_seed(0)
    dropout = nn.Sequential(network[0], network[1], nn.Dropout(0.5), network[2]).train()
    in_dropout = dict(zip(weights, update(dropout, inputs, labels).values(), strict=True))
    sent = {
        "class weights": (update(network, inputs, labels, weight=torch.linspace(1, 3, 10)), 8),
        "decay": ({n: g + 1e-4 * weights[n] for n, g in update(network, inputs, labels).items()}, 8),
        "dropout": (in_dropout, 6),
        "label smoothing": (update(network, inputs, labels, label_smoothing=0.1), 4),
    }
    for name, (one, least) in sent.items():
        reading = read(network, one)
        assert reading.proof.count >= least, name
        assert right(reading, inputs, labels) == reading.proof.count, name


@pytest.mark.parametrize(("rate", "steps"), [(0.1, 2), (0.1, 5), (0.1, 20), (0.01, 2)])
def test_several_local_steps_are_refused_until_they_are_declared_and_then_give_only_right_records(
    rate, steps
):
    network, inputs, labels = subject()
    sent, rounding = after_steps(network, inputs, labels, LocalTraining(steps, rate))
    undeclared = read(network, sent, rounding)
    assert not undeclared.belonging.is_one_step
    assert undeclared.proof.count == 0
    declared = read(network, sent, rounding, training=LocalTraining(steps, rate))
    assert declared.proof.count >= 2
    assert right(declared, inputs, labels) == declared.proof.count


def test_the_steps_are_made_again_to_prove_a_whole_batch():
    network, inputs, labels = subject(count=4, seed=3)
    sent, rounding = after_steps(network, inputs, labels, LocalTraining(2, 0.01))
    reading = read(network, sent, rounding, training=LocalTraining(2, 0.01))
    assert reading.proof.explains_all
    assert (reading.proof.batch_size, right(reading, inputs, labels)) == (4, 4)
    wrong = read(network, sent, rounding, training=LocalTraining(2, 0.03))
    assert not wrong.proof.explains_all, "other steps do not make this update"


@pytest.mark.parametrize(("widest", "seed", "claimed", "sizes"), [
    (128, 5027, 1, 0),  # 16 one-hot records, 11 of them different: a share is that of half as many
    (512, 13, 8, 1),  # in double precision, behind the one layer whose weight is used once
])  # fmt: skip
def test_records_that_are_there_twice_and_those_behind_one_layer_are_counted_right(
    widest, seed, claimed, sizes
):
    _, (_, count, (wrong, _), _) = foreign_updates.Job(widest, "ReLU", foreign_updates.SHAPES[0])(seed)
    assert (count["claimed"], count["sizes"], wrong) == (claimed, sizes, "")


def test_a_record_that_was_not_in_the_batch_is_not_proven():
    network, inputs, labels = subject()
    head = dense_head(network)
    layers = head.layers_of(update(network, inputs, labels))
    strangers, names = batch(8, 40, 10, 77)
    strangers[0], names[0] = inputs[0], labels[0]
    given = Proposal(strangers, names, torch.full((8,), 1 / 8.0).double())
    assert not verify(head, layers, given, rounding=FLOAT32).proven[1:].any()


def test_near_duplicates_do_not_halve_the_batch():
    network = relu_network(40, 400, 10, dtype=torch.float32, seed=3)
    inputs, labels = batch(4, 40, 10, 3)
    torch.manual_seed(3)
    twins = inputs + 1e-2 * torch.randn_like(inputs)
    inputs, labels = torch.cat([inputs, twins]).float(), labels.repeat(2)
    reading = read(network, update(network, inputs, labels))
    assert reading.proof.batch_size in (None, 8)
    assert right(reading, inputs, labels) == reading.proof.count


def test_a_refinement_that_explains_no_more_is_thrown_away():
    # After two steps a fit to one step's gradient would move right inputs by several decibels.
    network, inputs, labels = subject()
    sent, _ = after_steps(network, inputs, labels, LocalTraining(2, 0.1))
    head = dense_head(network)
    found = reconstruct(head, head.layers_of(sent), precision=1e-4)
    assert off(found.records.inputs, inputs).amin(1).median() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_record_without_a_trace_is_not_left_out_of_the_batch_size(dtype):
    """Three of four records explain the update whole; the network is all but certain about the fourth."""
    network = relu_network(30, 300, 10, dtype=torch.float32, seed=0)
    inputs, labels = batch(4, 30, 10, 0)
    inputs = inputs.float()
    inputs[0] *= 60
    labels[0] = network(inputs[:1]).argmax()
    reading = read(network, update(network, inputs, labels, dtype=dtype))
    assert (reading.proof.explains_all, reading.proof.count) == (True, 3)
    assert reading.proof.batch_size is None


def confident(classes, gain, dtype=torch.float64, seed=1):
    """A network that hesitates between two classes at most, as training makes it, and a batch of four."""
    network = relu_network(20, 40, classes, dtype=dtype, seed=seed)
    with torch.no_grad():
        network[-1].weight.mul_(gain)
    inputs, labels = batch(4, 20, classes, seed)
    return network, inputs.to(dtype), labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("classes", "gain"), [(3, 1), (3, 8), (3, 30), (4, 30)])
def test_the_opposite_of_an_update_is_not_read_as_the_update_of_other_labels(classes, gain, seed, dtype):
    network, inputs, labels = confident(classes, gain, dtype, seed)
    for count in (1, 2, 4):
        reading = read(network, update(network, inputs[:count], labels[:count], -0.037))
        claimed = reading.proof.proposal[reading.proof.proven]
        nearest = torch.cdist(claimed.inputs, inputs.double()).argmin(1)
        told = claimed.labels >= 0
        assert torch.equal(claimed.labels[told], labels[nearest[told]])
        assert reading.sign == -1 or not told.any()
        assert reading.proof.count > 0


def test_a_label_is_left_open_where_the_opposite_of_the_update_has_another():
    network = relu_network(20, 40, 3, seed=0)
    with torch.no_grad():
        network[-1].bias[2] = -80.0  # a class that nothing speaks for
    inputs, labels = batch(1, 20, 2, 0)
    for factor, expected in ((1.0, int(labels)), (0.037, -1), (-0.037, -1)):
        proof = read(network, update(network, inputs, labels, factor)).proof
        assert proof.count == 1
        assert torch.allclose(proof.proposal.inputs[0], inputs[0])
        assert proof.proposal.labels.tolist() == [expected]


def test_a_tenth_of_an_update_is_not_that_of_ten_times_as_many_records():
    network = relu_network(20, 8, 3, seed=2)
    sizes = set()
    for seed in range(12):
        inputs, labels = batch(4, 20, 3, seed)
        sizes.add(read(network, update(network, inputs, labels, 0.1)).proof.batch_size)
    assert sizes <= {None, 4}


def test_records_without_a_trace_in_half_precision_leave_the_size_of_the_batch_open():
    for seed in range(6):
        network, _, _ = confident(3, 30, torch.float32, seed)
        inputs, labels = batch(6, 20, 3, seed)
        for factor in (1.0, 0.1, 0.037):
            sent = update(network, inputs.float(), labels, factor, dtype=torch.float16)
            assert read(network, sent).proof.batch_size in (None, 6)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_that_were_mixed_are_left_open(classes, dtype):
    for seed in range(4):
        network = relu_network(20, 64, classes, dtype=dtype, seed=seed)
        inputs, _ = batch((1, 2, 4)[seed % 3], 20, classes, seed)
        generator = torch.Generator().manual_seed(seed)
        soft = torch.softmax(2 * torch.randn(len(inputs), classes, generator=generator), 1)
        proof = read(network, update(network, inputs.to(dtype), soft.to(dtype))).proof
        claimed = proof.proposal[proof.proven]
        assert (claimed.labels == -1).all()
        assert not len(claimed) or torch.cdist(claimed.inputs, inputs).amin(1).max() < 1e-3


@pytest.mark.parametrize("loss", [
    multi_margin_loss, lambda said, y: (said.amax(1) - said.gather(1, y[:, None])[:, 0]).mean()
])  # fmt: skip
def test_the_mean_of_records_with_one_loss_vector_is_no_record(loss):
    """Of a hinge, all records of a class may have the same: rows of neurons that some share are multiples then."""
    claimed = looked_like = 0
    for seed in range(4):
        network = relu_network(40, (150, 400)[seed % 2], 7, dtype=torch.float32, seed=seed)
        inputs, labels = batch(4 + 4 * (seed // 2), 40, 7, seed)
        one = open_update(network, update(network, inputs.float(), labels, loss=loss), Declared())
        game = Captured(*_released(one, 64))
        guess = game.mechanism.reader.reconstruct(game.gradients, game.mechanism, seed=0, longest=64)
        (proof,), (before,) = game.proofs(guess, game.gradients), read_whole(one)
        assert off(proof.proposal.inputs[proof.proven], inputs).amin(1).lt(1e-3).all()
        claimed, looked_like = claimed + proof.count, looked_like + before.count
    assert 0 < claimed < looked_like


def test_rows_from_which_small_numbers_were_left_out_prove_no_record():
    network, double = relu_network(30, 90, 6, seed=1), Rounding(2.2e-16)
    inputs, labels = batch(3, 30, 6, 1)
    head = dense_head(network)
    (weight, bias), last = head.layers_of(update(network, inputs, labels))
    on = network[:2](inputs) > 0
    alone = on & (on.sum(0) == 1)
    which = int(alone.sum(1).argmax())
    true, own = inputs[which], alone[which].nonzero()[:, 0]
    cut = true.where(true.abs() > 0.1, 0.0)
    assert len(own) > 5
    weight[own[:3]] = bias[own[:3], None] * cut  # parallel rows that all lack the same numbers
    layers = [(weight, bias), last]
    assert belonging(head, layers, double).is_one_step, "most neurons balance"
    for named, proven in ((cut, 0), (true, 1)):
        proposal = Proposal(named[None], labels[which : which + 1], torch.ones(1).double())
        found, _ = verify_rows(head, layers, proposal, rounding=double, is_one_step=True)
        assert len(found) == proven


@pytest.mark.parametrize("depth", [1, 2])
def test_without_a_bias_three_classes_prove_no_input_whose_label_was_mixed(depth):
    network = relu_network(16, *[40] * depth, 3, bias=False, dtype=torch.float64)
    inputs, labels = batch(1, 16, 3, 0)
    mixed = 0.7 * nn.functional.one_hot(labels, 3) + 0.3 * torch.tensor([0.5, 0.3, 0.2])
    assert read(network, update(network, inputs, mixed.double())).proof.count == 0
    assert read(network, update(network, inputs, labels)).proof.count == 1


def test_a_batch_is_proven_by_the_client_s_own_module(monkeypatch):
    """Layers that were taken for what they are not prove nothing, whatever their formulas say."""
    network, inputs, labels = subject(count=4, seed=3)
    opened = open_update(network, update(network, inputs, labels), Declared())
    (proof,) = read_whole(opened)
    assert (proof.count, proof.batch_size) == (4, 4)

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network

        def forward(self, x):
            return self.inner(x)

    twin = Other()
    one = Own.of(twin, dense_head(twin), (40,))
    records = Proposal(inputs.double(), labels, torch.full((4,), 0.25, dtype=torch.float64))
    assert one.agrees(records)
    monkeypatch.setattr(Other, "forward", lambda self, x: self.inner(x) * 1.001)
    assert not one.agrees(records)
    monkeypatch.setattr(Own, "agrees", lambda *_: False)
    (proof,) = read_whole(opened)
    assert proof.count == 0


def digits_network(steps, seed=0):
    """A network of two layers of 256, trained on digits, and the digits."""
    pixels, classes = load_digits(return_X_y=True)
    inputs, labels = torch.from_numpy(pixels / 8 - 1).float(), torch.from_numpy(classes)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimiser = torch.optim.SGD(network.parameters(), 0.1)
    for _ in range(steps):
        index = torch.randint(200, len(inputs), (64,))
        optimiser.zero_grad()
        cross_entropy(network(inputs[index]), labels[index]).backward()
        optimiser.step()
    return network, inputs, labels


@pytest.mark.parametrize(("steps", "seed", "own"), [(150, 0, slice(0, 4)), (300, 258, slice(2, 4))])
def test_weights_after_a_step_of_a_trained_network_give_every_record_once(steps, seed, own):
    network, inputs, labels = digits_network(steps, seed)
    inputs, labels = inputs[own], labels[own]
    slopes = update(network, inputs, labels)
    for rate in (0.1, 0.01) if steps == 150 else (0.1,):
        after = {name: value - rate * slopes[name] for name, value in network.state_dict().items()}
        (proof,) = read_whole(open_update(network, after, Declared(), is_after=True))
        assert proof.count == len(inputs)
        near = off(proof.proposal[proof.proven].inputs, inputs).argmin(1)
        assert sorted(near.tolist()) == list(range(len(inputs)))


def test_groups_of_rows_that_give_one_record_prove_it_once():
    rows = torch.tensor([[0, 2.001], [1, 0], [1.001, 0], [0, 2], [0, 1]]).double()
    every = Proposal(rows, torch.full((5,), -1), torch.full((5,), 0.2))
    known = Proof(every[:1], torch.tensor([True]), torch.full((1,), 1e-3), torch.zeros(1), False, None)
    found = _joined(known, every[1:], torch.full((4,), 1e-3))
    assert found.proposal.inputs.tolist() == rows[[0, 1, 4]].tolist()
    assert found.count == 3
