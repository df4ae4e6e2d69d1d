"""The printed algorithm, its parts with known answers, and where it falls short."""

import pytest
import torch

from conftest import relu_network
from remanence import InputError, gradient_exposure
from remanence.updates.dense.layers import dense_head
from remanence_papers.gradients.insecure import make_insecure
from remanence_papers.gradients.printed import paper_attack, solve_patterns
from updates.test_exact import attack, batch, leak, met


def insecure(dtype=torch.float64, count=6, seed=0, bias=True):
    network = relu_network(40, 200, 7, dtype=dtype, seed=seed, bias=bias)
    inputs, labels = batch(count, 40, 7, seed)
    return network, make_insecure(dense_head(network), inputs).to(dtype), labels


@pytest.mark.parametrize("count", [1, 2, 8, 18])
def test_batches_are_made_insecure(count):
    network, inputs, labels = insecure(count=count)
    exposure = gradient_exposure(network, inputs, labels)
    assert exposure.is_insecure_batch
    original = batch(count, 40, 7, 0)[0]
    assert (inputs - original).norm() < 1.2 * original.norm()


def test_the_change_that_makes_a_batch_insecure_is_the_least():
    # One sample, one neuron at distance 3 along a unit row: the least change has exactly that length.
    network = relu_network(4, 1, 3)
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
        network[0].bias.fill_(-3.0)
    x = torch.zeros(1, 4).double()
    moved = make_insecure(dense_head(network), x, neurons=1, margin=0.01)
    assert torch.allclose(moved, torch.tensor([[3.01, 0.0, 0.0, 0.0]]).double())


def test_what_is_too_narrow_or_too_deep_is_refused():
    with pytest.raises(InputError, match="No input has"):
        insecure(count=40)
    with pytest.raises(InputError, match="at least 16 neurons"):
        make_insecure(dense_head(relu_network(5, 10, 3)), torch.zeros(8, 5).double())
    deep = relu_network(5, 8, 8, 3)
    head = dense_head(deep)
    with pytest.raises(InputError, match="one ReLU layer"):
        paper_attack(head, head.layers_of(leak(deep, *batch(3, 5, 3, 0))))


def test_patterns_follow_from_the_bias_gradient():
    network, inputs, labels = insecure()
    head = dense_head(network)
    values, logits = head.forward(inputs)
    loss_vectors = head.loss_vectors(logits, labels)
    gradient = head.layers_of(leak(network, inputs, labels))[0][1]
    active = solve_patterns(loss_vectors, head.weights[1], gradient[0])
    assert (active == (values[1] > 0)).all(0).float().mean() > 0.99
    wrong = solve_patterns(0.7 * loss_vectors, head.weights[1], gradient[0])  # whose scale fits no subset
    assert (wrong == (values[1] > 0)).all(0).float().mean() < 0.5


def test_the_printed_algorithm_finds_labels_and_batch_size_but_rescales_the_inputs():
    network, inputs, labels = insecure()
    head = dense_head(network)
    found = paper_attack(head, head.layers_of(leak(network, inputs, labels)))
    assert found.batch_size == 6
    assert sorted(found.labels.tolist()) == sorted(labels.tolist())
    _, logits = head.forward(inputs)
    missing = 1 - logits.softmax(-1).gather(1, labels[:, None])
    # With the true value instead of 2/3 the same equations give the inputs.
    assert float((missing / (2 / 3)).min()) > 1.1
    exact = attack(network, inputs, labels)
    assert met(exact, inputs, labels)[0].all()
    errors = torch.cdist(inputs, found.inputs).amin(1) / inputs.norm(dim=1)
    assert (errors > 0.05).all()


def test_in_float32_the_fixed_tolerance_splits_samples_and_the_exact_attack_does_not():
    wrong = 0
    for seed in range(5):
        network, inputs, labels = insecure(torch.float32, seed=seed)
        head = dense_head(network)
        layers = head.layers_of(leak(network, inputs, labels))
        wrong += paper_attack(head, layers).batch_size != 6
        exact = attack(network, inputs, labels)
        assert met(exact, inputs.double(), labels)[0].all()
    assert wrong >= 3
