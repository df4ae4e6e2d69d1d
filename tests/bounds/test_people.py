"""Ceilings for people: several records each, against integrals by hand."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import hypergeom, norm
from worst_cases import banded

from remanence import InputError, calibrate
from remanence.bounds import (
    Person,
    Segment,
    correlated_noise,
    delta_upper,
    dpsgd,
    epsilon_upper,
    final_weights,
    true_positives,
)
from remanence.bounds.engine.dpsgd import dpsgd_bracket
from remanence.bounds.settings import DPSGD_ASSUMPTIONS

CONTRACTING = {
    "noise_multiplier": 2.0, "steps": 9, "learning_rate": 0.5, "strong_convexity": 0.2, "smoothness": 1.0
}  # fmt: skip
FIXED = Person(batches="fixed")


def test_all_records_in_every_batch_are_one_long_record():
    together = dpsgd_bracket(Segment(6.0, 1.0, 50, records=3), math.log(0.1))
    assert together == dpsgd_bracket(Segment(2.0, 1.0, 50), math.log(0.1))


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


def gaussian_ceiling(baseline, shift):
    return float(norm.cdf(norm.ppf(baseline) + shift))


@pytest.mark.parametrize(
    ("run", "noise", "passes"),
    [
        ([Segment(4.0, 0.1, 41)], 4.0, 5),
        ([Segment(8.0, 1000 / 1999, 100)], 8.0, 100),  # a loader that drops its last batch makes more passes
        ([Segment(4.0, 1 / 49, 98)], 4.0, 2),
        ([Segment(4.0, 0.1, 15), Segment(3.0, 0.1, 15)], 3.0, 3),  # the noise changes within a pass
        ([Segment(4.0, 0.1, 15), Segment(5.0, 0.25, 3)], 4.0, 3),  # another batch size starts a new one
    ],
)
def test_passes_are_counted_up_and_the_least_noise_counts(run, noise, passes):
    found = dpsgd(0.05, schedule=run, person=Person(batches="shuffled"))
    assert found.success == pytest.approx(gaussian_ceiling(0.05, math.sqrt(passes) / noise))
    assert "drop_last" in found.assumptions[0]


def test_fixed_batches_say_which_comparison_the_number_is_for():
    comparisons = "the same batches without the target's gradient", "the same training without the target"

    def said(bound):
        return [text in bound.assumptions[3] for text in comparisons]

    few = dpsgd(0.01, schedule=Segment(0.816, 0.5, 2), person=FIXED)  # a test of membership reaches 0.431
    assert few.success == pytest.approx(gaussian_ceiling(0.01, math.sqrt(2) / 0.816))
    assert said(few) == [True, False]
    rare = dpsgd(0.01, schedule=Segment(4.0, 0.01, 1000), person=FIXED)
    opposite = dpsgd(0.01, schedule=Segment(2.0, 0.01, 1000))  # others' gradients, all of them
    assert (rare.lower, rare.success) == (opposite.lower, opposite.success)
    assert said(rare) == [False, True]
    several, *alone = (
        dpsgd(k, schedule=Segment(0.9, 0.5, 4), person=FIXED) for k in ([0.01, 0.99], 0.01, 0.99)
    )
    assert said(several) == [any(each) for each in zip(*map(said, alone), strict=True)]


def test_three_records_in_draws_of_a_fixed_size_take_the_places_of_others():
    """q = 0.1, so each is in with at most 0.1/0.8, and one in another's place moves a step by two."""
    found = dpsgd(0.05, schedule=Segment(20.0, 0.1, 9), person=Person(3, "fixed"))
    by_hand = dpsgd(0.05, schedule=Segment(10.0, 0.125, 9), person=Person(3))
    assert found.success == pytest.approx(by_hand.success, rel=1e-9)
    assert "same training without the target" in found.assumptions[3]
    known = dpsgd(0.05, schedule=Segment(20.0, 0.4, 9), person=Person(3, "fixed"))  # more than all draws
    assert known.success == pytest.approx(gaussian_ceiling(0.05, 3 * math.sqrt(9) / 20))


@pytest.mark.parametrize(
    ("records", "size", "batch", "noise"),
    [
        (2, 10, 1, 0.8),
        (2, 10, 4, 2.0),
        (3, 40, 10, 1.5),
        (5, 100, 1, 3.0),
        (5, 60, 10, 1.0),
        (8, 1000, 30, 2.0),
    ],
)
def test_no_draw_of_a_fixed_size_passes_the_ceiling_of_a_person(records, size, batch, noise):
    """One step against a training without them, all others opposite: J of theirs in the places of J, hypergeometric."""
    weights = hypergeom(size, records, batch).pmf(np.arange(records + 1))
    _, put_in = Person(records, "fixed").schedules(Segment(noise, batch / size))
    for baseline in (1e-6, 0.01, 0.3, 0.9):
        reached = weights @ norm.cdf(norm.ppf(baseline) + 2 * np.arange(records + 1) / noise)
        assert math.log(reached) <= dpsgd_bracket(put_in, math.log(baseline)).log_upper


def test_final_weights_of_a_replaced_person_move_twice_as_far():
    twice = {Person(replaced=True): 2, Person(3, replaced=True): 6}
    for person, shift in {Person(): 1, Person(3): 3, **twice}.items():
        found = final_weights(0.05, **{**CONTRACTING, "noise_multiplier": 10.0, "steps": 1}, person=person)
        assert found.success == pytest.approx(gaussian_ceiling(0.05, shift / 10))


