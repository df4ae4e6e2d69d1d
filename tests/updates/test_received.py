"""Models that a server made to read records are named; ordinary ones, trained or not, are not."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from remanence.updates.received import traps


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.mark.parametrize("seed", range(3))
def test_ordinary_networks_raise_no_alarm(seed):
    model = network(seed)
    assert traps(model) == []
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    inputs = torch.randn(256, 64)
    labels = (inputs[:, :10]).argmax(1)
    for _ in range(200):
        optimiser.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    assert traps(model) == []


def test_bins_that_isolate_every_record_are_named():
    model = network()
    with torch.no_grad():  # Robbing the Fed: the mean of the input, cut into bins
        model[0].weight.copy_(torch.full((128, 64), 1 / 64))
        model[0].bias.copy_(-torch.linspace(-0.3, 0.3, 128))
    found = traps(model)
    assert [(trap.layer, trap.kind, trap.share) for trap in found] == [("0", "bins", 1.0)]
    assert "bin of its own" in str(found[0])


@pytest.mark.parametrize(("sign", "kind"), [(1, "linear gates"), (-1, "rare gates")])
def test_gates_that_are_always_open_or_shut_are_named(sign, kind):
    model = network()
    with torch.no_grad():
        model[2].bias.fill_(sign * 50.0)
    assert [(trap.layer, trap.kind) for trap in traps(model)] == [("2", kind)]
