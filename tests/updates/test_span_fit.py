"""Whole batches behind any of the usual functions between layers, by solving within the span of the gradient."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from one_update import foreign_update, read, update
from remanence import InputError
from remanence.updates import span
from remanence.updates.dense.exposure import gradient_exposure
from remanence.updates.dense.layers import SMOOTH, Activation, dense_head, recognised
from remanence.updates.dense.span_fit import SpanEquations, fit_in_span
from remanence.updates.guard import GradientGuard

FLOAT32 = 1.2e-7


def network(function, *, deep=False, classes=7):
    torch.manual_seed(0)
    middle = [nn.Linear(96, 48), function()] if deep else []
    layers = [nn.Linear(40, 96), function(), *middle]
    return nn.Sequential(*layers, nn.Linear(48 if deep else 96, classes)).eval()


def batch(count, classes=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 40, generator=generator), torch.randint(classes, (count,), generator=generator)


def all_right(reading, inputs, labels):
    claimed = reading.proof.proposal[reading.proof.proven]
    off = torch.cdist(claimed.inputs, inputs.double()) / inputs.double().norm(dim=1)
    close = (off <= 4 * reading.proof.error[reading.proof.proven][:, None] + 1e-6) & (
        claimed.labels[:, None] == labels
    )
    return int(close.any(1).sum()) == len(claimed) and int(close.any(0).sum()) == len(claimed)


@pytest.mark.parametrize("function", [nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU])
def test_a_batch_behind_a_smooth_function_is_proven_whole(function):
    model, (inputs, labels) = network(function), batch(8)
    reading = read(model, update(model, inputs, labels))
    assert (reading.proof.count, reading.proof.batch_size, reading.proof.explains_all) == (8, 8, True)
    assert all_right(reading, inputs, labels)


@pytest.mark.parametrize(
    ("function", "options", "factor"),
    [
        (nn.GELU, {"deep": True}, 1.0),
        (nn.Tanh, {"classes": 2}, 1.0),
        (nn.SiLU, {}, -0.013),
    ],
)
def test_deep_networks_and_an_unknown_scale_hide_nothing(function, options, factor):
    model, (inputs, labels) = network(function, **options), batch(6, options.get("classes", 7))
    reading = read(model, update(model, inputs, labels, factor))
    assert (reading.proof.count, reading.proof.batch_size) == (6, 6)
    assert all_right(reading, inputs, labels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("function", "count", "factor"),
    [(nn.Tanh, 1, 1.0), (nn.GELU, 6, 1.0), (nn.SiLU, 16, 1.0), (nn.Tanh, 8, -300.0), (nn.ReLU, 12, 1.0)],
)
def test_half_precision_hides_nothing_from_a_solution_within_the_span(dtype, function, count, factor):
    model, (inputs, labels) = network(function), batch(count)
    sent = {name: value.to(dtype) for name, value in update(model, inputs, labels, factor).items()}
    reading = read(model, sent)
    size = count if factor == 1.0 else None  # at another scale, a record without a trace does not show
    assert (reading.proof.count, reading.proof.batch_size) == (count, size)
    assert all_right(reading, inputs, labels)
    claimed = reading.proof.proposal.inputs
    off = torch.cdist(inputs.double(), claimed).amin(1) / inputs.double().norm(dim=1)
    # Stated errors are limits that are met, not so wide that anything would pass.
    assert off.max() < reading.proof.error.min() * 4
    assert reading.proof.error.max() < 60 * off.max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("function", [nn.GELU, nn.Tanh, nn.ReLU])
def test_foreign_updates_prove_nothing(dtype, function):
    model, given = network(function), batch(6)
    off = 0.01 if dtype is torch.float32 else 0.05
    sent = [foreign_update(kind, model, *given, off=off) for kind in ("noise", "shuffled", "stale")]
    sent.append({  # of rank one in every layer
        name: torch.randn(len(value), 1) @ torch.randn(1, *value.shape[1:]) if value.ndim == 2 else value
        for name, value in update(model, *given).items()
    })  # fmt: skip
    for foreign in sent:
        assert read(model, {name: value.to(dtype) for name, value in foreign.items()}).proof.count == 0


@pytest.mark.parametrize("count", [12, 20])
def test_behind_relu_it_needs_no_exclusive_neuron(count):
    model, (inputs, labels) = network(nn.ReLU), batch(count)
    assert not gradient_exposure(model, inputs, labels).exposed.all()
    head = dense_head(model)
    layers = head.layers_of(update(model, inputs, labels))
    found = fit_in_span(head, layers, precision=FLOAT32)
    assert len(found) == count
    off = torch.cdist(inputs.double(), found.inputs).amin(1) / inputs.double().norm(dim=1)
    assert off.max() < 1e-5


def test_one_record_is_read_however_near_its_neurons_lie_to_a_kink():
    for seed in range(12):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 256), nn.LeakyReLU(), nn.Linear(256, 10))
        inputs, labels = torch.randn(1, 64), torch.randint(10, (1,))
        head = dense_head(model)
        layers = head.layers_of(update(model, inputs, labels))
        found = fit_in_span(head, layers, precision=FLOAT32)
        assert (found.inputs - inputs).norm() < 1e-5 * inputs.norm(), seed


def test_a_batch_as_large_as_the_input_is_out_of_reach():
    model, (inputs, labels) = network(nn.GELU), batch(48)
    head = dense_head(model)
    layers = head.layers_of(update(model, inputs, labels))
    assert not len(fit_in_span(head, layers, precision=FLOAT32, slots=64))


@pytest.mark.parametrize("activation", SMOOTH, ids=lambda one: one.name)
def test_functions_are_recognised_and_have_the_slope_that_autograd_gives(activation):
    z = torch.linspace(-3, 3, 41, dtype=torch.float64).requires_grad_()
    after = activation(z)
    assert recognised(z.detach(), after.detach()) is activation
    slope = torch.autograd.grad(after.sum(), z)[0]
    torch.testing.assert_close(activation.slope(z.detach()), slope)


def test_a_softened_kink_tends_to_the_kink():
    z = torch.tensor([-2.0, -0.1, 0.2, 3.0], dtype=torch.float64)
    leaky = Activation("leaky", leak=0.1)
    torch.testing.assert_close(leaky(z), nn.functional.leaky_relu(z, 0.1))
    for softness, off in ((0.1, 0.1), (1e-3, 1e-6)):
        assert (leaky.softened(softness)(z) - leaky(z)).abs().max() < off
        assert (leaky.softened(softness).slope(z) - leaky.slope(z)).abs().max() < 3 * off + 0.3 * (
            softness > 1e-2
        )


def test_exclusive_neurons_are_not_counted_where_there_are_none_and_the_guard_reads_all_the_same():
    model, (inputs, labels) = network(nn.GELU), batch(4)
    with pytest.raises(InputError, match="GELU"):
        gradient_exposure(model, inputs, labels)
    cross_entropy(model(inputs), labels).backward()
    assert GradientGuard(model).withhold()


def test_a_large_layer_is_sketched_and_gives_the_same_span(monkeypatch):
    model, (inputs, labels) = network(nn.GELU), batch(6)
    head = dense_head(model)
    layers = head.layers_of(update(model, inputs, labels))
    whole = SpanEquations.of(head, layers, FLOAT32)
    monkeypatch.setattr(span, "_LARGE", 8)
    monkeypatch.setattr(span, "_SPARE", 4)
    sketched = SpanEquations.of(head, layers, FLOAT32, most=16)
    assert whole.rank == sketched.rank == 6
    inside = sketched.directions @ whole.directions.mT
    assert torch.linalg.svdvals(inside).min() > 1 - 1e-6
    noise = [(torch.randn_like(weight), torch.randn_like(bias)) for weight, bias in layers]
    filled = SpanEquations.of(head, noise, FLOAT32, most=16)
    assert filled is None or filled.rank > 16
