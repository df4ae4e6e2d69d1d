"""The last block or adapters of a network, with parts that start anew: as a plain loop trains them."""

import copy

import pytest
import torch
from torch import nn

from conftest import pictures
from remanence import SGD, AnyModule, InputError, Records

OWN = pictures(9, seed=5)
NUMBERS = OWN.embedding.shape[1]


class Adapted(nn.Module):
    """A frozen layer with LoRA's two matrices beside it, and a head."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(NUMBERS, 12).requires_grad_(False)
        self.down, self.up = nn.Linear(NUMBERS, 2, bias=False), nn.Linear(2, 12, bias=False)
        nn.init.zeros_(self.up.weight)
        self.head = nn.Linear(12, 3)

    def forward(self, values):
        return self.head((self.frozen(values) + self.up(self.down(values))).relu())


def last_block():
    channels = NUMBERS // 4
    block = nn.Unflatten(1, (channels, 4)), nn.Conv1d(channels, 5, 3), nn.ReLU()
    return nn.Sequential(*block, nn.Flatten(), nn.Linear(10, 3))


def by_hand(module, start, labels, epochs, rate):
    trained = [p for p in module.parameters() if p.requires_grad]
    nn.utils.vector_to_parameters(start.clone(), trained)
    optimizer = torch.optim.SGD(trained, lr=rate, momentum=0.9)
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(OWN.embedding), labels).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(trained).detach()


@pytest.mark.parametrize(
    ("make", "fresh"), [(last_block, ("4",)), (Adapted, ("down", "head"))], ids=["block", "LoRA"]
)
def test_training_gives_what_a_plain_loop_gives_from_the_same_start(make, fresh):
    torch.manual_seed(0)
    module = make()
    before = copy.deepcopy(module.state_dict())
    network = AnyModule(module, fresh=fresh)
    labels = OWN.labels % 3
    sets = Records(OWN.embedding, labels)[None]
    found = SGD(network, 8, 0.2, 0.9).release(None, sets, torch.Generator().manual_seed(3))["parameters"][0]
    start = network.initial(1, torch.Generator().manual_seed(3))[0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    expected = by_hand(module, start, labels, 8, 0.2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # largest difference: 1e-6
    assert (found - start).abs().max() > 1e-2


def test_fresh_parts_start_anew_in_every_training_and_others_do_not():
    torch.manual_seed(0)
    network = AnyModule(Adapted(), fresh=("down", "head"))
    one, other = network.initial(2, torch.Generator().manual_seed(0))
    names = {name: p.numel() for name, p in network.trained.items()}
    parts = zip(names, one.split(list(names.values())), other.split(list(names.values())), strict=True)
    alike = {name for name, a, b in parts if torch.equal(a, b)}
    assert alike == {"up.weight"}
    with pytest.raises(InputError, match="no part named 'tail'"):
        AnyModule(Adapted(), fresh=("tail",))
