"""The stages that search: within the span of the first layer's gradient, and along its sparse directions."""

import pytest
import torch
from test_batches import batch, network
from test_exact import met, sent
from torch import nn
from torch.nn import functional

from conftest import relu_network
from one_update import off
from remanence import gradient_exposure
from remanence.updates import span
from remanence.updates.dense.layers import SMOOTH, Activation, recognised
from remanence.updates.dense.peeling import reconstruct
from remanence.updates.dense.span_fit import SpanEquations, fit_in_span
from remanence.updates.dense.sparse_columns import reconstruct_low_rank

FLOAT32 = 1.2e-7
PRECISION = {torch.float64: 2.2e-16, torch.float32: FLOAT32}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("bias", "depth"), [(True, 1), (False, 1), (True, 2), (False, 2)])
def test_a_batch_without_exclusive_neurons_comes_back_whole(bias, depth, dtype):
    model = relu_network(60, *[256] * depth, 10, bias=bias, dtype=dtype, seed=1)
    inputs, labels = batch(16, model, 1)
    assert not gradient_exposure(model, inputs, labels).exposed.any()
    dense = sent(model, inputs, labels)
    at_sight = reconstruct(*dense, precision=PRECISION[dtype])
    assert len(at_sight.records) == 0, "exclusivity alone finds none"
    found = reconstruct_low_rank(*dense, precision=PRECISION[dtype])
    back, false = met(found, inputs.double(), labels, tolerance=1e-8 if dtype is torch.float64 else 1e-3)
    assert back.all()
    assert false == 0
    assert found.records.batch_size == 16, "the rank of the gradient is the batch size"
    assert found.unexplained.max() < (1e-10 if dtype is torch.float64 else 1e-5)


def test_a_repeated_sample_is_one_direction_and_the_same_seed_gives_the_same_batch():
    model = relu_network(60, 256, 10, seed=0)
    inputs, labels = batch(10, model)
    inputs, labels = torch.cat([inputs, inputs[:1]]), torch.cat([labels, labels[:1]])
    dense = sent(model, inputs, labels)
    first, second = (reconstruct_low_rank(*dense, precision=2.2e-16, seed=5) for _ in range(2))
    assert met(first, inputs, labels)[1] == 0
    assert torch.allclose(first.records.inputs, second.records.inputs, atol=1e-9)


@pytest.mark.parametrize("count", [12, 20])
def test_behind_relu_it_needs_no_exclusive_neuron(count):
    model = network(40, 96, 7)
    inputs, labels = batch(count, model)
    assert not gradient_exposure(model, inputs, labels).exposed.all()
    found = fit_in_span(*sent(model, inputs, labels), precision=FLOAT32)
    assert len(found) == count
    assert off(found.inputs, inputs).amin(0).max() < 1e-5


def test_one_record_is_read_however_near_its_neurons_lie_to_a_kink():
    for seed in range(12):
        model = network(64, 256, 10, function=nn.LeakyReLU, seed=seed)
        inputs, labels = torch.randn(1, 64), torch.randint(10, (1,))
        found = fit_in_span(*sent(model, inputs, labels), precision=FLOAT32)
        assert (found.inputs - inputs).norm() < 1e-5 * inputs.norm(), seed


def test_a_batch_as_large_as_the_input_is_out_of_reach():
    model = network(40, 96, 7, function=nn.GELU)
    assert not len(fit_in_span(*sent(model, *batch(48, model)), precision=FLOAT32, slots=64))


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
    torch.testing.assert_close(leaky(z), functional.leaky_relu(z, 0.1))
    for softness, value_off, slope_off in ((0.1, 0.1, 0.6), (1e-3, 1e-6, 3e-6)):
        assert (leaky.softened(softness)(z) - leaky(z)).abs().max() < value_off
        assert (leaky.softened(softness).slope(z) - leaky.slope(z)).abs().max() < slope_off


def test_a_large_layer_is_sketched_and_gives_the_same_span(monkeypatch):
    model = network(40, 96, 7, function=nn.GELU)
    head, layers = sent(model, *batch(6, model))
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
