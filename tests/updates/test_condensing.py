"""A large first layer in coordinates of its gradient's span poses the same problem."""

import pytest
import torch
from test_batches import batch, network

from one_update import foreign_update, off, read, trained, update
from remanence.updates.declared import LocalTraining
from remanence.updates.dense.belonging import belonging
from remanence.updates.dense.coordinates import condensed
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import Proposal, Remainder, sharpened
from remanence.updates.opening import difference, rounding_of_difference
from remanence.updates.rounding import Rounding


def crowd(size, numbers=1200, width=600):
    model = network(numbers, width, 10)
    return model, *batch(size, model, 1)


def layers_of(model, inputs, labels):
    head = dense_head(model)
    return head, head.layers_of(update(model, inputs, labels))


@pytest.mark.parametrize("size", [6, 300])
def test_norms_and_the_balance_of_neurons_are_what_they_were(size):
    (head, one), rounding = layers_of(*crowd(size)), Rounding(1.2e-7)
    shorter, (short,), _ = condensed(head, one[:1], rounding)
    whole, _ = one[0]
    assert short.shape[1] < whole.shape[1] / 4
    assert torch.allclose(short.norm(dim=1), whole.norm(dim=1), rtol=1e-6)
    own = (head.weights[0] * whole).sum(1)
    there = (shorter.weights[0] * short).sum(1)
    assert torch.allclose(there, own, atol=float(1e-6 * own.abs().max()))
    assert belonging(shorter, [(short, one[0][1]), one[1]], rounding).is_one_step
    assert belonging(head, one, rounding).is_one_step


@pytest.mark.parametrize(("shape", "dtype", "error"), [
    ((6, 1200, 600), torch.float32, 1e-5),
    ((6, 1200, 600), torch.bfloat16, 2e-2),
    ((16, 3072, 800), torch.bfloat16, 5e-2),  # as many records as the first sketch has sides
])  # fmt: skip
def test_records_come_back_from_coordinates(shape, dtype, error):
    model, inputs, labels = crowd(*shape)
    proof = read(model, update(model, inputs, labels, dtype=dtype)).proof
    assert (proof.explains_all, proof.batch_size) == (True, len(inputs))
    assert off(proof.proposal.inputs, inputs).amin(0).max() < error
    assert torch.equal(proof.proposal.labels.sort().values, labels.sort().values)


@pytest.mark.parametrize("size", [300, pytest.param(220, marks=pytest.mark.slow)])
def test_in_a_large_batch_a_record_with_two_neurons_to_itself_comes_back_and_no_other(size):
    model, inputs, labels = crowd(size, width=500)
    with torch.no_grad():  # two neurons that the first record alone activates
        for neuron in (3, 4):
            model[0].weight[neuron] += inputs[0] / inputs[0].norm()
            model[0].bias[neuron] = 0.5 * (inputs @ model[0].weight[neuron])[0] * -1
        active = model[0](inputs)[:, 3:5] > 0
    assert active.sum(0).tolist() == [1, 1]
    proof = read(model, update(model, inputs, labels)).proof
    assert proof.count == 1
    assert off(proof.proposal.inputs[proof.proven], inputs)[0, 0] < 1e-4


def test_a_stranger_in_coordinates_is_no_gradient_of_these_weights():
    model, inputs, labels = crowd(6)
    reading = read(model, foreign_update("noise", model, inputs, labels))
    assert not reading.belonging.is_one_step
    assert reading.proof.count == 0


def test_a_difference_of_weights_spans_as_many_directions_as_records_and_is_explained_whole():
    model = network(1200, 2000, 2000, 10)
    inputs, labels = batch(6, model, 1)
    before, after = trained(model, inputs, labels, LocalTraining(1, 0.1))
    sent, rounding = difference(before, after), rounding_of_difference(before)
    reading = read(model, sent, rounding, scale_is_known=False)
    assert (len(reading.basis), reading.proof.explains_all, reading.proof.batch_size) == (6, True, 6)
    assert (off(reading.proof.proposal.inputs, inputs).amin(1) < reading.proof.error).all()


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
