import dataclasses
import itertools
import math

import mpmath
import pytest
import torch
from small_models import MINE, UNSEEN, random_model, trained

from operations import operations
from remanence.core.exceptions import InputError
from remanence.core.rates import clopper_pearson
from remanence.protocol import Unit
from remanence.scale.seeds import Draws
from remanence.texts import probabilities
from remanence.texts.attacks import Sampling
from remanence.texts.game import Texts
from remanence.texts.mechanism import Secret
from remanence.texts.probabilities import GREEDY, Decoding, log_probabilities, queries_for, within
from remanence.texts.reading import read_texts
from remanence.texts.rounding import rounded_log_probabilities

DECODINGS = [Decoding(), GREEDY, Decoding(0.7), Decoding(top_k=2), Decoding(top_p=0.7), Decoding(1.5, 4, 0.9)]


def shares(decoding, logits=torch.tensor([0.5, 0.3, 0.15, 0.05]).log()):  # noqa: B008
    return decoding.log_law(logits).exp().tolist()


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        (Decoding(), [0.5, 0.3, 0.15, 0.05]),
        (Decoding(temperature=0.5), [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        (Decoding(top_k=2), [0.625, 0.375, 0, 0]),
        (Decoding(top_p=0.5), [1, 0, 0, 0]),  # the first alone has the share
        (Decoding(top_p=0.6), [0.625, 0.375, 0, 0]),  # the token that crosses the share stays
        (Decoding(top_p=0.9), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (Decoding(top_k=3, top_p=0.6), [0.625, 0.375, 0, 0]),  # shares are of what top-k left: 0.526 < 0.6
        (Decoding(top_k=3, top_p=0.52), [1, 0, 0, 0]),
        (Decoding(top_k=9), [0.5, 0.3, 0.15, 0.05]),
        (GREEDY, [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_the_law_is_what_arithmetic_by_hand_gives(decoding, expected):
    assert shares(decoding) == pytest.approx(expected, abs=1e-7)


def test_equals_are_kept_as_the_library_keeps_them():
    """Greedy takes the first, top-k all that tie with its last, a nucleus no more than it needs."""
    equal = torch.tensor([0.0, 1.0, 1.0])
    assert shares(GREEDY, equal) == [0, 1, 0]
    assert shares(Decoding(top_k=1), equal) == pytest.approx([0, 0.5, 0.5])
    assert shares(Decoding(top_p=0.5), torch.zeros(4)) == pytest.approx([0.5, 0.5, 0, 0])


def test_a_token_of_tiny_probability_keeps_its_logarithm():
    assert Decoding().log_law(torch.tensor([0.0, -2000.0]))[1].item() == -2000
    assert Decoding(top_k=1).log_law(torch.tensor([0.0, -2000.0]))[1].item() == -math.inf


@pytest.mark.parametrize(
    "settings", [{"temperature": -1}, {"temperature": math.nan}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.1}]
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        Decoding(**settings)


def by_hand(model, secret, decoding):
    """One token after the other, each with a pass of its own."""
    history, total = list(secret.prompt), 0.0
    for token in secret.tokens:
        total += decoding.log_law(model.logits(torch.tensor([history]))[0, -1])[token].item()
        history.append(token)
    return total


def random_secrets(count, vocabulary, seed=1):
    generator = torch.Generator().manual_seed(seed)

    def draw(most):
        size = int(torch.randint(1, most + 1, (1,), generator=generator))
        return tuple(torch.randint(vocabulary, (size,), generator=generator).tolist())

    return [Secret(draw(8), draw(6), line) for line in range(1, count + 1)]


def test_one_reading_gives_what_token_by_token_gives_in_any_batch():
    model, secrets = random_model(), random_secrets(60, 5)
    found = log_probabilities(model, secrets, DECODINGS)
    expected = [[by_hand(model, secret, decoding) for secret in secrets] for decoding in DECODINGS]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_small_batches_and_a_common_beginning_change_nothing(monkeypatch):
    plain, started = random_model(), []

    def remember(start):
        started.append(len(start))
        return lambda ids: plain.logits(torch.cat([start.expand(len(ids), -1), ids], 1))[:, len(start) :]

    remembering = dataclasses.replace(plain, remember=remember)
    secrets = [Secret((1, 2, 3, 4, 0, 1), tokens, 1) for tokens in itertools.product(range(5), repeat=2)]
    secrets += random_secrets(20, 5)
    expected = log_probabilities(plain, secrets, DECODINGS)
    for at_once in (probabilities._NUMBERS, 5 * 16 * 5):
        monkeypatch.setattr(probabilities, "_NUMBERS", at_once)
        found = log_probabilities(remembering, secrets, DECODINGS)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert 5 in started  # all but the last token of the prompt was read once for a whole batch


def test_memory_is_bounded_by_the_size_of_a_batch(monkeypatch):
    model, sizes = random_model(), []
    logits = lambda ids: (sizes.append(ids.numel() * 5), model.logits(ids))[1]  # noqa: E731
    monkeypatch.setattr(probabilities, "_NUMBERS", 1000)
    log_probabilities(dataclasses.replace(model, logits=logits), random_secrets(200, 5), [Decoding()])
    assert len(sizes) > 10
    assert max(sizes) <= 1000


def test_reading_takes_no_more_operations_for_more_texts():
    base, model = trained()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(1, 40, (500, 20), generator=generator).tolist()
    secrets = [Secret(tuple(row[:12]), tuple(row[12:]), line) for line, row in enumerate(rows, 1)]

    def read(count):
        return operations(lambda: log_probabilities(model, secrets[:count], [Decoding(), Decoding(top_k=5)]))

    def played(count):
        game = Texts(model, secrets[:count], base, secrets[-count:])
        unit = Unit(0, count, torch.arange(count))
        return operations(lambda: game.trials(Sampling(), Draws(0), unit))

    def rounded(count):
        return operations(lambda: rounded_log_probabilities(model, model, secrets[:count], checked=8))

    assert read(10) == read(500) <= 100
    assert rounded(10) == rounded(500) <= 200
    assert played(10) == played(250) <= 400


@pytest.mark.parametrize("log_p", [-1e-12, -1e-3, -0.5, -math.log(2), -5.0, -20.0, -300.0, -800.0])
@pytest.mark.parametrize("queries", [1, 10, 10**4, 10**9])
def test_within_n_queries_equals_the_formula_at_high_precision(log_p, queries):
    with mpmath.workdps(800):
        exact = float(1 - (1 - mpmath.exp(mpmath.mpf(log_p))) ** queries)
    assert float(within(log_p, queries)) == pytest.approx(exact, rel=1e-9, abs=0)


def test_what_is_certain_and_what_cannot_be():
    assert within([0.0, -math.inf], 1).tolist() == [1, 0]
    assert within([0.0, -math.inf], 10**9).tolist() == [1, 0]
    assert queries_for([0.0, -math.inf]).tolist() == [1, math.inf]


@pytest.mark.parametrize("p", [0.9, 0.5, 0.3, 1e-2, 1e-9])
def test_so_many_queries_and_not_one_fewer(p):
    n = float(queries_for(math.log(p)))
    assert within(math.log(p), n) >= 0.5 * (1 - 1e-9)
    assert n == 1 or within(math.log(p), n - 1) < 0.5


def test_a_probability_below_every_double_still_has_a_number_of_queries():
    assert float(queries_for(-705.0)) == pytest.approx(math.log(2) * math.exp(705), rel=1e-9)


def sampled(model, prompt, length, decoding, count, generator):
    """So many continuations, drawn token by token; equal histories are read once."""
    drawn, keys = torch.empty(count, 0, dtype=torch.long), torch.zeros(count, dtype=torch.long)
    for _ in range(length):
        distinct, which = torch.unique(keys, return_inverse=True)
        first = torch.empty(len(distinct), dtype=torch.long).scatter(0, which, torch.arange(count))
        ids = torch.cat([torch.tensor([prompt]).expand(len(first), -1), drawn[first]], 1)
        heights = chances_by_hand(model.logits(ids)[:, -1], decoding).cumsum(-1)
        points = torch.rand(count, 1, generator=generator, dtype=torch.float64)
        tokens = (heights[which] <= points * heights[which, -1:]).sum(-1, keepdim=True)
        drawn, keys = torch.cat([drawn, tokens], 1), keys * model.vocabulary + tokens[:, 0]
    return drawn


def chances_by_hand(logits, decoding):
    """Written a second time without sorting: a token stays by the number and the share of those that are likelier."""
    law = (logits.double() / decoding.temperature).softmax(-1)
    likelier = law[:, None, :] > law[:, :, None]  # (histories, token, other)
    if decoding.top_k is not None:
        law = law * (likelier.sum(-1) < decoding.top_k)
    ahead = (likelier * law[:, None, :]).sum(-1)
    law = law * (ahead < decoding.top_p * law.sum(-1, keepdim=True))
    return law / law.sum(-1, keepdim=True)


@pytest.mark.parametrize("decoding", [Decoding(top_p=0.8), Decoding(0.8, 8, 0.9)], ids=str)
def test_exact_probabilities_agree_with_ten_thousand_samples_each_of_a_hundred_secrets(decoding):
    model, generator = trained()[1], torch.Generator().manual_seed(0)
    # What the model itself says after these names, right or wrong: likely enough to be found by sampling.
    prompts = [secret.prompt for secret in read_texts([*MINE, *UNSEEN], model)]
    rows = (sampled(model, prompt, 4, decoding, 1, generator)[0].tolist() for prompt in prompts)
    said = [Secret(prompt, tuple(row), 1) for prompt, row in zip(prompts, rows, strict=True)]
    exact = log_probabilities(model, said, [decoding])[0].exp().tolist()
    chosen = [(secret, p) for secret, p in zip(said, exact, strict=True) if p > 1e-3][:100]
    assert len(chosen) == 100
    assert min(p for _, p in chosen) < 0.05 < 0.5 < max(p for _, p in chosen)
    for secret, p in chosen:
        drawn = sampled(model, secret.prompt, 4, decoding, 10_000, generator)
        hits = int((drawn == torch.tensor(secret.tokens)).all(1).sum())
        lower, upper = clopper_pearson(hits, 10_000, 0.025 / 100)  # all hundred hold together at 95 %
        assert lower <= p <= upper, (secret, p, hits)
