"""The exact test of a claim: calibrated where canaries hide each other, and sharp where noise is missing."""

import math

import numpy as np
import pytest

from remanence.games.recorded_runs.exchange_test import Projections

RUNS, LEVEL = 150, 0.05
MARGIN = 4 * math.sqrt(LEVEL * (1 - LEVEL) / RUNS)


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
    assert (values <= LEVEL).mean() <= LEVEL + MARGIN
    assert (values <= 0.5).mean() <= 0.5 + 4 * math.sqrt(0.25 / RUNS)
    assert (values <= 0.5).mean() >= 0.2  # and it is a test: p-values are not all near 1


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


def test_the_chain_samples_the_posterior_that_can_be_counted():
    """Six canaries in or out, three of them in: 20 secrets, whose probabilities are summed by hand."""
    from itertools import combinations

    from remanence.games.recorded_runs.exchange_test import Chain

    projections, _, chosen = run(6, numbers=8, steps=3, noise=0.6, rate=1.0, seed=5)
    inside = int((chosen == 0).sum())
    weights, secrets = [], []
    for members in combinations(range(6), inside):
        b = np.zeros(6)
        b[list(members)] = 1
        weights.append(math.exp(projections.products[0] @ b - b @ projections.gram[0] @ b / 2))
        secrets.append(b)
    expected = np.average(secrets, axis=0, weights=weights)
    chain = Chain(projections, chosen, seed=0)
    seen = np.zeros(6)
    for _ in range(6000):
        chain.sweep()
        seen += chain.chosen == 0
    assert int((chain.chosen == 0).sum()) == inside
    assert seen / 6000 == pytest.approx(expected, abs=0.04)  # five standard errors of the chain
