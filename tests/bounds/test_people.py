"""Ceilings for people: several records each, against integrals by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from bounds_by_hand import few_steps

from remanence.bounds import Segment, delta_upper, epsilon_upper
from remanence.bounds.engine.bracket import dpsgd_bracket
from remanence.bounds.engine.contour import estimate_success

GRID_ERROR = {1: 1e-6, 2: 1e-5, 3: 3e-3}  # of the integrals by hand


def random_person(generator, most_records=6):
    return (
        float(np.exp(generator.uniform(math.log(0.5), math.log(5)))),
        float(np.exp(generator.uniform(math.log(0.01), math.log(0.9)))),
        int(generator.integers(1, most_records + 1)),
    )


def check_by_hand(seed):
    generator = np.random.default_rng(seed)
    noise, rate, records = random_person(generator)
    steps, baseline = (
        int(generator.integers(1, 4)),
        float(np.exp(generator.uniform(math.log(1e-3), math.log(0.8)))),
    )
    found = dpsgd_bracket(Segment(noise, rate, steps, records), math.log(baseline))
    by_hand = few_steps(baseline, noise, rate, records, steps)
    assert math.exp(found.log_upper) >= by_hand * (1 - GRID_ERROR[steps])
    assert math.exp(found.log_lower) <= by_hand * (1 + GRID_ERROR[steps])
    assert found.converged


@pytest.mark.parametrize("seed", range(10))
def test_no_ceiling_of_a_person_is_below_an_integral_by_hand(seed):
    check_by_hand(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_three_hundred_more_people(seed):
    check_by_hand(seed)


def test_one_record_is_the_existing_bound_to_the_last_digit():
    for settings in ((1.1, 0.01, 1000), (0.5, 0.3, 1), (3.0, 1.0, 100)):
        for baseline in (0.5, 0.01, 1e-9):
            one, plain = (
                dpsgd_bracket(segment, math.log(baseline))
                for segment in (Segment(*settings, records=1), Segment(*settings))
            )
            assert one == plain


def test_all_records_in_every_batch_are_one_long_record():
    together = dpsgd_bracket(Segment(6.0, 1.0, 50, records=3), math.log(0.1))
    assert together == dpsgd_bracket(Segment(2.0, 1.0, 50), math.log(0.1))


@pytest.mark.parametrize("baseline", [0.1, 1e-6])
def test_more_records_are_more_risk(baseline):
    found = [
        dpsgd_bracket(Segment(1.5, 0.02, 200, records), math.log(baseline)) for records in (1, 2, 5, 20, 64)
    ]
    assert all(b.converged for b in found)
    assert all(after.log_lower > before.log_upper for before, after in itertools.pairwise(found))


def test_an_independent_estimate_lies_in_the_bracket_of_many_records():
    checked = 0
    for seed in range(12):
        generator = np.random.default_rng(seed)
        noise, rate, records = random_person(generator, 40)
        run = Segment(noise * math.sqrt(records), rate / 10, int(10 ** generator.uniform(1, 4)), records)
        found = estimate_success((run,), math.log(0.05))
        bracket = dpsgd_bracket(run, math.log(0.05))
        if found.converged:
            checked += 1
            assert bracket.log_lower - 1e-7 <= found.log_success <= bracket.log_upper + 1e-7
    assert checked >= 6


def test_vectors_that_do_not_point_the_same_way_tell_less():
    # Two records with orthogonal gradients against the pair in which they are parallel: every level, by hand.
    noise, rate = 1.0, 0.4
    x, y = np.meshgrid(np.linspace(-8, 9, 800), np.linspace(-8, 9, 800))
    density = np.exp(-0.5 * (x**2 + y**2))
    density /= density.sum()
    one, other = np.exp(x - 0.5), np.exp(y - 0.5)
    ratio = (1 - rate) ** 2 + rate * (1 - rate) * (one + other) + rate**2 * one * other
    order = np.argsort(-ratio.ravel())
    size, power = np.cumsum(density.ravel()[order]), np.cumsum((density * ratio).ravel()[order])
    for baseline in (0.9, 0.5, 0.1, 0.01, 1e-3):
        ceiling = math.exp(dpsgd_bracket(Segment(noise, rate, 1, 2), math.log(baseline)).log_upper)
        assert np.interp(baseline, size, power) <= ceiling


def test_the_epsilon_of_a_person_is_above_that_of_a_record():
    one, five = (epsilon_upper(Segment(2.0, 0.02, 300, records), 1e-5) for records in (1, 5))
    assert one < five < 5 * one + 5
    assert delta_upper(Segment(2.0, 0.02, 300, 5), five) <= 1e-5 * (1 + 1e-3)
