"""The guard sees what the analysis sees, and acts on it."""

import pytest
import torch
from test_exact import batch
from torch.nn.functional import cross_entropy

from conftest import relu_network
from remanence import ExclusivityGuard, InputError, gradient_exposure


def test_the_guard_agrees_with_the_analysis():
    network = relu_network(40, 150, 7, seed=0)
    verdicts = set()
    with ExclusivityGuard(network) as guard:
        for seed in range(12):
            inputs, labels = batch(8, 40, 7, seed)
            cross_entropy(network(inputs), labels).backward()
            exposed = guard.exposed.clone()  # the analysis runs the model too
            assert torch.equal(exposed, gradient_exposure(network, inputs, labels).exposed)
            verdicts.update(exposed.tolist())
            assert guard.allows() == (not exposed.any())
    assert verdicts == {True, False}
    assert guard.batches == 12
    assert "12 batches" in guard.report()


def test_an_exposed_batch_sends_no_gradient():
    network = relu_network(40, 150, 7, seed=0)
    inputs, labels = batch(8, 40, 7, 0)
    with ExclusivityGuard(network) as guard:
        cross_entropy(network(inputs), labels).backward()
        assert guard.withhold()
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_batch_without_exclusive_neurons_passes():
    network = relu_network(40, 150, 7, seed=0)
    twice = batch(4, 40, 7, 0)[0].repeat(2, 1)  # every neuron is active for an even number of samples
    with ExclusivityGuard(network) as guard:
        cross_entropy(network(twice), torch.arange(8) % 7).backward()
        assert not guard.withhold()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_the_hook_is_gone_afterwards_and_an_unused_guard_says_so():
    network = relu_network(40, 150, 7, seed=0)
    guard = ExclusivityGuard(network)
    with pytest.raises(InputError, match="seen no batch"):
        _ = guard.exposed
    with guard:
        pass
    assert not network[0]._forward_hooks
    assert guard.report() == "no batch seen"


def test_a_thorough_guard_holds_back_what_comes_back_without_exclusive_neurons():
    network = relu_network(60, 256, 10, seed=1)
    generator = torch.Generator().manual_seed(1)
    inputs, labels = (
        torch.randn(16, 60, generator=generator).double(),
        torch.randint(10, (16,), generator=generator),
    )
    for thorough in (False, True):
        with ExclusivityGuard(network, thorough=thorough) as guard:
            network.zero_grad()
            cross_entropy(network(inputs), labels).backward()
            assert not guard.exposed.any()
            assert guard.withhold() == thorough
    assert guard.samples_exposed == 16
    assert "proven by an exact attack" in guard.report()


def test_a_thorough_guard_needs_a_gradient():
    network = relu_network(40, 150, 7, seed=0)
    with ExclusivityGuard(network, thorough=True) as guard:
        network(batch(8, 40, 7, 0)[0])
        with pytest.raises(InputError, match="backward"):
            guard.allows()


def test_dropout_in_training_mode_hides_nothing_from_a_thorough_guard():
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(30, 500), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(500, 8)
    ).train()
    inputs, labels = torch.randn(4, 30), torch.arange(4)
    with ExclusivityGuard(network, thorough=True) as guard:
        cross_entropy(network(inputs), labels).backward()
        assert guard.withhold()
    assert guard.samples_exposed == 4
    assert network.training
    assert network[2].training


@pytest.mark.parametrize("thorough", [False, True])
def test_a_validation_pass_hides_no_batch_and_accumulated_gradients_count_together(thorough):
    network = relu_network(40, 150, 7, seed=0)
    (inputs, labels), (others, answers) = batch(4, 40, 7, 0), batch(4, 40, 7, 1)
    with ExclusivityGuard(network, thorough=thorough) as guard:
        cross_entropy(network(inputs), labels).backward()
        with torch.no_grad():
            network(batch(64, 40, 7, 5)[0])
        assert len(guard.exposed) == 4
        assert guard.withhold()
        cross_entropy(network(inputs), labels).backward()
        cross_entropy(network(others), answers).backward()
        assert len(guard.exposed) == 8
        assert guard.withhold()
    assert guard.samples == 12
    assert "2 batches may not leave" in guard.report()


def test_a_thorough_guard_reads_pictures_and_holds_back_what_it_cannot_read():
    from test_patches import ViT

    torch.manual_seed(0)
    model = ViT().eval()
    pictures, labels = torch.rand(1, 1, 8, 16), torch.tensor([3])
    with ExclusivityGuard(model, pictures, thorough=True) as guard:
        cross_entropy(model(pictures), labels).backward()
        assert guard.withhold()
        assert guard.samples_exposed == 1
        network = relu_network(40, 150, 7, seed=0)
    with ExclusivityGuard(network, thorough=True) as guard:
        cross_entropy(network(batch(64, 40, 7, 0)[0]), batch(64, 40, 7, 0)[1]).backward()
        for parameter in network.parameters():
            parameter.grad += 0.01 * torch.randn_like(parameter)
        assert guard.withhold(), "noise that nobody declared cannot be read"
    with pytest.raises(InputError, match="thorough"):
        ExclusivityGuard(model, pictures)
