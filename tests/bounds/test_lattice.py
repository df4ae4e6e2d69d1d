from __future__ import annotations

import math

import numpy as np
import pytest
from bounds_by_hand import rounded_test, two_steps

from remanence.bounds.engine.closed_forms import gaussian_success, single_step_success
from remanence.bounds.engine.contour import estimate_success
from remanence.bounds.engine.lattice import lattice_bracket, lattice_brackets
from remanence.bounds.engine.quantise import quantise
from remanence.bounds.engine.schedule import Segment

# Independent values and the bracket both carry rounding; nothing here is better than this.
ROUNDING = 1e-9


def assert_brackets(ends, log_success, *, rtol=1e-4, slack=ROUNDING):
    assert ends.log_lower - slack <= log_success <= ends.log_upper + slack
    assert ends.log_upper - ends.log_lower <= rtol


@pytest.mark.parametrize(
    ("noise", "rate", "spacing"), [(0.5, 0.001, 1e-3), (1.0, 0.02, 1e-3), (10.0, 0.5, 1e-3)]
)
@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 3.0])
def test_one_quantised_step_keeps_both_laws_whole(noise, rate, spacing, order):
    step = quantise(Segment(noise, rate), spacing=spacing, order=order, log_mass=-45)
    losses = step.start + spacing * np.arange(len(step.null.probabilities))

    def total(masses, tilt):
        return float(masses.probabilities @ np.exp(masses.log_total - tilt * losses))

    assert total(step.null, order) == pytest.approx(1, abs=1e-14)
    assert total(step.alternative, order - 1) == pytest.approx(1, abs=1e-14)
    assert total(step.spread, order) == pytest.approx(1, abs=1e-14)
    assert total(step.spread, order - 1) == pytest.approx(1, abs=1e-14)  # the pair's ratio is e^loss exactly


@pytest.mark.parametrize("epsilon", [0.1, 0.7, 2.3])
def test_the_dominating_pair_dominates_between_its_dots_and_agrees_on_them(epsilon):
    noise, rate, spacing = 0.8, 0.3, 0.25
    step = quantise(Segment(noise, rate), spacing=spacing, order=0.0, log_mass=-60)
    losses = step.start + spacing * np.arange(len(step.spread.probabilities))
    on_a_dot = losses[np.argmin(np.abs(losses - epsilon))]
    for point, equal in ((epsilon, False), (on_a_dot, True)):
        threshold = 0.5 + noise**2 * math.log((math.exp(point) - (1 - rate)) / rate)
        x = np.linspace(threshold, threshold + 15 * noise, 200_001)
        density = np.exp(-0.5 * (x / noise) ** 2) / noise / math.sqrt(2 * math.pi)
        ratio = 1 - rate + rate * np.exp((x - 0.5) / noise**2)
        exact = np.trapezoid(density * (ratio - math.exp(point)), x)
        weights = step.spread.probabilities * math.exp(step.spread.log_total)
        dominating = weights @ np.maximum(np.exp(losses) - math.exp(point), 0)
        assert dominating >= exact - 1e-12
        assert bool(abs(dominating / exact - 1) < 1e-7) is equal


@pytest.mark.parametrize("rate", [1.0, 1 - 1e-13])
@pytest.mark.parametrize("steps", [2, 50])
@pytest.mark.parametrize("log_baseline", [math.log(0.9), math.log(0.1), -20.0, -300 * math.log(10)])
@pytest.mark.parametrize("shift", [0.3, 3.0, 20.0])
def test_full_batch_runs_through_the_lattice_match_the_closed_form(rate, steps, log_baseline, shift):
    ends, _, narrow = lattice_bracket((Segment(math.sqrt(steps) / shift, rate, steps),), log_baseline)
    log_success, complement = gaussian_success(log_baseline, shift=shift)
    assert narrow
    assert_brackets(ends, float(log_success), slack=1e-8)
    if rate == 1 or complement > -50:  # below, the rare step without the target shows
        assert ends.log_complement_lower - 1e-8 <= float(complement) <= ends.log_complement_upper + 1e-8
    assert ends.log_complement_upper - ends.log_complement_lower <= 1e-2


@pytest.mark.parametrize("log_baseline", [math.log(0.9), math.log(0.1), math.log(1e-3), -60.0])
@pytest.mark.parametrize(("noise", "rate"), [(0.3, 0.01), (1.0, 0.5), (3.0, 0.1), (0.0317, 0.03)])
def test_a_single_step_through_the_lattice_matches_the_closed_form(noise, rate, log_baseline):
    ends, _, _ = lattice_bracket((Segment(noise, rate),), log_baseline)
    log_success, _ = single_step_success(log_baseline, segment=Segment(noise, rate))
    assert_brackets(ends, float(log_success), rtol=math.inf if log_baseline < -50 else 1e-4)


