from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from bounds_by_hand import mixture_ratio, tail, two_steps
from scipy.optimize import brentq

from remanence.bounds.engine.closed_forms import gaussian_success, single_step_success
from remanence.bounds.engine.lattice import lattice_bracket
from remanence.bounds.engine.quantise import quantise
from remanence.bounds.engine.schedule import Segment, normalise

# Independent values and the bracket both carry rounding; nothing here is better than this.
ROUNDING = 1e-9


def assert_brackets(ends, log_success, *, rtol=1e-4, slack=ROUNDING):
    assert ends.log_lower - slack <= log_success <= ends.log_upper + slack
    assert ends.log_upper - ends.log_lower <= rtol


@pytest.mark.parametrize(
    ("noise", "rate", "records", "spacing"),
    [
        (0.5, 0.001, 1, 1e-3),
        (1.0, 0.02, 1, 1e-3),
        (10.0, 0.5, 1, 1e-3),
        (0.8, 0.1, 4, 1e-2),
        (3.0, 0.3, 30, 1e-2),
    ],
)
def test_one_quantised_step_keeps_both_laws_whole(noise, rate, records, spacing):
    step = quantise(Segment(noise, rate, 1, records).capped(-45), spacing=spacing, order=0.0, log_mass=-45)
    for law, tilt in ((step.null, 0), (step.alternative, 0), (step.spread, 0), (step.spread, 1)):
        assert np.exp(law + tilt * step.losses).sum() == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize(("noise", "rate", "spacing"), [(0.8, 0.3, 0.25), (2.0, 0.01, 1e-3)])
def test_a_loss_is_rounded_to_the_nearest_point(noise, rate, spacing):
    step = quantise(Segment(noise, rate).capped(-45), spacing=spacing, order=0.0, log_mass=-45)
    losses = step.losses[2:12]
    for law, present in ((step.null, False), (step.alternative, True)):
        tails = [tail(losses + side * spacing / 2, noise, rate, present=present) for side in (-1, 1)]
        assert np.exp(law[2:12]) == pytest.approx(tails[0] - tails[1], rel=1e-9)


def test_a_law_that_is_not_whole_is_an_error(monkeypatch):
    rule = np.polynomial.legendre.leggauss(2)
    monkeypatch.setattr("remanence.bounds.engine.quantise.RULES", dict.fromkeys((2, 3, 5, 12, 64), rule))
    with pytest.raises(ArithmeticError, match="missing"):
        quantise(Segment(0.3, 0.1).capped(-45), spacing=2.0, order=0.0, log_mass=-45)


def test_a_mass_that_is_a_little_off_widens_the_bracket(monkeypatch):
    _, pair = lattice_bracket((Segment(1.0, 0.1, 100),), math.log(0.1))
    monkeypatch.setattr("remanence.bounds.engine.quantise._Builder._defect", lambda *_, **__: 5e-10)
    step = quantise(Segment(1.0, 0.1).capped(-45), spacing=0.01, order=0.0, log_mass=-45)
    assert 5e-10 < step.rounding < 6e-10
    worse = replace(
        pair,
        **{name: replace(getattr(pair, name), rounding=1e-6) for name in ("upper", "null", "alternative")},
    )
    off, whole = (one.bracket(math.log(0.1))[0] for one in (worse, pair))
    assert off.log_lower < whole.log_lower < whole.log_upper < off.log_upper


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("epsilon", [0.1, 0.7, 2.3])
def test_the_dominating_pair_dominates_between_its_dots_and_agrees_on_them(epsilon, records):
    noise, rate, spacing = 0.8, 0.3, 0.25
    segment = Segment(noise, rate, 1, records).capped(-60)
    step = quantise(segment, spacing=spacing, order=0.0, log_mass=-60)
    on_a_dot = step.losses[np.argmin(np.abs(step.losses - epsilon))]
    for point, equal in ((epsilon, False), (on_a_dot, True)):
        threshold = brentq(lambda x: math.log(mixture_ratio(x, noise, rate, records)) - point, -50, 50)  # noqa: B023
        x = np.linspace(threshold, threshold + records + 15 * noise, 400_001)
        density = np.exp(-0.5 * (x / noise) ** 2) / noise / math.sqrt(2 * math.pi)
        exact = np.trapezoid(density * (mixture_ratio(x, noise, rate, records) - math.exp(point)), x)
        dominating = np.exp(step.spread) @ np.maximum(np.exp(step.losses) - math.exp(point), 0)
        assert dominating >= exact - 1e-9
        assert bool(abs(dominating / exact - 1) < 1e-7) is equal


