from __future__ import annotations

import math

import pytest

from remanence import calibrate, noise_for_epsilon
from remanence.bounds import Segment, delta_lower, delta_upper, dpsgd, epsilon_upper
from remanence.bounds.calibration import MOST_STEPS
from remanence.bounds.engine.dpsgd import dpsgd_bracket
from remanence.bounds.frontier import frontier

# Smallest noise with γ(κ) ≤ target, recomputed before this project by another program.
ANCHORS = [
    (0.02, 1000, 0.1, 0.3, 1.0550685),
    (0.01, 100, 0.1, 0.15, 0.7394170),
    (0.001, 100_000, 0.1, 0.3, 0.7231901),
    (0.001, 100_000, 1e-3, 0.01, 0.7264666),
    (0.1, 100, 0.01, 0.05, 1.6561565),
]


@pytest.mark.parametrize(("rate", "steps", "baseline", "limit", "noise"), ANCHORS)
def test_the_noise_is_the_smallest_that_is_certain_to_meet_the_limit(rate, steps, baseline, limit, noise):
    found = calibrate(limit, baseline, sample_rate=rate, steps=steps)
    assert found.solved_for == "noise_multiplier"
    assert noise <= found.noise_multiplier <= noise * (1 + 2e-4)
    assert found.bound.success <= limit
    # A little less noise is certain to break it.
    less = dpsgd_bracket(Segment(noise * (1 - 3e-4), rate, steps), math.log(baseline))
    assert math.exp(less.log_lower) > limit * (1 - 1e-4)


@pytest.mark.parametrize(("rate", "noise"), [(1.0, 20.0), (0.05, 1.0), (0.01, 0.7)])
def test_the_steps_are_the_most_that_are_certain_to_meet_the_limit(rate, noise):
    found = calibrate(0.2, 0.1, noise_multiplier=noise, sample_rate=rate)
    assert found.bound.success <= 0.2
    more = dpsgd(0.1, noise_multiplier=noise, sample_rate=rate, steps=math.ceil(found.steps * 1.01) + 1)
    assert more.lower > 0.2 * (1 - 1e-4)
    assert rate < 1 or found.steps == 77  # Φ⁻¹(0.2) − Φ⁻¹(0.1) = 0.43993; T = (0.43993 · 20)²


def test_the_sampling_rate_is_the_largest_that_is_certain_to_meet_the_limit():
    found = calibrate(0.2, 0.1, noise_multiplier=1.0, steps=500)
    assert found.bound.success <= 0.2
    more = dpsgd(0.1, noise_multiplier=1.0, sample_rate=found.sample_rate * 1.001, steps=500)
    assert more.lower > 0.2 * (1 - 1e-4)
    assert calibrate(0.9, 0.1, noise_multiplier=30.0, steps=2).sample_rate == 1.0


def test_a_limit_just_above_the_baseline_is_solved_with_certificates_that_resolve_it():
    found = calibrate(0.1000003, 0.1, sample_rate=0.01, steps=10)
    assert 1e4 < found.noise_multiplier < 1e5
    assert found.bound.success <= 0.1000003


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "baseline"),
    [(1e-6, 0.5, 10, 0.5), (0.03, 0.01, 100, 0.1), (0.1, 0.2, 20, 0.01)],
)
def test_hardly_any_noise_leaves_only_the_sampling_as_a_secret(noise, rate, steps, baseline):
    bound = dpsgd(baseline, noise_multiplier=noise, sample_rate=rate, steps=steps)
    absent = (1 - rate) ** steps
    assert bound.success == pytest.approx(absent * baseline + 1 - absent, rel=1e-4)
    assert bound.lower <= absent * baseline + 1 - absent <= bound.success


def test_steps_end_where_the_search_does():
    assert calibrate(0.5, 0.1, noise_multiplier=1e5, sample_rate=1e-4).steps == MOST_STEPS


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "noise"),
    [
        (4, 0.01, 100, 0.5905018),
        (4, 0.99, 100, 10.7054141),
        (4, 0.02, 1000, 0.9873857),
        (10, 1.0, 100, 4.999),
        (0.767, 0.003162, 1066, 0.8753),  # rare batches do not lead the search astray
        (5.015, 0.001216, 31, 0.3861),
        (1.0, 0.1, 20, None),
        (8.0, 0.5, 3, None),
    ],
)
def test_a_certified_noise_is_enough_for_a_budget_and_one_just_below_is_not(epsilon, rate, steps, noise):
    settings = {"delta": 1e-5, "sample_rate": rate, "steps": steps}
    enough, not_enough = (noise_for_epsilon(epsilon, **settings, enough=side) for side in (True, False))
    assert not_enough < enough < not_enough * (1 + 3e-4)
    assert noise is None or enough == pytest.approx(noise, rel=2e-4)
    assert delta_lower(Segment(not_enough, rate, steps), epsilon) >= 1e-5
    assert delta_upper(Segment(enough, rate, steps), epsilon) <= 1e-5
    assert epsilon_upper(Segment(enough, rate, steps), 1e-5) <= epsilon * (1 + 1e-3)
    (point,) = frontier("sample_rate", [rate], epsilon=epsilon, steps=steps, delta=1e-5)
    assert point.success_upper >= dpsgd(0.1, noise_multiplier=enough, sample_rate=rate, steps=steps).lower
    assert delta_lower(Segment(point.noise_multiplier, rate, steps), epsilon) >= 1e-5


def test_a_frontier_over_the_shortlist_keeps_the_noise():
    points = frontier("candidates", [10, 100, 1000], steps=10)
    assert len({point.noise_multiplier for point in points}) == 1
    assert points[0].success_upper > points[1].success_upper > points[2].success_upper


def test_a_limit_that_any_noise_meets_takes_the_smallest_that_is_looked_at():
    found = calibrate(0.9, 0.1, sample_rate=1e-6, steps=10)
    assert found.noise_multiplier == pytest.approx(1e-3, rel=1e-12)
    assert found.bound.success <= 0.1 + 1e-5  # it is hardly ever sampled


@pytest.mark.parametrize("guess", [None, 1.2964832834986098, 0.01, 500.0])
def test_a_search_finds_the_noise_from_any_start(guess):
    # A rough value with an error once gave a slope from which the search ran out of the range.
    settings = {"delta": 1e-9, "sample_rate": 0.0177827941, "steps": 10**6}
    most = noise_for_epsilon(93.71548965043829, enough=False, guess=guess, **settings)
    least = noise_for_epsilon(93.71548965043829, guess=guess, **settings)
    assert most <= least <= most * (1 + 2e-4)
    assert least == pytest.approx(2.0928, rel=2e-4)
