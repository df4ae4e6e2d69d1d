import dataclasses
import itertools

import pytest
import torch
from small_models import random_model

from remanence.texts import attacks as search
from remanence.texts.attacks import NearVerbatim
from remanence.texts.mechanism import Secret
from remanence.texts.probabilities import GREEDY, Decoding, log_probabilities


def distance(a, b):
    """Levenshtein's, by its recursive definition."""
    if not a or not b:
        return len(a) + len(b)
    change = distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(change, distance(a[1:], b) + 1, distance(a, b[1:]) + 1)


def enumerated(model, secret, decoding, edits):
    """The mass of all outputs that come near the secret for the first time with their last token."""
    longest = len(secret.tokens) + edits
    near = []
    for length in range(1, longest + 1):
        for output in itertools.product(range(model.vocabulary), repeat=length):
            beginnings = [distance(output[:n], secret.tokens) <= edits for n in range(length + 1)]
            if beginnings[-1] and not any(beginnings[:-1]):
                near.append(Secret(secret.prompt, output, 1))
    return float(log_probabilities(model, near, [decoding]).exp().sum())


@pytest.mark.parametrize("edits", [0, 1, 2])
@pytest.mark.parametrize("decoding", [Decoding(), Decoding(top_k=2), Decoding(0.5, top_p=0.9)], ids=str)
def test_the_bracket_closes_on_what_enumeration_finds(edits, decoding):
    model = random_model(4, seed=3)
    for tokens in ((1, 3, 0), (2, 2, 1)):
        secret = Secret((0, 1), tokens, 1)
        exact = enumerated(model, secret, decoding, edits)
        found = NearVerbatim(edits, decoding=decoding).bracket(model, secret)
        assert found.lower <= exact + 1e-6
        assert exact <= found.upper + 1e-6
        assert found.upper - found.lower <= 1.1e-3 * max(found.lower, 1e-3)


def test_a_search_that_stops_early_brackets_still_and_more_work_never_widens_it():
    model, secret = random_model(6, seed=5), Secret((4, 2), (1, 0, 3, 2, 5), 1)
    brackets = [NearVerbatim(2, n).bracket(model, secret) for n in (1, 10, 100, 1000, 5000)]
    for wide, narrow in itertools.pairwise(brackets):
        assert wide.lower <= narrow.lower + 1e-12
        assert narrow.upper <= wide.upper + 1e-12
    assert brackets[0].upper - brackets[0].lower > 10 * (brackets[-1].upper - brackets[-1].lower)


def test_greedy_comes_near_or_does_not():
    model = random_model(5)
    said = []
    for _ in range(4):
        said.append(int(model.logits(torch.tensor([[1, 2, *said]]))[0, -1].argmax()))
    wrong = (said[1] + 1) % 5
    near = Secret((1, 2), (said[0], wrong, said[2], said[3]), 1)
    assert NearVerbatim(0, decoding=GREEDY).bracket(model, near).upper == 0
    assert NearVerbatim(1, decoding=GREEDY).bracket(model, near).lower == 1


def test_at_least_one_token_of_a_secret_must_come_out():
    one, all_of_it = (
        NearVerbatim(edits).bracket(random_model(), Secret((1,), (2, 3), 1)) for edits in (1, 2)
    )
    assert one == all_of_it
    assert one.upper < 1


@pytest.mark.parametrize("followed", [1, 2])
def test_what_is_not_followed_counts_as_unsearched(monkeypatch, followed):
    monkeypatch.setattr(search, "_CHILDREN", followed)
    model, secret = random_model(4, seed=3), Secret((0, 1), (1, 3, 0), 1)
    exact = enumerated(model, secret, Decoding(), 1)
    found = NearVerbatim().bracket(model, secret)
    assert found.lower < exact < found.upper
    short = dataclasses.replace(model, context=4)  # no room for the whole secret: what follows is unknown
    cut = NearVerbatim().bracket(short, secret)
    assert cut.lower <= found.lower
    assert exact < cut.upper
