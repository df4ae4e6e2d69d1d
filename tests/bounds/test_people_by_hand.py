"""Every new pair against brute force on random settings: a ceiling is never below what a test achieves.

A few settings of each by default, and three hundred of each in the slow tests.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from bounds_by_hand import mixture_ratio
from scipy.stats import norm

from remanence.bounds import Person, Segment, correlated_noise, dpsgd, final_weights

POINTS = {1: 100_001, 2: 1_501, 3: 181}  # of a grid for this many steps of two laws,
ERROR = {1: 1e-6, 2: 3e-5, 3: 3e-3}  # and its error: with half the points it is four times as much
BASELINES = (0.5, 0.1, 1e-3)


def uniform(generator, low, high):
    """A number at random between two, at equal ratios."""
    return float(np.exp(generator.uniform(math.log(low), math.log(high))))


def powers(null, alternative, steps=1):
    """The power of the best test between two laws on a grid, each of so many independent steps, at every baseline."""
    laws = [law / law.sum() for law in (null, alternative)]
    size, gain = laws
    for _ in range(steps - 1):
        size, gain = (
            np.multiply.outer(joint, law).ravel() for joint, law in zip((size, gain), laws, strict=True)
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(size > 0, gain / size, np.inf), kind="stable")
    return np.interp(BASELINES, np.cumsum(size[order]), np.cumsum(gain[order])).tolist()


def gaussian(x, mean, noise):
    return np.exp(-0.5 * ((x - mean) / noise) ** 2)


def noise_and_rate(generator):
    return uniform(generator, 0.5, 5), uniform(generator, 0.01, 0.9)


def several_records(generator):
    (noise, rate), records = noise_and_rate(generator), int(generator.integers(1, 7))
    steps = int(generator.choice([1, 2, 3], p=[0.5, 0.4, 0.1]))
    x = np.linspace(-8.5 * noise, records + 8.5 * noise, POINTS[steps])
    null = gaussian(x, 0, noise)
    tested = powers(null, null * mixture_ratio(x, noise, rate, records), steps)
    for baseline, by_hand in zip(BASELINES, tested, strict=True):
        found = dpsgd(baseline, schedule=Segment(noise, rate, steps), person=Person(records))
        assert found.success >= by_hand * (1 - ERROR[steps])
        assert found.lower <= by_hand * (1 + ERROR[steps])
        assert found.converged


def replacement(generator):
    (noise, rate), steps = noise_and_rate(generator), int(generator.integers(1, 3))
    x = np.linspace(-1 - 8 * noise, 1 + 8 * noise, POINTS[steps])
    one, other = ((1 - rate) * gaussian(x, 0, noise) + rate * gaussian(x, sign, noise) for sign in (1, -1))
    for baseline, tested in zip(BASELINES, powers(other, one, steps), strict=True):
        found = dpsgd(baseline, schedule=Segment(noise, rate, steps), person=Person(replaced=True))
        assert tested <= found.success * (1 + ERROR[steps])


def shuffles(generator):
    # k records in one batch of a known order, in each of E passes: the sum of all noisy batches that hold them.
    noise, records = uniform(generator, 0.5, 50), int(generator.integers(1, 9))
    passes, bins = int(generator.integers(1, 9)), int(generator.integers(1, 50))
    replaced = bool(generator.integers(2))
    person, run = Person(records, "shuffled", replaced), Segment(noise, 1 / bins, passes * bins)
    shift = records * (1 + replaced) * math.sqrt(passes) / noise
    for baseline in BASELINES:
        found = dpsgd(baseline, schedule=run, person=person)
        exact = float(norm.cdf(norm.ppf(baseline) + shift))
        assert exact * (1 - 1e-12) <= found.success <= exact * (1 + 1e-9) + 1e-12
        assert found.success * (1 - 1e-9) - 1e-12 <= found.lower <= found.success


def fixed_draws(generator):
    (noise, rate), steps = noise_and_rate(generator), int(generator.integers(1, 3))
    x = np.linspace(-2 - 8 * noise, 2 + 8 * noise, POINTS[steps])
    others, target, absent = (gaussian(x, mean, noise) for mean in (-1, 1, 0))
    present = (1 - rate) * others + rate * target
    # Either reference is a training that does not depend on the target: with its gradient left out, or without it.
    person, run = Person(batches="fixed"), Segment(noise, rate, steps)
    references = ((1 - rate) * others + rate * absent, others)
    tested = [powers(reference, present, steps) for reference in references]
    for index, baseline in enumerate(BASELINES):
        proven = [dpsgd(baseline, schedule=each).success for each in person.schedules(run)]
        for reached, ceiling in zip(tested, proven, strict=True):
            assert reached[index] <= ceiling * (1 + ERROR[steps])
        found = dpsgd(baseline, schedule=run, person=person)
        assert found.lower <= found.success == min(proven)


def balls_in_bins(generator):
    bins, noise = int(generator.integers(2, 4)), uniform(generator, 0.5, 4)
    points = {2: 801, 3: 121}[bins]
    x = np.linspace(-8 * noise, 1 + 8 * noise, points)
    axes = np.meshgrid(*[x] * bins)
    null = np.prod([gaussian(axis, 0, noise) for axis in axes], axis=0).ravel()
    ratio = np.mean([np.exp((axis - 0.5) / noise**2) for axis in axes], axis=0).ravel()
    for baseline, tested in zip(BASELINES, powers(null, null * ratio), strict=True):
        run = Segment(noise, 1 / bins, bins)
        found = dpsgd(baseline, schedule=run, person=Person(batches="balls-in-bins"))
        assert tested <= found.success * (1 + 1e-3)
        assert found.lower <= tested * (1 + 1e-3)


def correlated(generator):
    steps, apart = int(generator.integers(2, 12)), int(generator.integers(1, 4))
    noise = uniform(generator, 2, 50)
    factor = np.tril(generator.standard_normal((steps, steps)))
    found = correlated_noise(0.1, factor=factor, noise_multiplier=noise, separation=apart)
    for start in range(min(apart, steps)):
        for _ in range(20):
            gradients = np.zeros((steps, 3))  # vectors, not only signs
            drawn = generator.standard_normal((len(range(start, steps, apart)), 3))
            gradients[start::apart] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
            shift = np.linalg.norm(factor @ gradients) / noise
            assert norm.cdf(norm.ppf(0.1) + shift) <= found.success * (1 + 1e-12)


def last_iterates(generator):
    # Curvature that differs from place to place, between m and M; densities are pushed through step by step.
    least, most = sorted(generator.uniform(0.1, 1.5, 2))
    steps, noise = int(generator.integers(1, 4)), uniform(generator, 0.7, 5)
    rate = float(generator.uniform(0.1, 0.95)) * 2 / (least + most)
    knots, slopes = np.sort(generator.normal(0, 2, 3)), generator.uniform(least, most, 4)
    slopes[generator.integers(4)], slopes[generator.integers(4)] = least, most
    reach = 1.5 * steps * rate * (1 + 6 * noise)
    x = np.linspace(-reach, reach, 900)

    def gradient(at):
        steps_between = np.clip(at[:, None], np.r_[-np.inf, knots], np.r_[knots, np.inf])
        anchored = np.clip(0.0, np.r_[-np.inf, knots], np.r_[knots, np.inf])
        return (slopes * (steps_between - anchored)).sum(1)

    laws = []
    for pull in (0.0, 1.0):
        law = gaussian(x, -rate * (gradient(np.zeros(1))[0] + pull), rate * noise)
        for _ in range(steps - 1):
            moved = x - rate * (gradient(x) + pull)
            law = gaussian(x[:, None], moved[None, :], rate * noise) @ (law / law.sum())
        laws.append(law)
    run = {"learning_rate": rate, "strong_convexity": least, "smoothness": most}
    for baseline, tested in zip(BASELINES, powers(*laws), strict=True):
        found = final_weights(baseline, noise_multiplier=noise, steps=steps, **run)
        assert tested <= found.success * (1 + 2e-3)


CHECKS = [several_records, replacement, shuffles, fixed_draws, balls_in_bins, correlated, last_iterates]
MORE = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 400)]


@pytest.mark.parametrize("seed", [*range(3), *MORE])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_no_ceiling_is_below_brute_force(check, seed):
    check(np.random.default_rng(seed))
