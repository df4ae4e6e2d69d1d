"""Other batches with the same gradient, and how far from the batch they can be."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from conftest import relu_network
from remanence import InputError, gradient_exposure
from remanence_papers.gradients.artifacts import ArtifactSpace, artifact_space, largest_change, printed_bound

BOX = (-1.0, 1.0)


def pictures(count, numbers, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, numbers, generator=generator).double() * 2 - 1, torch.arange(count) % 5


def gradients(network, inputs, labels):
    return torch.autograd.grad(cross_entropy(network(inputs), labels), list(network.parameters()))


def without_first_relu(network):
    network[1] = nn.Identity()
    return network


@pytest.mark.parametrize("with_relu", [True, False])
def test_an_artifact_batch_has_the_same_gradient(with_relu):
    network = relu_network(30, 7, 40, 5)
    network = network if with_relu else without_first_relu(network)
    inputs, labels = pictures(12, 30)
    change = largest_change(artifact_space(network, inputs, labels), inputs, value_range=BOX)
    moved = inputs + change
    assert moved.min() >= -1 - 1e-6
    assert moved.max() <= 1 + 1e-6
    assert change.square().mean().sqrt() > 0.05, "the change must be one that can be seen"
    before, after = (gradients(network, each, labels) for each in (inputs, moved))
    assert max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True)) < 1e-7


def test_a_batch_no_larger_than_the_layer_has_no_other():
    network = without_first_relu(relu_network(30, 7, 40, 5))
    inputs, labels = pictures(7, 30)
    assert not artifact_space(network, inputs, labels).ambiguous.any()
    inputs, labels = pictures(8, 30)
    assert artifact_space(network, inputs, labels).ambiguous.any()


def test_exposed_samples_are_never_ambiguous():
    seen = set()
    for seed in range(6):
        network = relu_network(30, 7, 40, 5, seed=seed)
        inputs, labels = pictures(10, 30, seed)
        exposed = gradient_exposure(network, inputs, labels).exposed
        ambiguous = artifact_space(network, inputs, labels).ambiguous
        assert not (exposed & ambiguous).any()
        seen.update(zip(exposed.tolist(), ambiguous.tolist(), strict=True))
    assert {(True, False), (False, True)} <= seen


def test_the_printed_bound_exceeds_what_is_possible():
    # W₀ = (1, 0.1), x₁ = (1, 0.9), x₂ = 0, α = (0.05, 1): Equation 9 says 0.632, the true maximum is 0.0101.
    weight = torch.tensor([[1.0, 0.1]]).double()
    alphas = torch.tensor([[0.05, 1.0]]).double()
    x = torch.tensor([[1.0, 0.9], [0.0, 0.0]]).double()
    assert printed_bound(alphas, weight, x) == pytest.approx(0.632, abs=2e-3)
    space = ArtifactSpace(alphas, weight)
    changes = [largest_change(space, x, value_range=BOX, seed=seed) for seed in range(6)]
    reached = max(float(change.square().sum()) for change in changes)
    # One dimension: Δ = c (1, −0.05)ᵀ (−0.1, 1), and x₁'s second number may grow by 0.1 at most, the first not at all.
    assert reached == pytest.approx(0.0101 * (1 + 0.05**2), rel=2e-2)


def test_convolutions_in_front_are_refused():
    network = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(18, 5))
    with pytest.raises(InputError, match="does not read the inputs"):
        artifact_space(network, torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))
