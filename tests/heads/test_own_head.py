"""Heads by somebody's own training loop: the loop is the recipe, and gets copies of the data."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from conftest import heads_game, pictures
from remanence import HeadAudit, InputError, LinearReader, OwnHead, TransferHead, audit_head, play
from remanence.core.exceptions import MisfitError
from remanence.heads.belonging import fit

OWN, PUBLIC = pictures(3, seed=5), pictures(90, seed=1)


def mixed(features, labels, seed, epochs=6):
    """Mixup and averaged weights, which no recipe has words for."""
    torch.manual_seed(seed)
    head = nn.Linear(features.shape[1], 3)
    nn.init.normal_(head.weight, std=0.01)
    average = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
    for _ in range(epochs):
        other, share = torch.randperm(len(labels)), float(torch.rand(())) * 0.2
        answers = head((1 - share) * features + share * features[other])
        loss = (1 - share) * cross_entropy(answers, labels) + share * cross_entropy(answers, labels[other])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, tensor in head.state_dict().items():
            average[name].lerp_(tensor, 0.5)
    features.fill_(torch.nan)
    labels.fill_(0)
    return average


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_loop_is_called_on_copies_and_decided_by_its_seed():
    recipe, sets = OwnHead(mixed, classes=3), OWN[None][torch.zeros(4, dtype=torch.int64)]
    one, other = (recipe.release(None, sets, generator(1)) for _ in range(2))
    assert torch.equal(one["weight"], other["weight"])
    assert not torch.equal(one["weight"][0], one["weight"][1])
    assert sets.embedding.isfinite().all()
    assert sets.labels[0].tolist() == OWN.labels.tolist()
    seed = int(torch.randint(2**62, (4,), generator=generator(1))[2])
    by_hand = mixed(OWN.embedding.clone(), OWN.labels.clone(), seed)
    torch.testing.assert_close(one["weight"][2], by_hand["weight"])


def test_heads_of_a_loop_are_attacked_and_a_released_one_must_be_of_that_loop():
    recipe = OwnHead(mixed, classes=3)
    settings = HeadAudit(trials=30, attacks=[LinearReader(200)])
    given = OWN.embedding, OWN.features, OWN.labels, recipe
    head = mixed(OWN.embedding.clone(), OWN.labels.clone(), 77)
    result = audit_head(*given, prior=PUBLIC, released=head, settings=settings)
    assert result.strongest.main.lower > result.strongest.control.rate
    shorter = mixed(OWN.embedding.clone(), OWN.labels.clone(), 77, epochs=1)
    with pytest.raises(MisfitError, match="does not match the declared recipe"):
        audit_head(*given, prior=PUBLIC, released=shorter, settings=settings)


def test_a_loop_that_does_what_a_recipe_says_is_one_of_its_heads():
    def plain(features, labels, seed):
        torch.manual_seed(seed)
        head = nn.Linear(features.shape[1], 3)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        for _ in range(30):
            optimizer.zero_grad()
            cross_entropy(head(features), labels).backward()
            optimizer.step()
        return head.state_dict()

    made = OwnHead(plain, classes=3).release(None, OWN[None], generator(3))
    recipe = TransferHead(3, 30, 0.1, initialisation="pytorch")
    assert fit(recipe, OWN, PUBLIC, made, generator(), others=0).belongs
    game = heads_game(epochs=30, learning_rate=0.1, initialisation="pytorch")
    games = game, replace(game, mechanism=OwnHead(plain, classes=3))
    told, own = (play(each, LinearReader(200), trials=40).main.rate for each in games)
    assert abs(told - own) < 0.15  # 120 drawings: four standard errors are 0.18


def test_what_no_head_comes_out_of_is_refused():
    for known, train, words in (
        (None, lambda x, y, seed: nn.Linear(2, 3).state_dict(), "weights do not fit the declared head"),
        (None, lambda x, y, seed: nn.Linear(2, 3), "not a release"),
        (None, lambda x, y, seed: 1 / 0, "raised an error"),
        (OWN, mixed, "targets alone"),
    ):
        with pytest.raises(InputError, match=words):
            OwnHead(train, classes=3).release(known, OWN[None], generator())
    with pytest.raises(InputError, match="not a training function"):
        OwnHead("train.py", classes=3)