@pytest.mark.parametrize("baseline", [0.4, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.5), (0.7, 0.3), (2.0, 0.1), (0.4, 0.02), (1.0, 0.9)])
def test_two_steps_match_nested_quadrature(noise, rate, baseline):
    ends, _, narrow = lattice_bracket((Segment(noise, rate, 2),), math.log(baseline))
    assert narrow
    assert_brackets(ends, math.log(two_steps(baseline, (noise, rate), (noise, rate))))


@pytest.mark.parametrize("baseline", [0.3, 1e-2, 1e-4])
@pytest.mark.parametrize(("first", "second"), [((1.0, 0.5), (2.0, 0.2)), ((0.5, 0.05), (1.5, 0.6))])
def test_two_different_steps_match_nested_quadrature(first, second, baseline):
    ends, _, narrow = lattice_bracket((Segment(*first), Segment(*second)), math.log(baseline))
    assert narrow
    assert_brackets(ends, math.log(two_steps(baseline, first, second)))


def test_splitting_a_run_into_equal_parts_changes_nothing():
    whole, _, _ = lattice_bracket((Segment(0.8, 0.05, 300),), math.log(0.01))
    parts, _, _ = lattice_bracket((Segment(0.8, 0.05, 100), Segment(0.8, 0.05, 200)), math.log(0.01))
    assert parts.log_lower == pytest.approx(whole.log_lower, abs=1e-9)
    assert parts.log_upper == pytest.approx(whole.log_upper, abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "baseline"),
    [
        ((0.987386, 0.02, 1000), 0.1),
        ((0.6, 0.02, 1000), 1e-3),
        ((0.2, 0.01, 100), 0.1),
        ((0.25, 0.003, 100), 0.5),
        ((2.0, 0.3, 50), 0.9),
    ],
)
def test_an_independent_untilted_transform_finds_no_better_test_and_nearly_as_good_a_one(settings, baseline):
    ends, _, narrow = lattice_bracket((Segment(*settings),), math.log(baseline))
    power = math.log(rounded_test(baseline, *settings))
    assert narrow
    assert power <= ends.log_upper + 1e-9
    assert power >= ends.log_lower - 2e-4


def test_the_near_atomic_anchor_is_certified():
    ends, _, narrow = lattice_bracket((Segment(0.2, 0.01, 100),), math.log(0.1), rtol=1e-6)
    assert narrow
    assert ends.log_lower <= math.log(0.66152852)
    assert ends.log_upper >= math.log(0.66152828)


@pytest.mark.parametrize("log_baseline", [-20 * math.log(10), -784 * math.log(4)])
@pytest.mark.parametrize("settings", [(0.5, 0.1, 100), (1.0, 0.5, 100)])
def test_tiny_baselines_contain_the_contour_estimate(settings, log_baseline):
    ends, pair, narrow = lattice_bracket((Segment(*settings),), log_baseline)
    found = estimate_success((Segment(*settings),), log_baseline)
    assert narrow
    assert pair.order >= 1
    assert found.converged
    assert_brackets(ends, found.log_success)


def test_a_work_limit_widens_the_bracket_and_says_so():
    settings, log_baseline = (0.6, 0.001, 1_000_000), -4000.0
    ends, _, narrow = lattice_bracket((Segment(*settings),), log_baseline)
    found = estimate_success((Segment(*settings),), log_baseline)
    assert not narrow
    assert found.converged
    assert_brackets(ends, found.log_success, rtol=1.0)


def test_many_baselines_share_a_lattice_without_losing_their_brackets():
    run = (Segment(0.8, 0.02, 1000),)
    logs = [math.log(baseline) for baseline in (1e-12, 1e-4, 0.01, 0.03, 0.1, 0.3, 0.5, 0.9)]
    for log_baseline, (ends, narrow) in zip(logs, lattice_brackets(run, logs), strict=True):
        assert narrow
        assert_brackets(ends, estimate_success(run, log_baseline).log_success)


def test_a_finer_tolerance_is_met_when_asked_for():
    run = (Segment(0.987386, 0.02, 1000),)
    ends, _, narrow = lattice_bracket(run, math.log(0.1), rtol=1e-6)
    assert narrow
    assert_brackets(ends, estimate_success(run, math.log(0.1)).log_success, rtol=1e-6)
