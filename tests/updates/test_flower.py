"""The mods' own work, on stand-ins for Flower's messages; `make test-flower` runs them in a federation."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from test_exact import batch
from torch.nn.functional import cross_entropy

from conftest import relu_network
from remanence import InputError, gradient_exposure
from remanence.updates.flower import exposed_samples, record_updates, withhold_exposed
from remanence.updates.local_training import LocalTraining


@dataclass
class Arrays:
    state: dict

    def to_torch_state_dict(self):
        return self.state


@dataclass
class FakeMessage:
    state: dict

    @property
    def content(self):
        return SimpleNamespace(array_records={"arrays": Arrays(self.state)})

    def has_error(self):
        return False


def one_step(network, count, rate=0.1, seed=0):
    """The network's state before and after a step on a batch."""
    before = {name: value.clone() for name, value in network.state_dict().items()}
    inputs, labels = batch(count, 40, 7, seed)
    cross_entropy(network(inputs.to(next(network.parameters()).dtype)), labels).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= rate * parameter.grad
    return before, network.state_dict()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_update_of_one_step_is_read_like_its_gradient(dtype):
    network = relu_network(40, 150, 7, dtype=dtype, seed=0)
    before, after = one_step(network, 6)
    declared = LocalTraining(learning_rate=0.1)
    assert exposed_samples(relu_network(40, 150, 7, dtype=dtype), before, after, training=declared) == 6
    assert exposed_samples(relu_network(40, 150, 7, dtype=dtype), before, before, training=declared) == 0


def test_updates_are_written_for_an_audit(tmp_path):
    before, after = one_step(relu_network(40, 150, 7, seed=0), 6)
    mod = record_updates(tmp_path)
    for _ in range(2):
        reply = mod(FakeMessage(before), SimpleNamespace(node_id=5), lambda *_: FakeMessage(after))
        assert reply.state is after, "what the client sends is not changed"
    assert len(list(tmp_path.glob("update-5-*"))) == 2, "a second round does not overwrite the first"
    update, weights = (load_file(tmp_path / f"{kind}-5-1.safetensors") for kind in ("update", "weights"))
    for name in before:
        assert torch.equal(weights[name], before[name])
        assert torch.allclose(update[name], after[name] - before[name])


def test_an_update_that_exposes_nobody_passes():
    before, after = one_step(relu_network(40, 150, 7, seed=0), 6)
    sent = {name: before[name] + 0.01 * torch.randn_like(after[name]) for name in after}
    mod = withhold_exposed(lambda: relu_network(40, 150, 7), learning_rate=0.1)
    reply = mod(FakeMessage(before), SimpleNamespace(node_id=5), lambda *_: FakeMessage(sent))
    assert reply.state is sent


def test_a_learning_rate_of_zero_is_refused():
    with pytest.raises(InputError, match="learning_rate"):
        LocalTraining(learning_rate=0.0)


def test_an_update_without_exclusive_neurons_is_held_back_too():
    # Centred inputs: every neuron is shared, and the whole batch comes back by the sparsity of the gradient's columns.
    network = relu_network(60, 256, 10, seed=1)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    inputs, labels = (
        torch.randn(16, 60, generator=generator).double(),
        torch.randint(10, (16,), generator=generator),
    )
    assert not gradient_exposure(network, inputs, labels).exposed.any()
    cross_entropy(network(inputs), labels).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 0.1 * parameter.grad
    declared = LocalTraining(learning_rate=0.1)
    assert exposed_samples(relu_network(60, 256, 10), before, network.state_dict(), training=declared) == 16
