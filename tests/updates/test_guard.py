"""The guard holds back what the exact attack reads, and what it cannot read."""

import pytest
import torch
from test_exact import batch
from torch import nn
from torch.nn.functional import cross_entropy

from conftest import relu_network
from networks import ViT
from remanence import GradientGuard, InputError, gradient_exposure


def guarded(network, *batches, example=None, noise=0.0):
    """A guard after the gradients of some batches, one on top of the other."""
    guard = GradientGuard(network, example)
    for inputs, labels in batches:
        cross_entropy(network(inputs), labels).backward()
    for parameter in network.parameters() if noise else ():
        parameter.grad += noise * torch.randn_like(parameter)
    return guard


def made(*layers):
    torch.manual_seed(0)
    return nn.Sequential(*(layer() for layer in layers))


def normal(count, numbers, classes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, numbers, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(classes, (count,), generator=generator)


ONE, GELU = (lambda: nn.Linear(64, 10)), (lambda: nn.Linear(40, 96), nn.GELU, lambda: nn.Linear(96, 7))
DROPOUT = (lambda: nn.Linear(30, 500), nn.ReLU, lambda: nn.Dropout(0.5), lambda: nn.Linear(500, 8))
PICTURE = torch.rand(1, 1, 8, 16, generator=torch.Generator().manual_seed(0))
WITHHELD = {  # the network, its batches, and how many records are proven
    "one layer": (made(ONE), [normal(4, 64, 10)], 4),
    "GELU": (made(*GELU), [normal(4, 40, 7)], 4),
    "dropout in training mode": (made(*DROPOUT).train(), [normal(4, 30, 8)], 4),
    "no exclusive neuron": (relu_network(60, 256, 10, seed=1), [normal(16, 60, 10, torch.float64)], 16),
    "accumulated": (relu_network(40, 150, 7, seed=0), [batch(4, 40, 7, seed) for seed in (0, 1)], 8),
    "a picture": (made(ViT).eval()[0], [(PICTURE, torch.tensor([3]))], 1),
}


@pytest.mark.parametrize("case", WITHHELD)
def test_gradients_that_prove_records_are_held_back(case):
    network, batches, proven = WITHHELD[case]
    if case == "no exclusive neuron":
        assert not gradient_exposure(network, *batches[0]).exposed.any()
    was_training, example = network.training, PICTURE if case == "a picture" else None
    guard = guarded(network, *batches, example=example)
    assert guard.withhold()
    assert all(parameter.grad is None for parameter in network.parameters())
    assert (guard.gradients, guard.withheld, guard.proven) == (1, 1, proven)
    assert network.training == was_training


def test_a_crowd_passes_and_keeps_its_gradient():
    network = relu_network(40, 24, 7, seed=0)
    guard = guarded(network, batch(800, 40, 7, 0))
    assert not guard.withhold()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert guard.report() == "0 of 1 gradients withheld, from which 0 records were proven"


def test_a_guard_needs_a_gradient_and_holds_back_noise_that_was_not_declared():
    network = relu_network(40, 150, 7, seed=0)
    with pytest.raises(InputError, match="backward"):
        GradientGuard(network).allows()
    guard = guarded(network, batch(64, 40, 7, 0), noise=0.01)
    assert guard.withhold()
    assert guard.proven == 0
