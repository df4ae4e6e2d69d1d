"""The exact test of a claim: calibrated where canaries hide each other, and sharp where noise is missing."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import logsumexp

from remanence.private.exchange_test import Slots, _Chains

RUNS, LEVEL = 200, 0.05
MARGIN = 4 * math.sqrt(LEVEL * (1 - LEVEL) / RUNS)


def run(slots, *, numbers, steps, noise, rate, seed, real=None, alternatives=1):
    """What a DP-SGD run says about its slots; candidates' gradients share a direction, and some are short."""
    generator = np.random.default_rng(seed)
    total = slots * alternatives
    field, coupling = np.zeros(total), np.zeros((total, total))
    common = 0.5 * generator.normal(size=numbers)
    norms = generator.uniform(0.3, 1.0, size=(slots, alternatives + 1, 1))
    for _ in range(steps):
        gradients = generator.normal(size=(slots, alternatives + 1, numbers)) + common
        gradients *= norms / np.linalg.norm(gradients, axis=2, keepdims=True)
        present = generator.random(slots) < rate
        shifts = (gradients[:, 1:] - gradients[:, :1]) * present[:, None, None]
        shifts = shifts.reshape(total, numbers)
        added = (noise if real is None else real) * generator.normal(size=numbers)
        field += shifts @ added / noise**2
        coupling += shifts @ shifts.T / noise**2
    return Slots(field, coupling, slots)


SETTINGS = {
    "full batch": {"numbers": 12, "steps": 3, "noise": 1.0, "rate": 1.0},
    "sampled": {"numbers": 30, "steps": 8, "noise": 0.7, "rate": 0.4},
    "shortlists": {"numbers": 30, "steps": 3, "noise": 0.8, "rate": 1.0, "alternatives": 3},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_true_claim_is_rejected_no_more_often_than_the_level(name):
    values = np.array(
        [run(16, seed=seed, **SETTINGS[name]).p_value(seed=seed, states=100) for seed in range(RUNS)]
    )
    assert (values <= LEVEL).mean() <= LEVEL + MARGIN
    assert (values <= 0.5).mean() <= 0.5 + 4 * math.sqrt(0.25 / RUNS)
    assert (values <= 0.5).mean() >= 0.3  # and it is a test: p-values are not all near 1


@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_half_the_noise_is_caught_and_more_noise_is_not(rate):
    settings = {"numbers": 600, "steps": 4, "noise": 1.0, "rate": rate}
    for seed in range(3):
        assert run(120, seed=seed, real=0.5, **settings).p_value(seed=seed, states=1200) <= 1e-3
        assert run(120, seed=seed, real=2.0, **settings).p_value(seed=seed) > 0.2


def test_another_scale_of_the_noise_is_the_test_of_another_claim():
    settings = {"numbers": 40, "steps": 3, "rate": 1.0}
    true = run(20, seed=1, noise=1.0, **settings)
    told = Slots(true.field / 4, true.coupling / 4, 20)  # the claim of twice the noise
    assert told.p_value(seed=3, scale=0.5) == true.p_value(seed=3)


@pytest.mark.parametrize("alternatives", [1, 2])
def test_the_chain_samples_the_posterior_that_can_be_counted(alternatives):
    """Four slots: the probabilities of all secrets are summed by hand."""
    slots = run(4, numbers=6, steps=2, noise=0.6, rate=1.0, seed=5, alternatives=alternatives)
    weights, secrets = [], []
    for secret in itertools.product(range(alternatives + 1), repeat=4):
        x = np.zeros(4 * alternatives)
        for slot, candidate in enumerate(secret):
            x[slot * alternatives + candidate - 1] += candidate > 0
        weights.append(slots.field @ x - x @ slots.coupling @ x / 2)
        secrets.append(secret)
    chances = np.exp(np.array(weights) - logsumexp(weights))
    chains = _Chains(slots, 1.0, np.random.default_rng(0))
    states = np.zeros((4000, 4), dtype=np.intp)
    for _ in range(4):
        states = chains.sweep(states)
    for candidate in range(alternatives + 1):
        expected = (np.array(secrets) == candidate).T @ chances
        seen = (states == candidate).mean(0)
        assert seen == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 4000))
    told = chains.sweep(states.copy(), likelihood=True)
    assert set(np.round(told, 6)) <= set(np.round(weights, 6))
