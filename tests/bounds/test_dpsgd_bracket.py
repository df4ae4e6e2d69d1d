from __future__ import annotations

import ast
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from bounds_by_hand import rounded_test

from remanence import bounds
from remanence.bounds.engine.bracket import Bracket
from remanence.bounds.engine.closed_forms import gaussian_success
from remanence.bounds.engine.cumulant import moments, order_for_baseline
from remanence.bounds.engine.dpsgd import dpsgd_bracket, dpsgd_brackets
from remanence.bounds.engine.schedule import Segment

LOG_TEN = math.log(10)
TINY_BASELINES = -784 * math.log(4), -3072 * math.log(4)  # κ = 9.66e-473 and 2.96e-1850


def assert_in_order(bracket, log_baseline):
    assert log_baseline <= bracket.log_lower <= bracket.log_upper <= 0
    assert bracket.log_complement_lower <= bracket.log_complement_upper <= 0


FIGURE_4 = [4.55375, 2.51199, 1.48361, 0.987386, 0.733903, 0.675777, 0.532911, 0.426057, 0.317605]
FIGURE_5 = {0.01: 0.590502, 0.02: 0.687696, 0.05: 0.939450, 0.1: 1.385995, 0.2: 2.375195, 0.4: 4.456877,
            0.6: 6.568633, 0.8: 8.688481, 0.99: 10.705414}  # fmt: skip
REPRODUCED = [
    *(((noise, 0.02, 1000), 0.1, success) for noise, success in zip(FIGURE_4, [
        0.127042, 0.154303, 0.211837, 0.327393, 0.524809, 0.605705, 0.857144, 0.982616, 0.999904], strict=True)),
    *(((noise, rate, 100), 0.1, success) for (rate, noise), success in zip(FIGURE_5.items(), [
        0.186773, 0.223860, 0.282337, 0.319044, 0.340842, 0.352790, 0.357083, 0.359316, 0.360632], strict=True)),
    *(((noise, 0.001, 100_000), baseline, success) for noise, baseline, success in [
        (0.5, 0.1, 0.764904), (0.6, 0.1, 0.464668), (0.8, 0.1, 0.252254), (1.0, 0.1, 0.193125), (5.0, 0.1, 0.111680),
        (0.6, 1e-3, 0.0323193), (0.6, 1e-6, 2.81966e-4)]),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "baseline", "success"), REPRODUCED)
def test_figures_and_production_settings_are_reproduced(settings, baseline, success):
    bracket = dpsgd_bracket(Segment(*settings), math.log(baseline))
    assert bracket.converged
    assert_in_order(bracket, math.log(baseline))
    assert bracket.log_lower - 5e-6 <= math.log(success) <= bracket.log_upper + 5e-6
    assert bracket.log_upper - bracket.log_lower <= 1e-4


# By contour integration of the complex cumulant, a method that shares nothing with the lattice.
TINY = {
    (0.6, 0.02, 1000): [-3.59162, -9.70919, -28.0254, -314.0693, -1296.079],
    (0.5, 0.1, 100): [-1.58187, -5.21613, -17.6529, -250.3906, -1235.175],
    (1.0, 0.5, 100): [-0.594514, -3.80386, -17.9603, -320.5600, -1500.732],
    (0.6, 0.001, 100_000): [-5.73213, -13.9637, -36.9037],
}


@pytest.mark.parametrize("settings", TINY)
def test_tiny_baselines_match_contour_integrals(settings):
    logs = [-9 * LOG_TEN, -20 * LOG_TEN, -50 * LOG_TEN, *TINY_BASELINES]
    for log_baseline, expected in zip(logs, TINY[settings], strict=False):
        bracket = dpsgd_bracket(Segment(*settings), log_baseline)
        slack = 4e-6 * abs(expected)
        assert bracket.log_lower / LOG_TEN - slack <= expected <= bracket.log_upper / LOG_TEN + slack
        assert bracket.converged or log_baseline < -50 * LOG_TEN


@pytest.mark.parametrize(
    ("settings", "log_success"),
    [
        ((3.0, 0.05, 500, 5), (-0.505715597, -5.980125197)),
        ((8.0, 0.01, 3000, 20), (-0.93235338, -7.899339369)),
        ((2.0, 0.3, 40, 2), (-0.487946385, -5.543533043)),
        ((12.0, 0.02, 2000, 40), (-0.094826301, -3.243789114)),
    ],
)
def test_many_records_match_contour_integrals(settings, log_success):
    for baseline, expected in zip((0.05, 1e-6), log_success, strict=True):
        bracket = dpsgd_bracket(Segment(*settings), math.log(baseline))
        assert bracket.log_lower - 1e-8 <= expected <= bracket.log_upper + 1e-8
        assert bracket.converged


