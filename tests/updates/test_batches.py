"""Whole batches behind dense layers of every kind are proven; foreign updates, blends and averages prove nothing."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss, one_hot

from conftest import relu_network
from one_update import foreign_update, off, read, trained, update
from remanence import InputError
from remanence.core.exceptions import MisfitError
from remanence.updates.declared import Declared, LocalTraining
from remanence.updates.dense.layers import dense_head, has_one_logit, head_inputs
from remanence.updates.dense.proofs import independent_numbers
from remanence.updates.guard import reason_to_withhold
from remanence.updates.opening import belongs, opened, recognise

SINGLE, DOUBLE, HALVES = torch.float32, torch.float64, (torch.float16, torch.bfloat16)


def network(*sizes, function=nn.ReLU, bias=True, dtype=SINGLE, seed=0):
    torch.manual_seed(seed)
    layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair, bias=bias), function())]
    return nn.Sequential(*layers[:-1]).to(dtype).eval()


def batch(count, model, seed=0):
    """Normal records for a network, and labels."""
    generator, last = torch.Generator().manual_seed(seed), model[-1]
    inputs = torch.randn(count, model[0].in_features, generator=generator, dtype=DOUBLE).to(last.weight)
    return inputs, torch.randint(max(2, last.out_features), (count,), generator=generator)


def assert_whole(reading, inputs, labels, most=1e-4):
    """Every record is claimed once, with its label, and lies within the stated error."""
    proof = reading.proof
    claimed, errors = proof.proposal[proof.proven], proof.error[proof.proven]
    apart = off(claimed.inputs, inputs)
    right = (apart <= (4 * errors[:, None] + 1e-6).clamp(max=most)) & (claimed.labels[:, None] == labels)
    assert right.sum(0).eq(1).all()
    assert right.sum(1).eq(1).all()
    return apart.amin(0)


WHOLE = [
    *[((64, 10), {"dtype": dtype}, count, 1.0) for dtype in (SINGLE, DOUBLE) for count in (1, 2, 5)],
    *[((64, 100), {"dtype": dtype}, count, 1.0) for dtype in (SINGLE, DOUBLE) for count in (1, 2, 5, 32)],
    *[((30, 96, 1), {"dtype": dtype}, count, 1.0) for dtype in (SINGLE, DOUBLE) for count in (1, 2, 4, 8)],
    *[((40, 96, 7), {"function": one}, 8, 1.0) for one in (nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU)],
    ((40, 96, 48, 7), {"function": nn.GELU}, 6, 1.0),
    ((40, 96, 2), {"function": nn.Tanh}, 6, 1.0),
    ((40, 96, 7), {"function": nn.SiLU}, 6, -0.013),
    *[((40, 200, 7), {"dtype": dtype}, 1, 1.0) for dtype in (SINGLE, DOUBLE)],
    ((64, 10), {"bias": False}, 2, 1.0),
    *[((64, 10), {}, 4, factor) for factor in (0.0131, -0.0131)],
    *[((64, 64, 1), {}, 4, factor) for factor in (0.0131, -0.0131)],
    *[((40, 400, last), {}, 8, factor) for last in (2, 10) for factor in (1.0, 0.0125, 0.3, -0.01)],
]


@pytest.mark.parametrize(("sizes", "options", "count", "factor"), WHOLE)
def test_a_whole_batch_is_proven_at_any_scale_and_in_either_sign(sizes, options, count, factor):
    model = network(*sizes, **options)
    inputs, labels = batch(count, model)
    reading = read(model, update(model, inputs, labels, factor))
    assert (reading.proof.batch_size, reading.proof.explains_all) == (count, True)
    assert reading.sign == (1 if factor > 0 else -1)
    assert_whole(reading, inputs, labels)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("function", "count", "factor"),
    [
        *((nn.ReLU, count, 1.0) for count in (1, 12)),
        *((nn.Tanh, count, factor) for count, factor in ((1, 1.0), (8, -300.0))),
        *((nn.GELU, 6, 1.0), (nn.SiLU, 16, 1.0)),
    ],
)
def test_half_precision_hides_nothing_from_a_solution_within_the_span(dtype, function, count, factor):
    model = network(40, 96, 7, function=function)
    inputs, labels = batch(count, model)
    reading = read(model, update(model, inputs, labels, factor, dtype=dtype))
    size = count if factor == 1.0 else None  # at another scale, a record without a trace does not show
    assert reading.proof.batch_size == size
    apart = assert_whole(reading, inputs, labels, most=1e-1)
    # Stated errors are limits that are met, not so wide that anything would pass.
    assert apart.max() < reading.proof.error.min() * 4
    assert reading.proof.error.max() < 60 * apart.max()


@pytest.mark.parametrize("dtype", HALVES)
def test_weights_that_are_off_by_a_percent_show_in_half_precision(dtype):
    model = network(64, 100)
    given = batch(4, model)
    stale = {n: v.to(dtype) for n, v in foreign_update("stale", model, *given).items()}
    assert read(model, stale).proof.count == 0
    assert_whole(read(model, update(model, *given, dtype=dtype)), *given, most=3e-2)


@pytest.mark.parametrize("sizes", [(64, 10), (64, 64, 1)])
@pytest.mark.parametrize("decay", [0.00131, -0.00131])
def test_a_weight_decay_is_found_and_hides_nothing(sizes, decay):
    model = network(*sizes)
    inputs, labels = batch(4, model)
    own = dict(model.named_parameters())
    sent = {name: value + decay * own[name].detach() for name, value in update(model, inputs, labels).items()}
    reading = read(model, sent)
    assert reading.belonging.decay == pytest.approx(decay, rel=1e-3)
    assert_whole(reading, inputs, labels)


@pytest.mark.parametrize("frozen", [False, True])
def test_features_behind_convolutions_come_back(frozen):
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    trunk.requires_grad_(not frozen)
    model = nn.Sequential(trunk, nn.Linear(64, 10))
    pictures, labels = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 2, 7])
    head = dense_head(model, pictures)
    assert not head.is_whole_network
    reading = read(model, update(model, pictures, labels), example=pictures)
    assert_whole(reading, head_inputs(model, head, pictures), labels)


FOREIGN = [
    *[((40, 96, 7), one, dtype) for one in (nn.GELU, nn.Tanh, nn.ReLU) for dtype in (SINGLE, *HALVES)],
    *[((64, classes), nn.ReLU, dtype) for classes in (3, 10, 100) for dtype in (SINGLE, DOUBLE)],
    ((30, 64, 1), nn.ReLU, SINGLE),
    *[((16, 1024, classes), nn.ReLU, dtype) for classes in (2, 3) for dtype in HALVES],
]


@pytest.mark.parametrize(("sizes", "function", "dtype"), FOREIGN)
def test_foreign_updates_and_averages_prove_nothing(sizes, function, dtype):
    model = network(*sizes, function=function, dtype=DOUBLE if dtype is DOUBLE else SINGLE)
    given, moved = batch(6, model), 0.05 if dtype in HALVES else 0.01
    sent = {
        kind: foreign_update(kind, model, *given, off=moved)
        for kind in ("noise", "shuffled", "other", "stale")
    }
    sent["rank one"] = {  # in every layer
        name: torch.randn(len(value), 1).to(value) @ torch.randn(1, *value.shape[1:]).to(value)
        if value.ndim == 2 else value
        for name, value in update(model, *given).items()
    }  # fmt: skip
    is_single = len(sizes) == 2
    if is_single:
        sent["average"] = update(model, *batch(512, model))
    for kind, gradient in sent.items():
        reading = read(model, {name: value.to(dtype) for name, value in gradient.items()})
        assert reading.proof.count == 0, kind
        if function is nn.ReLU and kind != "rank one":
            assert reading.belonging.is_one_step == (is_single and kind != "noise"), kind


@pytest.mark.parametrize("scale", [0.0, 1e-7])
def test_means_of_classes_at_weights_that_are_zero_are_no_records(scale):
    model = network(64, 10)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(scale)
    inputs, _ = batch(6, model)
    for labels in ([0] * 6, [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5]):
        assert read(model, update(model, inputs, torch.tensor(labels))).proof.count == 0


@pytest.mark.parametrize("sizes", [(64, 2), (30, 1)])
@pytest.mark.parametrize(
    ("dtype", "count", "factor", "proven"),
    [(DOUBLE, 1, 1.0, 1), (DOUBLE, 1, 0.3, 0), (DOUBLE, 1, -1.0, 0), (SINGLE, 1, 1.0, 0), (DOUBLE, 3, 1.0, 0)],
)  # fmt: skip
def test_two_classes_behind_one_layer_prove_one_record_by_its_size_alone(sizes, dtype, count, factor, proven):
    model = network(*sizes, dtype=dtype)
    given = batch(count, model)
    reading = read(model, update(model, *given, factor))
    assert reading.proof.count == proven
    assert not proven or assert_whole(reading, *given).max() < 1e-4


@pytest.mark.parametrize("count", [9, 10, 20])
def test_as_many_records_as_the_layer_has_room_for_are_not_searched_for(count):
    model = network(64, 10)
    assert read(model, update(model, *batch(count, model))).proof.count == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_layer_blends_records_and_no_blend_is_claimed(seed):
    model = network(30, 8, 1, dtype=DOUBLE, seed=seed)
    inputs = batch(3, model, seed)[0] + 2  # records that activate the same neurons
    for factor in (1.0, 0.0131, -0.0131):
        proof = read(model, update(model, inputs, torch.zeros(3).long(), factor)).proof
        assert (off(proof.proposal.inputs[proof.proven], inputs).amin(1) < 1e-4).all()
        assert proof.batch_size in (None, 3)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_regression_is_not_claimed_as_a_classifier(count):
    model = network(30, 64, 1)
    loss = lambda said, y: mse_loss(said.flatten(), y)  # noqa: E731
    reading = read(model, update(model, batch(count, model)[0], torch.linspace(-2, 3, count), loss=loss))
    assert reading.belonging.is_one_step, "neurons balance whatever the loss"
    assert reading.proof.count == 0


def test_another_loss_behind_one_layer_ends_with_a_sentence():
    model = network(64, 10)
    squares = update(model, *batch(4, model), loss=lambda said, y: mse_loss(said, one_hot(y, 10).float()))
    with pytest.raises(MisfitError, match="a loss that is not cross-entropy"):
        belongs(recognise(model), model, opened(model, squares, Declared()), Declared())


def test_one_logit_is_two_classes_whose_rows_are_one():
    model = network(30, 64, 1)
    inputs, labels = batch(3, model)
    head = dense_head(model)
    assert (head.classes, has_one_logit(head)) == (2, True)
    layers = head.layers_of(update(model, inputs, labels))
    for pair, made in zip(layers, head.gradients(inputs.double(), labels), strict=True):
        for sent, own in zip(pair, made, strict=True):
            assert torch.allclose(sent, own / 3, atol=1e-6)
    assert independent_numbers(layers) == int(layers[0][0].count_nonzero() + layers[1][0][1].count_nonzero())


@pytest.mark.parametrize(
    ("sizes", "count", "steps", "momentum", "told"),
    [
        ((64, 10), 1, 5, 0.0, "1 samples can be read off it"),
        ((64, 10), 3, 5, 0.0, None),
        ((64, 10), 3, 1, 0.0, "3 samples can be read off it"),
        ((30, 64, 1), 4, 5, 0.9, "4 samples can be read off it"),  # one row is trained, and not two
    ],
)
def test_declared_steps_are_made_again(sizes, count, steps, momentum, told):
    model = network(*sizes)
    inputs, labels = batch(count, model)
    training = LocalTraining(steps, 0.1, momentum)
    given = model, *trained(model, inputs, labels, training), Declared(training)
    assert reason_to_withhold(*given, allow_untested=True) == told


@pytest.mark.parametrize("kind", ["module", "weight"])
def test_a_weight_that_is_used_twice_is_not_read_and_what_enters_behind_it_is(kind):
    torch.manual_seed(3)
    one = nn.Linear(24, 24)
    two = one if kind == "module" else nn.Linear(24, 24)
    two.weight = one.weight
    model = nn.Sequential(one, nn.ReLU(), two, nn.ReLU(), nn.Linear(24, 12)).double()
    inputs, labels = torch.randn(3, 24).double(), torch.tensor([1, 4, 7])
    head = dense_head(model)
    assert (head.names, head.is_whole_network) == (("4",), False)
    reading = read(model, update(model, inputs, labels))
    assert reading.belonging.is_one_step
    assert reading.proof.batch_size == 3
    assert_whole(reading, model[:4](inputs).detach(), labels, most=1e-6)
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    with pytest.raises(InputError, match="another layer's too"):
        dense_head(tied)


def test_a_batch_of_64_is_proven_whole_and_one_beyond_reach_claims_nothing():
    for count, width, whole in ((64, 512, True), (48, 120, False)):
        model = relu_network(100, width, 10, dtype=SINGLE, seed=3)
        inputs, labels = batch(count, model, 3)
        reading = read(model, update(model, inputs, labels))
        proof = reading.proof
        assert (proof.batch_size, proof.explains_all) == ((64, True) if whole else (None, False))
        if whole:
            assert_whole(reading, inputs, labels)
        assert proof.count == (64 if whole else 0)
