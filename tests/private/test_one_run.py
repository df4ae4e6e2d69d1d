"""The one-run theorem: exact answers, coverage on mechanisms that keep their claim, power on one that does not."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from remanence.bounds import Segment, dpsgd, epsilon_upper
from remanence.bounds.one_run import GaussianCurve, GuessCount, LinesCurve, dpsgd_curve, gaussian_epsilon
from remanence.core.records import Records
from remanence.private import canaries as planted
from remanence.private.audit_run import ClaimTest, _ceiling
from remanence.private.reading import _SKETCHED, CanaryReader, _signs, _sketch

LEVEL = 0.05
RUNS = 1000
MARGIN = 4 * math.sqrt(LEVEL * (1 - LEVEL) / RUNS)  # a false alarm of this test: 3 in 100,000


def threshold(curve, guesses, canaries, candidates=1):
    """The smallest number of correct guesses that rejects the curve, or one more than all."""
    low, high = 0, guesses + 1
    while high - low > 1:
        middle = (low + high) // 2
        rejects = GuessCount(middle, guesses, canaries, candidates).rejects(curve, LEVEL)
        low, high = (low, middle) if rejects else (middle, high)
    return high


def surest(log_odds, truth, guesses):
    """How many of the surest guesses about in or out are right, per run."""
    order = np.argsort(-np.abs(log_odds), axis=1)[:, :guesses]
    chosen = np.take_along_axis(log_odds, order, 1) > 0
    return (chosen == np.take_along_axis(truth, order, 1)).sum(1)


def gaussian_runs(mu, canaries, seed):
    generator = np.random.default_rng(seed)
    truth = generator.random((RUNS, canaries)) < 0.5
    seen = mu * truth + generator.normal(size=truth.shape)
    return mu * (seen - mu / 2), truth


def sharing_runs(canaries, seed):
    """Canaries in 20 dimensions: every projection contains the others and the same noise, and μ is 1."""
    generator = np.random.default_rng(seed)
    directions = generator.normal(size=(canaries, 20))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    truth = generator.random((RUNS, canaries)) < 0.5
    released = truth @ directions + generator.normal(size=(RUNS, 20))
    gram = directions @ directions.T + 4 * np.eye(canaries)
    return np.linalg.solve(gram, directions @ (released - 0.5 * directions.sum(0)).T).T, truth


RUN_KINDS = [
    *((partial(gaussian_runs, mu, 200, 1), mu) for mu in (0.5, 1.0, 2.0)),
    (partial(sharing_runs, 60, 2), 1.0),
]


@pytest.mark.parametrize(("runs", "mu"), RUN_KINDS)
@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_canaries_of_a_correct_mechanism_are_seldom_rejected(runs, mu, share):
    log_odds, truth = runs()
    canaries = truth.shape[1]
    guesses = int(canaries * share)
    false = surest(log_odds, truth, guesses) >= threshold(GaussianCurve(mu), guesses, canaries)
    assert false.mean() <= LEVEL + MARGIN


def test_two_opposite_candidates_meet_the_ceiling_and_are_seldom_rejected():
    for mu, canaries in ((0.5, 300), (1.0, 1000)):
        reached = float(ndtr(mu))  # both candidates' best attack; the ceiling for a shortlist of two
        assert binom.sf(threshold(GaussianCurve(mu), canaries, canaries, 2) - 1, canaries, reached) <= LEVEL


@pytest.mark.parametrize("reveals", [0.02, 0.04, 0.06, 0.3])
def test_canaries_that_fall_together_are_rejected_no_more_often_than_the_level(reveals):
    """With this probability the run gives everything away, which is a correct (0, δ)-DP mechanism."""
    curve, canaries = LinesCurve(((0.0, reveals),)), 200
    least = threshold(curve, canaries, canaries)
    otherwise = binom.sf(least - 1, canaries, 0.5)
    assert reveals * (least <= canaries) + (1 - reveals) * otherwise <= LEVEL


def poisson_runs(noise, rate, steps, canaries, seed):
    """The exact log odds of each canary under DP-SGD with orthogonal canaries."""
    generator = np.random.default_rng(seed)
    truth = generator.random((RUNS, canaries)) < 0.5
    log_odds = np.zeros(truth.shape)
    for _ in range(steps):
        present = truth & (generator.random(truth.shape) < rate)
        seen = present + noise * generator.normal(size=truth.shape)
        log_odds += np.logaddexp(math.log1p(-rate), math.log(rate) + (seen - 0.5) / noise**2)
    return log_odds, truth


def test_poisson_sampling_is_seldom_rejected_and_half_the_noise_nearly_always_is():
    claim = Segment(1.0, sample_rate=0.2, steps=20)
    least = threshold(dpsgd_curve(claim), 250, 1000)
    honest = surest(*poisson_runs(1.0, 0.2, 20, 1000, seed=3), 250)
    broken = surest(*poisson_runs(0.5, 0.2, 20, 1000, seed=4), 250)
    assert (honest >= least).mean() <= LEVEL + MARGIN
    assert (broken >= least).mean() >= 0.9


def test_the_limits_cover_the_truth_and_come_close_with_many_canaries():
    log_odds, truth = gaussian_runs(1.0, 2000, seed=6)
    limits = [GuessCount(int(c), 600, 2000).mu_lower(LEVEL) for c in surest(log_odds[:20], truth[:20], 600)]
    assert max(limits) <= 1.0
    assert min(limits) >= 0.4
    outcome = GuessCount(580, 600, 2000)
    assert outcome.rejects(GaussianCurve(outcome.mu_lower(LEVEL) * 0.999), LEVEL)
    assert not outcome.rejects(GaussianCurve(outcome.mu_lower(LEVEL) * 1.01), LEVEL)
    epsilon = outcome.epsilon_lower(1e-5, LEVEL)
    assert outcome.rejects(LinesCurve(((epsilon * 0.99, 1e-5),)), LEVEL)
    assert not outcome.rejects(LinesCurve(((epsilon * 1.01, 1e-5),)), LEVEL)
    assert epsilon <= gaussian_epsilon(outcome.mu_lower(LEVEL), 1e-5)  # fewer mechanisms, higher limit


def test_the_p_value_agrees_with_the_test_and_falls_with_every_correct_guess():
    curve = GaussianCurve(1.0)
    values = [GuessCount(correct, 150, 500).p_value(curve) for correct in range(120, 151, 5)]
    assert values == sorted(values, reverse=True)
    for correct in range(140, 151):
        outcome = GuessCount(correct, 150, 500)
        assert outcome.rejects(curve, LEVEL) == (outcome.p_value(curve) < LEVEL)


def test_certified_pairs_give_a_curve_at_or_above_the_exact_one():
    run = Segment(0.8, sample_rate=0.3, steps=30)
    curve = dpsgd_curve(run)
    baselines = np.geomspace(1e-4, 0.9, 25)
    exact = dpsgd(baselines, schedule=[run])
    back = curve.inverse(exact.lower)
    assert (back <= baselines * (1 + 1e-9)).all()  # never claims more than is proven
    rare = baselines < 0.2  # elsewhere the other direction, putting a record in, is the weaker promise
    assert (back[rare] >= 0.85 * baselines[rare]).all()  # and loses little between the pairs
    gaussian = LinesCurve(tuple((e, _gaussian_delta(e)) for e in np.linspace(0, 8, 60)))
    probability = np.linspace(0.05, 0.95, 19)
    assert np.allclose(gaussian.inverse(probability), ndtr(ndtri(probability) - 1.0), rtol=0.02)


def _gaussian_delta(epsilon):
    return float(ndtr(0.5 - epsilon) - math.exp(epsilon) * ndtr(-0.5 - epsilon))


@pytest.mark.parametrize("claim", [(0.5, 0.0), (1.0, 0.02), (0.0, 0.1)])
@pytest.mark.parametrize("candidates", [1, 3])
def test_the_recursion_is_the_linear_program_that_the_inequalities_make(claim, candidates):
    """Maximise P(C ≥ c) over all laws of C that the two inequalities allow, for a curve of straight lines."""
    epsilon, delta = claim
    canaries, guesses = 12, 10
    counts = np.arange(guesses + 1)
    lines = [(math.exp(epsilon), delta), (math.exp(-epsilon), 1 - math.exp(-epsilon) * (1 - delta))]
    rows, limits = [], []
    for i in range(1, guesses + 1):
        right = counts / canaries * (counts >= i)
        wrong = (guesses - counts) / canaries * (counts >= i - 1)
        for slope, offset in lines:
            if candidates == 1:
                rows.append(right - slope * wrong)
                limits.append(offset)
            for again, shift in lines if candidates > 1 else []:
                rows.append(right - slope * again * wrong / (candidates - 1))  # G(G(b / (n − 1)))
                limits.append(slope * shift + offset)
                rows.append(right - slope * again * (wrong + right) / candidates)  # G(G(b + a) / n)
                limits.append(slope * shift / candidates + offset)
            if candidates > 1:  # each G is also at most 1
                rows += [right]
                limits += [slope / candidates + offset]
    for correct in (5, 7, 9):
        all_of_it = {"A_eq": np.ones((1, guesses + 1)), "b_eq": [1.0]}
        best = linprog(-(counts >= correct).astype(float), np.array(rows), np.array(limits), **all_of_it)
        found = GuessCount(correct, guesses, canaries, candidates).p_value(LinesCurve((claim,)))
        assert found == pytest.approx(-best.fun, rel=1e-3)


def test_a_claim_with_hardly_any_noise_is_tested_without_overflow():
    curve = dpsgd_curve(Segment(0.1, 0.5, 20))  # ε is 1,200, and e^710 is infinite
    assert GuessCount(30, 30, 100).p_value(curve) == 1.0


@pytest.mark.parametrize(("candidates", "guessed"), [(1, 3), (2, 10)])
def test_of_canaries_that_are_in_or_out_only_the_surest_are_guessed(candidates, guessed):
    scores = torch.arange(10.0 * candidates).reshape(10, candidates)
    tensors = {"scores": scores, "chosen": torch.zeros(10, dtype=torch.int64)}
    run = SimpleNamespace(tensors=tensors, claimed=())
    assert ClaimTest.of(run).counted.guesses == guessed


@pytest.mark.parametrize("candidates", [1, 2])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_canaries_that_do_not_hide_each_other_get_their_exact_log_odds(rate, candidates):
    """Two steps: log(1 − q + q·exp((r·g − |g|²/2)/σ²)) each; in full batches simply their sum."""
    generator = torch.Generator().manual_seed(0)
    gradients = torch.diag(torch.tensor([1.0, 0.5, 0.8, 0.2]))
    reader, expected = CanaryReader(4 // candidates, candidates), 0.0
    for released in torch.randn(2, 4, generator=generator):
        reader.step([gradients[:3], gradients[3:]], released, noise=2.0, norm=1.0, sample_rate=rate)
        ratio = ((gradients @ released - gradients.square().sum(1) / 2) / 4).double()
        expected = expected + torch.log(1 - rate + rate * ratio.exp())
    assert reader.scores().flatten().tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_the_noise_is_what_no_canary_explains_if_that_is_less_than_was_claimed():
    released = torch.arange(1.0, 21.0) / 10
    reader = CanaryReader(2, 1)
    reader.step([torch.eye(20)[:2]], released, noise=9.0, norm=1.0, sample_rate=1.0)
    variance = float(released[2:].square().sum()) / 18
    expected = ((released[:2] - 0.5) / variance).tolist()
    assert reader.scores().flatten().tolist() == pytest.approx(expected, rel=1e-4)


def test_a_sketch_keeps_the_length_of_every_single_number():
    numbers = 2 * _SKETCHED + 7
    some = torch.zeros(5, numbers)
    some[range(5), [0, 1, _SKETCHED, 2 * _SKETCHED, numbers - 1]] = 3.0
    assert _sketch(some, _signs(torch.zeros(numbers))).norm(dim=1).tolist() == [3.0] * 5


def test_of_a_shortlist_the_likeliest_is_guessed_by_its_lead():
    best, lead = planted.guesses(torch.tensor([[1.0, 4.0, 2.0], [0.5, 0.0, -1.0]]))
    assert (best.tolist(), lead.tolist()) == ([1, 0], [2.0, 0.5])


def test_a_single_record_with_a_wrong_label_is_a_canary():
    found = planted.mislabelled(Records(torch.zeros(1, 3), torch.ones(1)), 2, seed=0)
    assert (len(found), found.candidates, found.shortlists.labels.item()) == (1, 1, 0)


def test_a_claim_of_next_to_no_noise_promises_nothing():
    claim = [Segment(0.04)]
    assert ClaimTest(claim, GuessCount(30, 30, 100)).p_value() == 1.0
    assert _ceiling(claim, 1).log_success == _ceiling(claim, 5).log_success == 0.0


def test_an_epsilon_is_told_with_its_delta():
    found = ClaimTest([Segment(1.0)], GuessCount(30, 30, 100)).findings()
    assert (found["delta"], found["claimed_epsilon"]) == (1e-5, epsilon_upper(Segment(1.0), 1e-5))
