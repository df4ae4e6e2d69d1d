"""The last block or adapters of a network, trained by the many: as a plain loop trains them, and attacked."""

import copy

import pytest
import torch
from torch import nn

from conftest import pictures
from remanence import (
    SGD,
    AnyModule,
    Criterion,
    FineTuning,
    Game,
    InputError,
    Reconstructor,
    Records,
    Reduction,
    StratifiedPrior,
    mean_squared_error,
    play,
)

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
def test_fine_tuning_gives_what_a_plain_loop_gives_from_the_same_start(make, fresh):
    torch.manual_seed(0)
    module = make()
    before = copy.deepcopy(module.state_dict())
    network = AnyModule(module, fresh=fresh)
    labels = OWN.labels % 3
    sets = Records(OWN.features, labels, embedding=OWN.embedding)[None]
    training = FineTuning(SGD(network, 8, 0.2, 0.9))
    found = training.release(None, sets, torch.Generator().manual_seed(3))["parameters"][0]
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


def test_embeddings_of_another_shape_are_refused():
    training = FineTuning(SGD(AnyModule(nn.Sequential(nn.Flatten(), nn.Linear(NUMBERS, 3))), 2, 0.1), (5, 7))
    with pytest.raises(InputError, match="embeddings have another shape"):
        training.release(None, OWN[None], torch.Generator())


def test_a_weak_adversary_plays_against_fine_tuned_adapters():
    torch.manual_seed(0)
    public, own = pictures(120, seed=1), pictures(30, seed=2)
    training = FineTuning(SGD(AnyModule(Adapted(), fresh=("down", "head")), 3, 0.3))
    criterion = Criterion(mean_squared_error, 0.5, Reduction.CLASS)
    game = Game(training, StratifiedPrior(public, 1), None, criterion, targets=StratifiedPrior(own, 1))
    found = play(game, Reconstructor(shadows=40, steps=5, batch=16, width=16), trials=8)
    assert found.main.trials == found.control.trials == 24
    release = training.release(None, OWN[None], torch.Generator().manual_seed(0))
    assert training.answer(release, OWN).shape == (1, 9, 3)