def test_whole_people_sampled_and_clipped_are_one_record_whatever_they_bring():
    run = Segment(1.1, 0.01, 1000)
    plain, people = dpsgd(0.01, schedule=run), dpsgd(0.01, schedule=run, person=Person(50, "people"))
    assert people.success == plain.success
    assert people.whose == "a person, however many their records"
    assert plain.whose == "one record"
    assert plain.assumptions == DPSGD_ASSUMPTIONS


def test_replacing_doubles_the_shift_of_full_batches_and_never_less_than_removing():
    replaced = dpsgd(0.05, schedule=Segment(10.0, steps=25), person=Person(replaced=True))
    assert replaced.success == pytest.approx(gaussian_ceiling(0.05, 2 * 0.5))
    # A step moves by six.
    tiny = dpsgd(1e-13, schedule=Segment(30.0, 0.5, 4), person=Person(3, replaced=True))
    assert tiny.success == pytest.approx(gaussian_ceiling(1e-13, 6 * math.sqrt(4) / 30), rel=1e-9)
    run = Segment(1.0, 0.1, 30)
    swapped = dpsgd(0.05, schedule=run, person=Person(replaced=True)).success
    assert swapped > dpsgd(0.05, schedule=run).success
    assert swapped == pytest.approx(true_positives(0.05, schedule=run).success)


BANDED = banded(40, [1.0, 0.5, 0.25])


@pytest.mark.parametrize(
    ("factor", "separation", "participations"),
    [(np.eye(20), 1, 20), (BANDED, 4, 10), (np.eye(5), 2, 3)],  # the last has begun
    ids=["plain training", "banded", "uneven"],
)
def test_sampled_correlated_noise_counts_each_participation_once(factor, separation, participations):
    noise = {"noise_multiplier": 1.5, "separation": separation}
    found = correlated_noise(0.05, factor=factor, **noise, sample_rate=0.2)
    plain = dpsgd(0.05, schedule=Segment(1.5, 0.2, participations))
    assert found.success == pytest.approx(plain.success, rel=1e-6)
    assert found.assumptions[2:] == DPSGD_ASSUMPTIONS[2:]
    known = correlated_noise(0.05, factor=factor, **noise)
    assert known.success == pytest.approx(gaussian_ceiling(0.05, math.sqrt(participations) / 1.5), rel=1e-6)


def test_participations_at_least_so_far_apart_are_as_many_as_fit():
    factor = banded(10, [1.0, 0.5])
    found = correlated_noise(0.05, factor=factor, noise_multiplier=4.0, separation=3, at_least=True)
    assert found.success == pytest.approx(gaussian_ceiling(0.05, math.sqrt(4) / 4))


def test_final_weights_of_a_quadratic_are_exactly_as_well_hidden_as_proven():
    rate, curvature, noise, steps = 0.3, 0.4, 5.0, 25
    factor = 1 - rate * curvature
    shift = sum(factor**t for t in range(steps)) / (
        noise * math.sqrt(sum(factor ** (2 * t) for t in range(steps)))
    )
    run = {"noise_multiplier": noise, "learning_rate": rate, "strong_convexity": curvature}
    found = final_weights(0.1, **run, steps=steps, smoothness=curvature)
    assert found.success == pytest.approx(gaussian_ceiling(0.1, shift), rel=1e-9)
    assert found.success < dpsgd(0.1, noise_multiplier=noise, steps=steps).success
    long = [final_weights(0.1, **run, steps=n, smoothness=2.0).success for n in (1, 10, 100, 10**6)]
    assert long == sorted(long)


def thrown(rate):
    return dpsgd(0.1, noise_multiplier=1, sample_rate=rate, steps=10, person=Person(batches="balls-in-bins"))


def correlated(separation, **more):
    return correlated_noise(0.05, factor=BANDED, noise_multiplier=1.5, separation=separation, **more)


def shorter(**changed):
    return final_weights(0.1, **{**CONTRACTING, **changed})


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        *((partial(Person, bad), "records per person") for bad in (0, 1.5, 10**6)),
        (partial(Person, 1, "sorted"), "batches"),
        (partial(thrown, 0.3), "a whole number"),
        (partial(correlated, 2, sample_rate=0.2), "bands"),  # a record returns before they end
        (partial(correlated, 2, at_least=True), "bands"),
        (partial(correlated, 3, at_least=True, sample_rate=0.5), "cannot be combined"),
        *(
            (partial(shorter, learning_rate=rate), r"contraction|learning_rate") for rate in (3.0, 0)
        ),  # steps do not contract
        *((partial(shorter, **{name: 0}), name) for name in ("strong_convexity", "steps")),
        (partial(shorter, smoothness=0.1), "smoothness"),
    ],
)
def test_what_no_proof_covers_is_refused(attempt, said):
    with pytest.raises(InputError, match=said):
        attempt()


def test_noise_for_a_person_is_certified_for_them():
    found = calibrate(0.05, 0.01, sample_rate=0.01, steps=1000, person=Person(5))
    assert found.bound.whose == "a person with at most 5 records"
    assert found.bound.success <= 0.05
    less = Segment(0.995 * found.noise_multiplier, 0.01, 1000)
    assert dpsgd(0.01, schedule=less, person=Person(5)).success > 0.05


def test_a_tilt_too_steep_for_the_first_lattice_is_met_by_a_finer_one():
    # Sampled so rarely that the inverse of the bound is asked for next to 1: this once never ended.
    rate, steps, guess = 1 / 49873, 19, 3.67e-8
    person = Person(2, "people", replaced=True)
    found = dpsgd(guess, noise_multiplier=0.212, sample_rate=rate, steps=steps, person=person)
    assert guess < float(found.success) < guess + 2 * (1 - (1 - rate) ** steps)  # never sampled: a guess