@pytest.mark.parametrize("rate", [1.0, 1 - 1e-13])
@pytest.mark.parametrize("steps", [2, 50])
@pytest.mark.parametrize("log_baseline", [math.log(0.9), math.log(0.1), -20.0, -300 * math.log(10)])
@pytest.mark.parametrize("shift", [0.3, 3.0, 20.0])
def test_full_batch_runs_through_the_lattice_match_the_closed_form(rate, steps, log_baseline, shift):
    ends, _ = lattice_bracket((Segment(math.sqrt(steps) / shift, rate, steps),), log_baseline)
    log_success, complement = gaussian_success(log_baseline, shift=shift)
    assert ends.excess(1e-4) <= 1
    assert_brackets(ends, float(log_success), slack=1e-8)
    if rate == 1 or complement > -50:  # below, the rare step without the target shows
        assert ends.log_complement_lower - 1e-8 <= float(complement) <= ends.log_complement_upper + 1e-8
    assert ends.log_complement_upper - ends.log_complement_lower <= 1e-2


@pytest.mark.parametrize("log_baseline", [math.log(0.9), math.log(0.1), math.log(1e-3), -60.0])
@pytest.mark.parametrize(("noise", "rate"), [(0.3, 0.01), (1.0, 0.5), (3.0, 0.1), (0.0317, 0.03)])
def test_a_single_step_through_the_lattice_matches_the_closed_form(noise, rate, log_baseline):
    ends, _ = lattice_bracket((Segment(noise, rate),), log_baseline)
    log_success, _ = single_step_success(log_baseline, segment=Segment(noise, rate))
    assert_brackets(ends, float(log_success), rtol=math.inf if log_baseline < -50 else 1e-4)


EQUAL = [(step, step) for step in [(1.0, 0.5), (0.7, 0.3), (2.0, 0.1), (0.4, 0.02), (1.0, 0.9)]]
DIFFERENT = [((1.0, 0.5), (2.0, 0.2)), ((0.5, 0.05), (1.5, 0.6))]


@pytest.mark.parametrize("baseline", [0.4, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize(("first", "second"), [*EQUAL, *DIFFERENT])
def test_two_steps_match_nested_quadrature(first, second, baseline):
    ends, _ = lattice_bracket(normalise([Segment(*first), Segment(*second)]), math.log(baseline))
    assert ends.excess(1e-4) <= 1
    assert_brackets(ends, math.log(two_steps(baseline, first, second)))


def test_the_near_atomic_anchor_is_certified():
    ends, _ = lattice_bracket((Segment(0.2, 0.01, 100),), math.log(0.1), rtol=1e-6)
    assert ends.excess(1e-6) <= 1
    assert ends.log_lower <= math.log(0.66152852)
    assert ends.log_upper >= math.log(0.66152828)


def test_a_work_limit_widens_the_bracket_and_says_so():
    settings, log_baseline = (0.6, 0.001, 1_000_000), -4000.0
    ends, _ = lattice_bracket((Segment(*settings),), log_baseline)
    assert ends.excess(1e-4) > 1
    assert_brackets(ends, -3060.01027315, rtol=1.0)  # by a contour integral


@pytest.mark.parametrize(
    ("settings", "baseline", "by_contour"),
    [
        ((20.0, 0.02, 10**6 + 7), 0.3, -0.381214837),
        ((20.0, 0.02, 10**6 + 7), 1e-9, -15.049859619),
        ((300.0, 0.5, 10**6), 1e-3, -2.560234972),
        ((5.0, 0.001, 10**7), 1e-3, -4.945431694),
        ((5.0, 0.001, 10**7), 1e-9, -16.988682818),
    ],
)
def test_steps_composed_in_groups_give_the_bracket_of_all_at_once(
    settings, baseline, by_contour, monkeypatch
):
    run, log_baseline = (Segment(*settings),), math.log(baseline)
    grouped, _ = lattice_bracket(run, log_baseline)
    monkeypatch.setattr("remanence.bounds.engine.lattice._MANY_POINTS", 2**60)
    alone, _ = lattice_bracket(run, log_baseline)
    assert grouped != alone
    assert_brackets(grouped, by_contour, rtol=3e-4)
    assert_brackets(alone, by_contour, rtol=3e-4)
