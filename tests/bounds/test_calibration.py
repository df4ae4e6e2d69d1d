from __future__ import annotations

import math

import mpmath
import pytest

from remanence import InputError, calibrate, noise_for_epsilon
from remanence.bounds import Segment, delta_lower, delta_upper, dpsgd, epsilon_upper
from remanence.bounds.calibration import MOST_STEPS
from remanence.bounds.engine.dpsgd import dpsgd_bracket
from remanence.bounds.frontier import evenly, frontier

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


def test_full_batch_steps_agree_with_the_formula():
    # Φ⁻¹(0.2) − Φ⁻¹(0.1) = 0.43993; T = (0.43993 · 20)².
    assert calibrate(0.2, 0.1, noise_multiplier=20.0, sample_rate=1.0).steps == 77


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
    ("rate", "steps", "epsilon", "noise"), [(0.003162, 1066, 0.767, 0.8753), (0.001216, 31, 5.015, 0.3861)]
)
def test_rare_batches_do_not_lead_the_search_astray(rate, steps, epsilon, noise):
    assert noise_for_epsilon(epsilon, delta=1e-5, sample_rate=rate, steps=steps) == pytest.approx(
        noise, rel=1e-3
    )


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
    ],
)
def test_noise_and_epsilon_go_both_ways(epsilon, rate, steps, noise):
    found = noise_for_epsilon(epsilon, delta=1e-5, sample_rate=rate, steps=steps)
    assert found == pytest.approx(noise, rel=2e-4)
    run = Segment(found, rate, steps)
    assert delta_upper(run, epsilon) <= 1e-5
    assert epsilon_upper(run, 1e-5) <= epsilon * (1 + 1e-3)


def test_figure_5_the_same_epsilon_is_a_different_risk_at_a_different_rate():
    rates = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.99]
    expected = [0.186773, 0.223860, 0.282337, 0.319044, 0.340842, 0.352790, 0.357083, 0.359316, 0.360632]
    points = frontier("sample_rate", rates)
    assert [point.success_upper for point in points] == pytest.approx(expected, rel=3e-4)
    for point, value in zip(points, expected, strict=True):
        assert point.success_lower * (1 - 1e-5) <= value <= point.success_upper * (1 + 1e-4)


def test_a_frontier_over_the_shortlist_keeps_the_noise():
    points = frontier("candidates", [10, 100, 1000], steps=10)
    assert len({point.noise_multiplier for point in points}) == 1
    assert points[0].success_upper > points[1].success_upper > points[2].success_upper


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: calibrate(0.3, 0.1),
        lambda: calibrate(0.3, 0.1, noise_multiplier=1.0, sample_rate=0.1, steps=10),
        lambda: calibrate(0.05, 0.1, sample_rate=0.1, steps=10),
        lambda: calibrate(1.0, 0.1, sample_rate=0.1, steps=10),
        lambda: calibrate(0.11, 0.1, noise_multiplier=0.1, sample_rate=1.0),
        lambda: calibrate(0.3, 0.1, sample_rate=2.0, steps=10),
        lambda: calibrate(0.3, 0.1, sample_rate=0.5, steps=10**12),
        lambda: noise_for_epsilon(-1.0, delta=1e-5),
        lambda: noise_for_epsilon(1.0, delta=0.0),
        lambda: evenly(1.0, 0.5, 5),
        lambda: evenly(0.1, 1, 1),
    ],
)
def test_what_cannot_be_solved_is_refused_with_a_reason(attempt):
    with pytest.raises(InputError) as caught:
        attempt()
    assert caught.value.needs
    assert caught.value.hint


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"), [(4.0, 1.0, 100), (4.0, 0.02, 1000), (1.0, 0.1, 20), (8.0, 0.5, 3)]
)
def test_the_ceiling_of_a_budget_holds_for_the_least_noise_that_keeps_it(epsilon, rate, steps):
    settings = {"delta": 1e-5, "sample_rate": rate, "steps": steps}
    enough, not_enough = (noise_for_epsilon(epsilon, **settings, enough=side) for side in (True, False))
    assert not_enough < enough < not_enough * (1 + 3e-4)
    assert delta_lower(Segment(not_enough, rate, steps), epsilon) >= 1e-5
    assert delta_upper(Segment(enough, rate, steps), epsilon) <= 1e-5
    (point,) = frontier("sample_rate", [rate], epsilon=epsilon, steps=steps, delta=1e-5)
    assert point.success_upper >= dpsgd(0.1, noise_multiplier=enough, sample_rate=rate, steps=steps).lower
    assert delta_lower(Segment(point.noise_multiplier, rate, steps), epsilon) >= 1e-5


def test_a_printed_ceiling_for_a_budget_is_not_below_the_truth():
    with mpmath.workdps(30):  # the smallest noise that is (4, 1e-5)-DP over 100 full batches, and γ there

        def excess(shift):
            near, far = shift / 2 - 4 / shift, -shift / 2 - 4 / shift
            return mpmath.ncdf(near) - mpmath.exp(4) * mpmath.ncdf(far) - mpmath.mpf("1e-5")

        shift = mpmath.findroot(excess, (0.9, 0.95), solver="anderson")
        quantile = mpmath.findroot(lambda x: mpmath.ncdf(x) - mpmath.mpf("0.1"), -1.28)
        truth = float(mpmath.ncdf(quantile + shift))
    assert truth == pytest.approx(0.360687901, abs=1e-9)
    noise = noise_for_epsilon(4.0, delta=1e-5, steps=100, enough=False)
    assert truth <= dpsgd(0.1, noise_multiplier=noise, steps=100).success < truth * (1 + 1e-4)


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
