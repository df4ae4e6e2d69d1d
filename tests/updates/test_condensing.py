"""A large first layer in coordinates of its gradient's span poses the same problem."""

import pytest
import torch
from test_batches import batch, network

from one_update import read_update, update
from remanence.updates.dense.belonging import belonging
from remanence.updates.dense.coordinates import condensed
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import Proposal, Remainder, sharpened
from remanence.updates.opening import difference, rounding_of_difference
from remanence.updates.rounding import Rounding


def crowd(size, numbers=1200, width=600):
    model = network(numbers, width, 10)
    return model, *batch(size, model, 1)


def layers_of(model, inputs, labels, dtype=None):
    head = dense_head(model)
    return head, head.layers_of(update(model, inputs, labels, dtype=dtype))


@pytest.mark.parametrize("size", [6, 300])
def test_norms_and_the_balance_of_neurons_are_what_they_were(size):
    head, layers = layers_of(*crowd(size))
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
    model, inputs, labels = crowd(6)
    head, layers = layers_of(model, inputs, labels, dtype)
    reading = read_update(head, layers, Rounding.of([dtype]))
    assert reading.proof.explains_all
    assert reading.proof.batch_size == 6
    off = torch.cdist(reading.proof.proposal.inputs, inputs.double()) / inputs.double().norm(dim=1)
    assert off.amin(0).max() < error
    assert torch.equal(reading.proof.proposal.labels.sort().values, labels.sort().values)


@pytest.mark.parametrize("size", [300, pytest.param(220, marks=pytest.mark.slow)])
def test_in_a_large_batch_a_record_with_two_neurons_to_itself_comes_back_and_no_other(size):
    model, inputs, labels = crowd(size, width=500)
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
    head, layers = layers_of(*crowd(6))
    noise = [(torch.randn_like(weight), torch.randn_like(bias)) for weight, bias in layers]
    reading = read_update(head, noise, Rounding(1.2e-7))
    assert not reading.belonging.is_one_step
    assert reading.proof.count == 0


def test_a_difference_of_weights_spans_as_many_directions_as_records_and_is_explained_whole():
    model = network(1200, 2000, 2000, 10)
    inputs, labels = batch(6, model, 1)
    before = {name: parameter.detach() for name, parameter in model.named_parameters()}
    after = {name: before[name] - 0.1 * step for name, step in update(model, inputs, labels).items()}
    head, rounding = dense_head(model), rounding_of_difference(before)
    reading = read_update(head, head.layers_of(difference(before, after)), rounding, scale_is_known=False)
    assert len(reading.basis) == 6
    assert reading.proof.explains_all
    assert reading.proof.batch_size == 6
    off = torch.cdist(reading.proof.proposal.inputs, inputs.double()) / inputs.double().norm(dim=1)
    assert (off.amin(1) < reading.proof.error).all()


def test_inputs_that_are_a_little_off_follow_from_the_neurons_that_they_switch_off():
    model = network(40, 900, 900, 10)
    inputs, labels = batch(6, model, 1)
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
    head, layers = layers_of(*crowd(16, 3072, 800), torch.bfloat16)
    assert read_update(head, layers, Rounding.of([torch.bfloat16])).proof.batch_size == 16
