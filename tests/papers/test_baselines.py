from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from remanence.core.exceptions import InputError
from remanence_papers import baselines

LOG10 = math.log(10)


@pytest.mark.parametrize(("dimension", "share", "chance"), [(20, 0.55, 0.3), (100, 0.9, 0.5), (7, 0.4, 0.9)])
def test_small_binomial_tails_agree_with_scipy(dimension, share, chance):
    needed = math.ceil(dimension * share - 1e-9)
    found = baselines.pixels(dimension, share=share, chance=chance)
    assert math.exp(found) == pytest.approx(binom.sf(needed - 1, dimension, chance), rel=1e-9)
    assert math.exp(found) >= binom.sf(needed - 1, dimension, chance) * (1 - 1e-13)


@pytest.mark.parametrize(("dimension", "radius"), [(1, 0.5), (2, 1.5), (30, 3.0), (784, 2.0), (3072, 1.0)])
def test_the_normal_prior_agrees_with_fifty_digits(dimension, radius):
    mpmath.mp.dps = 50
    half, end = mpmath.mpf(dimension) / 2, mpmath.mpf(radius) ** 2 / 2
    exact = mpmath.log(mpmath.gammainc(half, 0, end, regularized=True))
    found = baselines.normal(dimension, radius=radius)
    assert float((mpmath.mpf(found) - exact) / (1 + abs(exact))) == pytest.approx(0, abs=1e-11)
    assert found >= exact


def test_no_guess_beats_the_baseline_on_a_sphere_a_ball_or_a_cube():
    # Draws in three dimensions; guesses at several distances from the centre.
    generator = np.random.default_rng(0)
    directions = generator.normal(size=(100_000, 3))
    on_sphere = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    in_ball = on_sphere * generator.uniform(size=(100_000, 1)) ** (1 / 3)
    in_cube = generator.uniform(size=(100_000, 3))
    radius, centres = 0.4, [np.array([0, 0, distance]) for distance in np.linspace(0, 1, 21)]
    for draws, guesses, claimed, spacing in (
        (on_sphere, centres, baselines.sphere(3, radius=radius), 0.001),  # between the guesses
        (in_ball, centres, baselines.ball(3, radius=radius), 0),
        (in_cube, [0.5], baselines.cube(3, radius=radius, euclidean=True), 0),
    ):
        share = max((np.linalg.norm(draws - guess, axis=1) <= radius).mean() for guess in guesses)
        margin = 5 * math.sqrt(share / 100_000)  # five standard deviations of that many draws
        assert share <= math.exp(claimed) + margin
        assert share >= math.exp(claimed) - margin - spacing


def test_a_guess_inside_the_sphere_covers_more_than_one_on_it():
    on_it = (1 - math.cos(2 * math.asin(0.3))) / 2  # a cap of chord 0.6 around a point of the sphere
    assert math.exp(baselines.sphere(3, radius=0.6)) > on_it


def test_tiny_caps_do_not_underflow():
    assert -1200 < baselines.sphere(1000, radius=0.1) / LOG10 * 1 < -990


@pytest.mark.parametrize("function", [baselines.ball, baselines.sphere])
def test_a_radius_as_large_as_the_body_holds_everything(function):
    assert function(5, radius=1.0) == 0
    assert baselines.cube(5, radius=0.5) == 0


def test_a_shortlist_counts_its_largest_weight():
    assert math.exp(baselines.shortlist(50)) == pytest.approx(0.02)
    assert math.exp(baselines.shortlist([0.2, 0.5, 0.3])) == pytest.approx(0.5)
    assert math.exp(baselines.shortlist([0, 2, 2])) == pytest.approx(0.5)
    for weights in ([1, -1], [0, 0]):
        with pytest.raises(InputError, match="weight"):
            baselines.shortlist(weights)