def test_nearly_certain_success_keeps_a_certified_complement():
    bracket = dpsgd_bracket(Segment(0.5, 0.9, 100), math.log(0.5))
    assert (
        bracket.log_complement_lower <= -116.96232029 <= bracket.log_complement_upper
    )  # by a contour integral
    assert bracket.log_complement_upper - bracket.log_complement_lower < 1e-2


@pytest.mark.parametrize("log_baseline", [math.log(0.1), -20 * LOG_TEN, *TINY_BASELINES])
@pytest.mark.parametrize("noise", [10.0, 0.3])
def test_full_batch_runs_use_the_closed_form_at_any_baseline_and_add_up(noise, log_baseline):
    bracket = dpsgd_bracket([Segment(noise, steps=52), Segment(noise / 2, steps=12)], log_baseline)
    exact, _ = gaussian_success(log_baseline, shift=10 / noise)  # 52 and 4 times 12 steps
    assert bracket.method == "closed form"
    assert_in_order(bracket, log_baseline)
    assert bracket.log_lower <= float(exact) <= bracket.log_upper <= float(exact) + 1e-12 * abs(log_baseline)


def strictly_rising(brackets):
    return all(after.log_lower > before.log_upper for before, after in itertools.pairwise(brackets))


@pytest.mark.parametrize("baseline", [0.3, 1e-4])
@pytest.mark.parametrize(
    "runs",
    [
        [Segment(0.9, rate, 200) for rate in (0.01, 0.02, 0.1, 0.6)],
        [Segment(0.9, 0.05, steps) for steps in (10, 20, 100, 900)],
        [Segment(noise, 0.05, 200) for noise in (3, 1.5, 0.9, 0.5)],
        [Segment(1.5, 0.02, 200, records) for records in (1, 2, 5, 20, 64)],
        # A mixed schedule lies between its extremes, and sampled steps after full batches add to them.
        [
            Segment(1.5, 0.02, 1000),
            [Segment(1.5, 0.02, 500), Segment(0.8, 0.02, 500)],
            Segment(0.8, 0.02, 1000),
        ],
        [Segment(5.0, 1.0, 10), [Segment(5.0, 1.0, 10), Segment(1.0, 0.1, 20)]],
    ],
    ids=["rate", "steps", "noise", "records", "mixed", "added"],
)
def test_success_rises_with_everything_that_helps_the_adversary(runs, baseline):
    found = [dpsgd_bracket(run, math.log(baseline)) for run in runs]
    assert strictly_rising(found)
    assert all(bracket.converged for bracket in found)


def test_success_rises_with_the_baseline_and_is_concave_in_it():
    baselines = [1e-8, 1e-4, 1e-2, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95]
    for run in (Segment(0.8, 0.02, 1000), Segment(0.2, 0.01, 100)):
        brackets = dpsgd_brackets(run, [math.log(baseline) for baseline in baselines])
        assert strictly_rising(brackets)
        points = list(zip(baselines, brackets, strict=True))
        for (left, low), (centre, middle), (right, high) in zip(points, points[1:], points[2:], strict=False):
            share = (centre - left) / (right - left)
            chord = (1 - share) * math.exp(low.log_lower) + share * math.exp(high.log_lower)
            assert math.exp(middle.log_upper) >= chord


def test_a_certain_baseline_stays_certain():
    assert dpsgd_bracket(Segment(1.0, 0.1, 10), 0.0).log_lower == 0


def random_run(generator, most_steps):
    """A setting whose loss has roughly the spread of an (ε, 1e-5) run, ε log-uniform in 0.1 … 1000."""
    rate = 10 ** generator.uniform(-4, 0)
    steps = int(10 ** generator.uniform(0, math.log10(most_steps)))
    epsilon = 10 ** generator.uniform(-1, 3)
    low, high = 0.02, 1e5
    while high / low > 1.02:
        noise = math.sqrt(low * high)
        at = moments((Segment(noise, rate, steps),), 1.0)
        low, high = (noise, high) if at.mean + 4.3 * at.deviation > epsilon else (low, noise)
    return Segment(high, rate, steps)


