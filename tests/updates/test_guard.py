"""The guard holds back what the exact attack reads, and what it cannot read."""

import pytest
import torch
from test_exact import batch
from torch.nn.functional import cross_entropy

from conftest import relu_network
from networks import ViT
from remanence import GradientGuard, InputError, gradient_exposure


def test_a_gradient_is_held_back_whether_or_not_a_neuron_is_exclusive():
    network = relu_network(60, 256, 10, seed=1)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(16, 60, generator=generator).double()
    labels = torch.randint(10, (16,), generator=generator)
    assert not gradient_exposure(network, inputs, labels).exposed.any()
    guard = GradientGuard(network)
    cross_entropy(network(inputs), labels).backward()
    assert guard.withhold()
    assert all(parameter.grad is None for parameter in network.parameters())
    assert (guard.gradients, guard.withheld, guard.proven) == (1, 1, 16)


def test_a_crowd_passes_and_keeps_its_gradient():
    network = relu_network(40, 24, 7, seed=0)
    guard = GradientGuard(network)
    inputs, labels = batch(800, 40, 7, 0)
    cross_entropy(network(inputs), labels).backward()
    assert not guard.withhold()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert guard.report() == "0 of 1 gradients withheld, from which 0 records were proven"


def test_a_guard_needs_a_gradient():
    network = relu_network(40, 150, 7, seed=0)
    with pytest.raises(InputError, match="backward"):
        GradientGuard(network).allows()


def test_dropout_in_training_mode_hides_nothing():
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(30, 500), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(500, 8)
    ).train()
    guard = GradientGuard(network)
    cross_entropy(network(torch.randn(4, 30)), torch.arange(4)).backward()
    assert guard.withhold()
    assert guard.proven == 4
    assert network[2].training


def test_accumulated_gradients_count_together():
    network = relu_network(40, 150, 7, seed=0)
    guard = GradientGuard(network)
    for seed in (0, 1):
        inputs, labels = batch(4, 40, 7, seed)
        cross_entropy(network(inputs), labels).backward()
    assert guard.withhold()
    assert guard.proven == 8


def test_pictures_are_read_and_noise_that_nobody_declared_is_held_back():
    torch.manual_seed(0)
    model, pictures = ViT().eval(), torch.rand(1, 1, 8, 16)
    guard = GradientGuard(model, pictures)
    cross_entropy(model(pictures), torch.tensor([3])).backward()
    assert guard.withhold()
    assert guard.proven == 1
    network, (inputs, labels) = relu_network(40, 150, 7, seed=0), batch(64, 40, 7, 0)
    guard = GradientGuard(network)
    cross_entropy(network(inputs), labels).backward()
    for parameter in network.parameters():
        parameter.grad += 0.01 * torch.randn_like(parameter)
    assert guard.withhold()
    assert guard.proven == 0
