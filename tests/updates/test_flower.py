"""The mods' own work, on stand-ins for Flower's messages; `make test-flower` runs them in a federation."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from test_exact import batch

from conftest import relu_network
from one_update import trained
from remanence.updates import flower
from remanence.updates.declared import Declared, LocalTraining, Noise
from remanence.updates.flower import passing, record_updates, withhold_exposed
from remanence.updates.guard import reason_to_withhold


def message(*states):
    """A message with these sets of arrays."""
    sets = {str(place): SimpleNamespace(to_torch_state_dict=lambda s=s: s) for place, s in enumerate(states)}
    content = SimpleNamespace(array_records=sets)
    return SimpleNamespace(content=content, state=states[0], has_error=lambda: False)


def one_step(network, count, steps=1):
    """The network's state before and after a step on a batch, or several."""
    inputs, labels = batch(count, 40, 7, 0)
    return trained(network, inputs.to(next(network.parameters())), labels, LocalTraining(steps, 0.1))


ONE_STEP = Declared(LocalTraining(1, 0.1))


@pytest.fixture
def sent(monkeypatch):
    """What a mod lets through: the reply, or the reason in the error that goes out instead."""
    monkeypatch.setattr(flower, "_error", lambda _, why: why)

    def send(mod, before, *after):
        return mod(message(before), SimpleNamespace(node_id=5), lambda *_: message(*after))

    return send


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_update_of_one_step_is_read_like_its_gradient(dtype):
    network = relu_network(40, 150, 7, dtype=dtype, seed=0)
    before, after = one_step(network, 6)
    make = relu_network(40, 150, 7, dtype=dtype)
    assert reason_to_withhold(make, before, after, ONE_STEP) == "6 samples can be read off it"
    assert reason_to_withhold(make, before, before, ONE_STEP) is None


def test_updates_are_written_for_an_audit(tmp_path):
    before, after = one_step(relu_network(40, 150, 7, seed=0), 6)
    mod = record_updates(tmp_path)
    for _ in range(2):
        reply = mod(message(before), SimpleNamespace(node_id=5), lambda *_: message(after))
        assert reply.state is after, "what the client sends is not changed"
    assert len(list(tmp_path.glob("update-5-*"))) == 2, "a second round does not overwrite the first"
    update, weights = (load_file(tmp_path / f"{kind}-5-1.safetensors") for kind in ("update", "weights"))
    for name in before:
        assert torch.equal(weights[name], before[name])
        assert torch.allclose(update[name], after[name] - before[name])


def test_only_what_was_read_whole_as_declared_passes(sent):
    network = relu_network(40, 24, 7, seed=0)
    before, crowd = one_step(network, 800)
    torch.manual_seed(7)  # noise that has nothing to do with the weights
    make = partial(relu_network, 40, 24, 7)
    mod = withhold_exposed(make, ONE_STEP)
    assert sent(mod, before, crowd).state is crowd, "a step on eight hundred"
    _, several = one_step(network, 800, steps=5)
    assert "one step" in sent(mod, before, several), "five steps where one was declared"
    noisy = {name: value + 0.05 * torch.randn_like(value) for name, value in crowd.items()}
    assert isinstance(sent(mod, before, noisy), str), "noise that nobody declared"
    broken = {name: value.clone().fill_(torch.nan) for name, value in crowd.items()}
    assert "not finite" in sent(mod, before, broken)
    more = {"gradient": torch.randn(3)}
    assert "not the network" in sent(mod, before, crowd, more), "a second set of arrays"
    assert sent(mod, before, crowd, crowd).state is crowd
    kept = passing([message(crowd), message(several)], before, make, ONE_STEP)
    assert [reply.state is crowd for reply in kept] == [True], "on the server"
    declared = Declared(LocalTraining(1, 0.1), batch_size=10, noise=Noise(5.0, 1.0))
    dp = {name: value + 0.1 * 0.5 * torch.randn_like(value) for name, value in crowd.items()}
    noised = withhold_exposed(make, declared)
    assert sent(noised, before, dp).state is dp, "noise that was declared, and is there"


def with_buffers():
    first = torch.nn.Unflatten(1, (40, 1)), torch.nn.BatchNorm1d(40), torch.nn.Flatten()
    return torch.nn.Sequential(*first, *relu_network(40, 24, 7, seed=0)).double()


def partly_frozen():
    network = relu_network(40, 150, 24, 7, seed=0)
    network[0].requires_grad_(False)
    return network


def tied():
    network = relu_network(40, 40, 40, 24, 7, seed=0)
    network[2].weight = network[0].weight
    return network


@pytest.mark.parametrize(("make", "changed", "why"), [
    (tied, "2.weight", "not trained and not read"),
    (lambda: relu_network(40, 24, 7, seed=0), "more", "not the network"),
    (with_buffers, "1.running_mean", "not trained and not read"),
    (partly_frozen, "0.weight", "not trained and not read"),
])  # fmt: skip
@pytest.mark.parametrize("count", [0, 800])
def test_an_update_that_moves_what_is_not_trained_is_withheld(make, changed, why, count):
    before, after = one_step(make().eval(), count) if count else [make().state_dict()] * 2
    record = {changed: batch(1, 40, 7, 0)[0][0]}
    if changed.endswith("weight"):
        record = {changed: before[changed] + record[changed]}
    assert reason_to_withhold(make(), before, after, ONE_STEP) is None or make is partly_frozen
    assert why in reason_to_withhold(make(), before, {**after, **record}, ONE_STEP)
    allowed = reason_to_withhold(make(), before, {**after, **record}, ONE_STEP, allow_untested=True)
    assert (allowed is None) == (changed == "1.running_mean")


def test_a_step_up_the_gradient_is_read_and_whatever_is_no_tensor_is_withheld():
    network = relu_network(40, 150, 7, seed=0)
    before, after = one_step(network, 6)
    make = relu_network(40, 150, 7)
    up = {name: 2 * before[name] - value for name, value in after.items()}
    assert reason_to_withhold(make, before, up, ONE_STEP) == "6 samples can be read off it"
    for value in (None, 3, after["0.bias"].to_sparse(), after["0.bias"].to("meta")):
        assert reason_to_withhold(make, before, after | {"0.bias": value}, ONE_STEP)


def test_what_cannot_be_tested_is_withheld_unless_that_is_allowed(sent):
    def make():
        return torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.GELU(), torch.nn.Linear(24, 7)).double()

    torch.manual_seed(0)
    before, crowd = one_step(make(), 400)
    assert "cannot be tested" in sent(withhold_exposed(make, ONE_STEP), before, crowd)
    assert sent(withhold_exposed(make, ONE_STEP, allow_untested=True), before, crowd).state is crowd