MORE = [pytest.param(seed, 10, 10**6, marks=pytest.mark.slow) for seed in range(1000, 1100)]


@pytest.mark.parametrize(
    ("seed", "settings", "most_steps"), [*((seed, 1, 10**4) for seed in range(60)), *MORE]
)
def test_random_settings_are_bracketed(seed, settings, most_steps):
    generator = np.random.default_rng(seed)
    for _ in range(settings):
        run = random_run(generator, most_steps)
        tiny = generator.random() < 0.3
        log_baseline = LOG_TEN * generator.uniform(*((-300, -6) if tiny else (-6, math.log10(0.9))))
        bracket = dpsgd_bracket(run, log_baseline)
        assert_in_order(bracket, log_baseline)
        if log_baseline > math.log(1e-4) and run.sample_rate < 1:
            power = rounded_test(math.exp(log_baseline), run.noise_multiplier, run.sample_rate, run.steps)
            assert math.log(power) <= bracket.log_upper + 1e-6


def test_an_order_comes_with_its_own_moments():
    """Where a second mode takes over, the search for the order ends in a jump."""
    schedule, log_baseline = (Segment(10.0, 0.01, 5),), math.log(1e-5)
    order, at = order_for_baseline(schedule, log_baseline)
    assert at == moments(schedule, order)


def test_two_sides_that_cross_are_an_error(monkeypatch):
    crossed = Bracket(-1.0, -2.0, -3.0, -2.0)
    monkeypatch.setattr("remanence.bounds.engine.dpsgd.lattice_bracket", lambda *_, **__: (crossed, None))
    monkeypatch.setattr("remanence.bounds.engine.dpsgd._atomic", lambda *_: crossed)
    monkeypatch.setattr("remanence.bounds.engine.dpsgd.Bracket.excess", lambda *_: 0.0)
    with pytest.raises(ArithmeticError, match="crossed"):
        dpsgd_bracket(Segment(1.2346, 0.02, 1000), math.log(0.01))


def test_no_guarantee_of_the_bounds_rests_on_an_assertion():
    for path in Path(bounds.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)], path


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "baseline", "at_most"),
    [
        (0.5, 1e-9, 2, 1e-9, 1.0002),  # was 6.4
        (0.5, 1e-7, 2, 1e-9, 1.0045),
        (0.6, 1e-4, 10**6, 0.1, 1.8636),
        (1.75, 2.9e-5, 222, 7.6e-12, 1.0024),  # took seconds and was loose by half
        (0.823, 8.7e-5, 10_843, 2.1e-10, 1.489),
        (2.0, 1e-5, 10**9, 0.1, 1.4),
    ],
)
def test_rare_large_losses_neither_loosen_nor_slow_the_bracket(noise, rate, steps, baseline, at_most):
    bracket = dpsgd_bracket(Segment(noise, rate, steps), math.log(baseline))
    assert bracket.log_upper - bracket.log_lower <= 3e-3
    assert math.exp(bracket.log_upper) <= at_most * baseline


def test_a_loss_that_is_nearly_an_atom_does_not_stretch_the_lattice_beyond_memory():
    in_groups = Segment(0.0599, 0.215249, 1_264_167, 19)  # its spacing, and its steps in groups, overflowed
    for run, baseline, rtol in (
        (Segment(0.051017, 3.69115e-07, 163_166_272), 0.9, 1e-4),
        (in_groups, 0.25, 0.9),
    ):
        assert_in_order(dpsgd_bracket(run, math.log(baseline), rtol=rtol), math.log(baseline))


@pytest.mark.parametrize("baseline", [1e-9, 1e-4, 0.3])
def test_ceilings_never_fall_where_the_risk_rises(baseline):
    log = math.log(baseline)
    lines = [
        [Segment(0.5, rate, 2) for rate in (1e-9, 1e-8, 1e-7, 1e-5, 1e-3, 0.1, 1.0)],
        [Segment(noise, 1e-3, 50) for noise in (50.0, 5.0, 1.0, 0.5, 0.3, 0.2, 0.16, 0.14, 0.1, 0.05)],
        [Segment(0.7, 1e-4, steps) for steps in (1, 2, 3, 10, 100, 10**4, 10**6)],
    ]
    for line in lines:
        uppers = [dpsgd_bracket(run, log).log_upper for run in line]
        assert all(after >= before - 1e-4 for before, after in itertools.pairwise(uppers))
