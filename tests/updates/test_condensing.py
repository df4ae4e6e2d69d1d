"""A large first layer in coordinates of its gradient's span poses the same problem."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from one_update import read_update
from remanence.updates.dense.belonging import belonging
from remanence.updates.dense.coordinates import condensed
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import Proposal, Remainder, sharpened
from remanence.updates.opening import difference, rounding_of_difference
from remanence.updates.rounding import Rounding


def layers_of(model, inputs, labels, dtype=torch.float32):
    named = dict(model.named_parameters())
    made = torch.autograd.grad(cross_entropy(model(inputs), labels), list(named.values()))
    head = dense_head(model)
    return head, head.layers_of({n: v.to(dtype) for n, v in zip(named, made, strict=True)})


def network(seed=0, numbers=1200, width=600):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(numbers, width), nn.ReLU(), nn.Linear(width, 10))


def batch(size, numbers=1200, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, numbers, generator=generator), torch.randint(10, (size,), generator=generator)


@pytest.mark.parametrize("size", [6, 300])
def test_norms_and_the_balance_of_neurons_are_what_they_were(size):
    head, layers = layers_of(network(), *batch(size))
    one = layers
    shorter, (short,), _ = condensed(head, one[:1], Rounding(1.2e-7))
    whole, _ = one[0]
    assert short.shape[1] < whole.shape[1] / 4
    assert torch.allclose(short.norm(dim=1), whole.norm(dim=1), rtol=1e-6)
    own = (head.weights[0] * whole).sum(1)
    there = (shorter.weights[0] * short).sum(1)
    assert torch.allclose(there, own, atol=float(1e-6 * own.abs().max()))
    rounding = Rounding(1.2e-7)
    assert belonging(shorter, [(short, one[0][1]), one[1]], rounding).is_one_step
    assert belonging(head, one, rounding).is_one_step


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_records_come_back_from_coordinates(dtype, error):
    inputs, labels = batch(6)
    head, layers = layers_of(network(), inputs, labels, dtype)
    reading = read_update(head, layers, Rounding.of([dtype]))
    assert reading.proof.explains_all
    assert reading.proof.batch_size == 6
    off = torch.cdist(reading.proof.proposal.inputs, inputs.double()) / inputs.double().norm(dim=1)
    assert off.amin(0).max() < error
    assert torch.equal(reading.proof.proposal.labels.sort().values, labels.sort().values)


@pytest.mark.parametrize("size", [300, pytest.param(220, marks=pytest.mark.slow)])
def test_in_a_large_batch_a_record_with_two_neurons_to_itself_comes_back_and_no_other(size):
    model, (inputs, labels) = network(width=500), batch(size)
    with torch.no_grad():  # two neurons that the first record alone activates
        for neuron in (3, 4):
            model[0].weight[neuron] += inputs[0] / inputs[0].norm()
            model[0].bias[neuron] = 0.5 * (inputs @ model[0].weight[neuron])[0] * -1
        active = model[0](inputs)[:, 3:5] > 0
    assert active.sum(0).tolist() == [1, 1]
    head, layers = layers_of(model, inputs, labels)
    proof = read_update(head, layers, Rounding(1.2e-7)).proof
    assert proof.count == 1
    (found,) = proof.proposal.inputs[proof.proven]
    assert (found - inputs[0].double()).norm() < 1e-4 * inputs[0].norm()


def test_a_stranger_in_coordinates_is_no_gradient_of_these_weights():
    head, layers = layers_of(network(), *batch(6))
    noise = [(torch.randn_like(weight), torch.randn_like(bias)) for weight, bias in layers]
    reading = read_update(head, noise, Rounding(1.2e-7))
    assert not reading.belonging.is_one_step
    assert reading.proof.count == 0


def test_a_difference_of_weights_spans_as_many_directions_as_records_and_is_explained_whole():
    torch.manual_seed(0)
    wide, deep = nn.Linear(2000, 2000), nn.Linear(2000, 10)
    model, (inputs, labels) = nn.Sequential(nn.Linear(1200, 2000), nn.ReLU(), wide, nn.ReLU(), deep), batch(6)
    before = {name: parameter.detach() for name, parameter in model.named_parameters()}
    steps = torch.autograd.grad(cross_entropy(model(inputs), labels), list(model.parameters()))
    after = {name: old - 0.1 * step for (name, old), step in zip(before.items(), steps, strict=True)}
    update = difference(before, after)
    head, rounding = dense_head(model), rounding_of_difference(before)
    reading = read_update(head, head.layers_of(update), rounding, scale_is_known=False)
    assert len(reading.basis) == 6
    assert reading.proof.explains_all
    assert reading.proof.batch_size == 6
    off = torch.cdist(reading.proof.proposal.inputs, inputs.double()) / inputs.double().norm(dim=1)
    assert (off.amin(1) < reading.proof.error).all()


def test_inputs_that_are_a_little_off_follow_from_the_neurons_that_they_switch_off():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(), nn.Linear(900, 10))
    inputs, labels = batch(6, 40)
    head, layers = layers_of(model, inputs, labels)
    shares, right = torch.full((6,), 1 / 6, dtype=torch.float64), inputs.double()
    rough = right + 1e-3 * torch.randn(6, 6, dtype=torch.float64) @ right
    left = Remainder.of(head, layers, Proposal(rough, labels, 0.999 * shares))
    found = sharpened(head, left, 1e-3)
    assert left.unexplained.max() > 3e-3
    assert found.unexplained.max() < 1e-5
    assert (found.records.inputs - right).norm() < 1e-5 * right.norm()
    assert torch.allclose(found.records.shares, shares, rtol=1e-5)
    stranger = left.by(head, Proposal(rough + torch.randn_like(rough), labels, shares))
    assert sharpened(head, stranger, 1e-3) is stranger


def test_as_many_records_as_the_first_sketch_has_sides_come_back():
    inputs, labels = batch(16, 3072)
    head, layers = layers_of(network(numbers=3072, width=800), inputs, labels, torch.bfloat16)
    assert read_update(head, layers, Rounding.of([torch.bfloat16])).proof.batch_size == 16
