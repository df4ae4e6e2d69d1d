"""Balls in bins: the law of the likelihood ratio, against draws from it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from remanence.bounds import Person, Segment, dpsgd
from remanence.bounds.engine.allocation import _one_number, _renyi, allocation_bracket

DRAWS = 100_000
THROWN = Person(batches="balls-in-bins")


def losses(noise, bins, passes, *, with_record, generator):
    total = np.zeros(DRAWS)
    for _ in range(passes):
        for start in range(0, DRAWS, 20_000):
            noisy = noise * generator.standard_normal((20_000, bins))
            noisy[:, 0] += with_record
            total[start : start + 20_000] += np.log(np.exp((noisy - 0.5) / noise**2).mean(axis=1))
    return total


@pytest.mark.parametrize(
    ("noise", "bins", "passes", "baseline"),
    [(0.5, 10, 1, 0.1), (0.5, 100, 1, 0.01), (1.0, 20, 3, 0.1), (0.7, 10, 8, 0.02), (4.0, 5, 20, 0.3)],
)
def test_the_bracket_holds_what_draws_of_the_pair_show(noise, bins, passes, baseline):
    generator = np.random.default_rng(0)
    found = allocation_bracket(noise, bins, passes, math.log(baseline), 1e-3)
    absent = losses(noise, bins, passes, with_record=0, generator=generator)
    present = losses(noise, bins, passes, with_record=1, generator=generator)
    # γ ≤ κ·e^s + E(1 − e^{s−S})₊ at every s, with equality at the best one, which the other draws are near.
    threshold = float(np.quantile(absent, 1 - baseline))
    gains = np.maximum(1 - np.exp(threshold - present), 0.0)
    drawn, margin = baseline * math.exp(threshold) + gains.mean(), 5 * gains.std() / math.sqrt(DRAWS)
    assert math.exp(found.log_lower) <= drawn + margin
    assert math.exp(found.log_upper) >= drawn * (1 - 1e-3) - margin
    assert found.log_upper - found.log_lower <= 2e-3
    assert margin < 0.05 * drawn


@pytest.mark.parametrize("baseline", [0.5, 0.01, 1e-6])
def test_it_is_never_above_renyi_or_a_known_order_and_never_below_a_guess(baseline):
    run = Segment(1.1, 0.01, 1000)
    found = dpsgd(baseline, schedule=run, person=THROWN)
    assert found.log_success <= _renyi(1.1, 100, 10, math.log(baseline)) - 1e-3
    known = dpsgd(baseline, schedule=run, person=Person(batches="shuffled"))
    assert baseline < found.lower <= found.success < known.success


def test_the_readme_setting_takes_what_monte_carlo_says():
    """24.7 in 1000 (random allocation, 10 passes of 100 batches, noise 1.1), where Rényi divergences say 28.3."""
    found = allocation_bracket(1.1, 100, 10, math.log(0.01), 1e-4)
    assert math.exp(found.log_lower) == pytest.approx(0.0247234, abs=2e-6)
    assert math.exp(found.log_upper) == pytest.approx(0.0247243, abs=2e-6)


def random_setting(seed):
    generator = np.random.default_rng(seed)
    noise, bins = math.exp(generator.uniform(-0.7, 3)), int(math.exp(generator.uniform(0.7, 8)))
    return noise, bins, int(math.exp(generator.uniform(0, 5))), math.exp(generator.uniform(-12, -0.7)), 0.02


@pytest.mark.parametrize(
    ("noise", "bins", "passes", "baseline", "width"),
    [
        *map(random_setting, range(12)),
        (0.2993, 363, 1, 5.64e-5, 2e-3),  # one number in a million decides
        (0.295, 8, 724, 0.357, math.inf),  # and settings with so little noise that any answer will do
        (0.054, 1130, 2, 2.4e-9, math.inf),
        (0.091, 1022, 154, 2e-8, math.inf),
        (0.2, 8, 124, 0.855, math.inf),
        (1e-6, 10, 1, 0.1, math.inf),
    ],
)
def test_every_setting_is_answered_by_a_bracket(noise, bins, passes, baseline, width):
    found = allocation_bracket(noise, bins, passes, math.log(baseline), 1e-4)
    assert math.log(baseline) <= found.log_lower <= found.log_upper <= 0
    assert found.log_upper - found.log_lower <= width


@pytest.mark.parametrize(("noise", "spacing"), [(0.5, 0.7), (1.0, 0.05), (10.0, 0.01)])
def test_one_number_keeps_its_mass_and_its_mean(noise, spacing):
    cells = math.ceil(math.exp(6.5 / noise - 0.5 / noise**2) / spacing)
    split, null, present, escaped, error = _one_number(noise, spacing, cells)
    assert error < 1e-12
    for law in (split, null, present):
        assert law.sum() == pytest.approx(1, abs=error)
    assert spacing * split @ np.arange(cells + 1) + escaped == pytest.approx(1, abs=1e-12)
    assert split @ np.arange(cells + 1) ** 2 >= null @ np.arange(cells + 1) ** 2  # spread, not shrunk


def test_replacing_under_balls_in_bins_is_chained_from_the_same_law():
    run = Segment(1.0, 0.05, 20)
    out = dpsgd(0.05, schedule=run, person=THROWN)
    swapped = dpsgd(0.05, schedule=run, person=replace(THROWN, replaced=True))
    known = dpsgd(0.05, schedule=run, person=Person(batches="shuffled", replaced=True))
    assert out.success < swapped.success < 0.5 * known.success
    assert swapped.lower is None


def test_a_persons_records_are_put_back_one_after_the_other():
    """G(G(G(κ))); as a shuffle where that is less."""
    run, log = Segment(1.1, 0.01, 1000), math.log(0.01)
    for _ in range(3):
        log = allocation_bracket(1.1, 100, 10, log, 1e-4).log_upper
    found = dpsgd(0.01, schedule=run, person=Person(3, "balls-in-bins"))
    assert found.log_success == log
    assert found.lower == dpsgd(0.01, schedule=run, person=THROWN).lower
    loud = Segment(0.3, 0.5, 2)
    as_a_shuffle = dpsgd(0.3, schedule=loud, person=Person(40, "shuffled")).success
    assert dpsgd(0.3, schedule=loud, person=Person(40, "balls-in-bins")).success <= as_a_shuffle


def test_all_records_in_every_batch_are_a_gaussian_mechanism():
    run = Segment(2.0, steps=4)
    assert dpsgd(0.05, schedule=run, person=THROWN).success == dpsgd(0.05, schedule=run).success


def test_a_pass_that_has_begun_counts_whole():
    begun, whole = (dpsgd(0.05, schedule=Segment(1.0, 0.1, steps), person=THROWN) for steps in (41, 50))
    assert begun.success == whole.success
