"""The exact test of a claim: calibrated where canaries hide each other, and sharp where noise is missing."""

import math
from itertools import combinations, product

import numpy as np
import pytest

from remanence.games.recorded_runs.exchange_test import Chain, Projections

RUNS, LEVEL = 150, 0.05


def run(canaries, *, numbers, steps, noise, rate, seed, real=None, candidates=1):
    """A DP-SGD run whose candidates' gradients share a direction, and the guesses of a linear attack."""
    generator = np.random.default_rng(seed)
    rows = canaries * candidates
    chosen = (
        generator.integers(2, size=canaries) - 1
        if candidates == 1
        else generator.integers(candidates, size=canaries)
    )
    inserted = np.zeros(rows)
    inserted[(np.arange(canaries) * candidates + chosen)[chosen >= 0]] = 1
    kept = 1 if rate == 1 else steps
    gram, products, presence = np.zeros((kept, rows, rows)), np.zeros((kept, rows)), np.zeros((kept, rows))
    norms = generator.uniform(0.3, 1.0, size=(rows, 1))  # some gradients are below the clipping norm
    common = 0.5 * generator.normal(size=numbers)
    for step in range(steps):
        gradients = generator.normal(size=(rows, numbers)) + common
        gradients *= norms / np.linalg.norm(gradients, axis=1, keepdims=True)
        present = inserted * (generator.random(rows) < rate)
        released = present @ gradients + (noise if real is None else real) * generator.normal(size=numbers)
        place = 0 if rate == 1 else step
        gram[place] += gradients @ gradients.T / noise**2
        products[place] += gradients @ released / noise**2
        presence[place] = present
    mean = rate * (0.5 if candidates == 1 else 1 / candidates)
    score = np.zeros(rows)
    for place in range(kept):
        score += np.linalg.solve(
            gram[place] + np.eye(rows) / (mean * (1 - mean)), products[place] - mean * gram[place].sum(1)
        )
    guess = (score > 0).astype(int) - 1 if candidates == 1 else score.reshape(canaries, candidates).argmax(1)
    return Projections(gram, products, presence, np.full(kept, float(rate)), candidates), guess, chosen


SETTINGS = {
    "full batch": {"numbers": 20, "steps": 3, "noise": 2.0, "rate": 1.0},
    "sampled": {"numbers": 30, "steps": 5, "noise": 0.7, "rate": 0.4},
    "shortlists": {"numbers": 30, "steps": 3, "noise": 1.5, "rate": 1.0, "candidates": 4},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_true_claim_is_rejected_no_more_often_than_the_level(name):
    values = np.array([_p_value(SETTINGS[name], seed=seed) for seed in range(RUNS)])
    for level in np.arange(1, 20) / 20:  # of the 20 states; ties only make it rarer
        assert (values <= level).mean() <= level + 4 * math.sqrt(level * (1 - level) / RUNS)
    assert values.min() > 0  # the truth is one of the states
    # A p-value of a half or less is as frequent as a half, less the ties, which are few among 17 counts.
    assert (values <= 0.5).mean() >= 0.5 - 4 * math.sqrt(0.25 / RUNS) - 0.1


def test_the_truth_counts_as_a_state_of_its_own():
    projections, guess, chosen = run(16, seed=0, **SETTINGS["full batch"])
    assert projections.p_value(guess, chosen, seed=0, states=1) == 1.0
    assert {projections.p_value(guess, chosen, seed=seed, states=4) for seed in range(20)} <= {
        0.25,
        0.5,
        0.75,
        1.0,
    }


def _p_value(settings, *, seed, **changes):
    projections, guess, chosen = run(16, seed=seed, **{**settings, **changes})
    return projections.p_value(guess, chosen, seed=seed, states=20)


@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_half_the_noise_is_caught_and_more_noise_is_not(rate):
    settings = {"numbers": 600, "steps": 4, "noise": 1.4 if rate == 1 else 0.7, "rate": rate}
    for seed in range(3):
        half = run(250, seed=seed, real=settings["noise"] / 2, **settings)
        assert half[0].p_value(*half[1:], seed=seed, states=40) <= LEVEL
        more = run(250, seed=seed, real=settings["noise"] * 2, **settings)
        assert more[0].p_value(*more[1:], seed=seed, states=40) > 0.2


def test_another_scale_of_the_noise_is_the_test_of_another_claim():
    settings = {"numbers": 40, "steps": 3, "rate": 1.0, "candidates": 1}
    true, guess, chosen = run(20, seed=1, noise=1.0, **settings)
    told = Projections(
        true.gram / 4, true.products / 4, true.presence, true.rates, 1
    )  # the claim of twice the noise
    assert told.p_value(guess, chosen, seed=3, scale=0.5) == true.p_value(guess, chosen, seed=3)


def in_or_out(canaries, inside):
    """Every secret with so many canaries in, as rows that were inserted."""
    for members in combinations(range(canaries), inside):
        yield np.isin(np.arange(canaries), members).astype(float)


def one_of_each(canaries, candidates):
    """Every choice of one row from each shortlist."""
    for places in product(range(candidates), repeat=canaries):
        yield np.concatenate([np.eye(candidates)[place] for place in places])


def likelihood(projections, inserted):
    """Of the run under one secret: in every step, the sum over who of the inserted was in the batch."""
    total, rows = 1.0, np.flatnonzero(inserted)
    for gram, products, rate in zip(projections.gram, projections.products, projections.rates, strict=True):
        step = 0.0
        for taken in product((0, 1), repeat=len(rows)):
            b = np.zeros(len(inserted))
            b[rows] = taken
            chance = math.prod(rate if one else 1 - rate for one in taken)
            step += chance * math.exp(products @ b - b @ gram @ b / 2)
        total *= step
    return total


@pytest.mark.parametrize(
    ("canaries", "settings"),
    [
        (6, {"numbers": 8, "steps": 3, "noise": 0.6, "rate": 1.0}),
        (6, {"numbers": 8, "steps": 2, "noise": 0.4, "rate": 0.6}),
        (3, {"numbers": 8, "steps": 3, "noise": 1.0, "rate": 1.0, "candidates": 3}),
        (3, {"numbers": 8, "steps": 2, "noise": 0.5, "rate": 0.5, "candidates": 3}),
    ],
    ids=["full batch", "sampled", "shortlists", "sampled shortlists"],
)
def test_the_chain_samples_the_posterior_that_can_be_counted(canaries, settings):
    """Few canaries have few secrets, whose probabilities are summed by hand."""
    projections, _, chosen = run(canaries, seed=5, **settings)
    candidates = projections.candidates
    inside = int((chosen == 0).sum())
    secrets = list(in_or_out(canaries, inside) if candidates == 1 else one_of_each(canaries, candidates))
    weights = [likelihood(projections, secret) for secret in secrets]
    expected = np.average(secrets, axis=0, weights=weights)
    chain, seen = Chain(projections, chosen, seed=0), np.zeros((60, canaries * candidates))
    for batch in range(60):
        for _ in range(100):
            chain.sweep()
            rows = np.arange(canaries) * candidates + chain.chosen
            seen[batch, rows[chain.chosen >= 0]] += 1 / 100
    assert candidates > 1 or int((chain.chosen == 0).sum()) == inside
    error = seen.std(0, ddof=1) / math.sqrt(60)  # from means of batches, which allow for a slow chain
    assert (np.abs(seen.mean(0) - expected) <= 5 * error + 1e-3).all()
    assert error.max() < 0.02
