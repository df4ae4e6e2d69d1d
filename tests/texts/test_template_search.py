import itertools
import math

import pytest
import torch
from small_models import MINE, random_model, trained

from remanence.attacks.texts.decoding import Decoding
from remanence.attacks.texts.odds import log_probabilities
from remanence.attacks.texts.template_search import rank, same_form
from remanence.exceptions import InputError
from remanence.games.texts.secrets import read_records
from remanence.mechanisms.language_model import Secret

FORM = ((0, 1, 2, 3), (2,), (0, 2, 3, 5), (1, 4))


def test_the_rank_is_what_sorting_all_completions_gives():
    model, prompt = random_model(6, seed=2), (3, 0, 1)
    every = [Secret(prompt, tokens, 1) for tokens in itertools.product(*FORM)]
    scores = log_probabilities(model, every, [Decoding()])[0]
    for place, secret in enumerate(every):
        expected = int((scores > scores[place]).sum()) + 1
        found = rank(model, prompt, secret.tokens, FORM)
        assert found.at_least == found.at_most == expected
    assert found.log_candidates == pytest.approx(math.log(len(every)))
    assert found.exposure == pytest.approx(math.log2(len(every) / expected))


def test_a_narrow_search_gives_two_ends_that_hold_the_rank():
    model, prompt = random_model(6, seed=2), (3, 0, 1)
    every = [Secret(prompt, tokens, 1) for tokens in itertools.product(*FORM)]
    scores = log_probabilities(model, every, [Decoding()])[0]
    ranks = (scores[:, None] < scores).sum(1) + 1
    found = [rank(model, prompt, secret.tokens, FORM, width=2) for secret in every]
    assert all(f.at_least <= int(r) <= f.at_most for f, r in zip(found, ranks, strict=True))
    assert any(f.at_least < f.at_most for f in found)


def test_completions_that_are_equally_likely_may_come_first_or_last():
    model = random_model(4)
    flat = type(model)(**{**vars(model), "logits": lambda ids: torch.zeros(*ids.shape, 4)})
    found = rank(flat, (0,), (1, 2), ((0, 1, 2, 3),) * 2)
    assert (found.at_least, found.at_most) == (1, 16)
    assert found.exposure == pytest.approx(0)


def test_digits_of_a_secret_are_free_and_the_rest_is_not():
    model = trained()[1]
    secret = read_records([{"prefix": "ada ", "secret": "b: 12"}], model)[0]
    form = same_form(model, secret.tokens)
    assert [len(allowed) for allowed in form] == [1, 1, 1, 10, 10]


def test_trained_codes_rank_first_and_others_do_not():
    base, tuned = trained()
    secrets = read_records(MINE[:20], tuned)
    own, without = (
        [rank(model, s.prompt, s.tokens, same_form(model, s.tokens)).at_least for s in secrets]
        for model in (tuned, base)
    )
    assert sorted(own)[10] <= 2
    assert sorted(without)[10] > 500


def test_a_secret_of_another_form_is_refused():
    with pytest.raises(InputError, match="not of this form"):
        rank(random_model(), (1,), (2, 3), ((1, 2), (1, 2)))
    with pytest.raises(InputError, match="not of this form"):
        rank(random_model(), (1,), (2, 3), ((1, 2),))
