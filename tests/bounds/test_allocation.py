"""Balls in bins: the law of the likelihood ratio, against draws from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from remanence.bounds import Person, Segment, dpsgd
from remanence.bounds.engine.allocation import _one_number, _renyi, allocation_bracket

DRAWS = 100_000


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
    log = math.log(baseline)
    found = dpsgd(
        baseline, noise_multiplier=1.1, sample_rate=0.01, steps=1000, person=Person(batches="balls-in-bins")
    )
    assert found.log_success <= _renyi(1.1, 100, 10, log) - 1e-3
    known = dpsgd(
        baseline, noise_multiplier=1.1, sample_rate=0.01, steps=1000, person=Person(batches="shuffled")
    )
    assert baseline < found.lower <= found.success < known.success


def test_the_readme_setting_takes_what_monte_carlo_says():
    """24.7 in 1000 (random allocation, 10 passes of 100 batches, noise 1.1), where Rényi divergences say 28.3."""
    found = allocation_bracket(1.1, 100, 10, math.log(0.01), 1e-4)
    assert math.exp(found.log_lower) == pytest.approx(0.0247234, abs=2e-6)
    assert math.exp(found.log_upper) == pytest.approx(0.0247243, abs=2e-6)


@pytest.mark.parametrize("seed", range(12))
def test_random_settings_are_bracketed(seed):
    generator = np.random.default_rng(seed)
    noise, bins = math.exp(generator.uniform(-0.7, 3)), int(math.exp(generator.uniform(0.7, 8)))
    passes, baseline = int(math.exp(generator.uniform(0, 5))), math.exp(generator.uniform(-12, -0.7))
    found = allocation_bracket(noise, bins, passes, math.log(baseline), 1e-4)
    assert math.log(baseline) <= found.log_lower <= found.log_upper <= 0
    assert found.log_upper - found.log_lower <= 0.02


@pytest.mark.parametrize(
    ("noise", "bins", "passes", "baseline", "width"),
    [
        (0.2993, 363, 1, 5.64e-5, 2e-3),  # one number in a million decides
        (0.295, 8, 724, 0.357, math.inf),
        (0.054, 1130, 2, 2.4e-9, math.inf),
        (0.091, 1022, 154, 2e-8, math.inf),
        (0.2, 8, 124, 0.855, math.inf),
        (1e-6, 10, 1, 0.1, math.inf),
    ],
)
def test_little_noise_is_answered(noise, bins, passes, baseline, width):
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
    out = dpsgd(0.05, schedule=run, person=Person(batches="balls-in-bins"))
    swapped = dpsgd(0.05, schedule=run, person=Person(batches="balls-in-bins", replaced=True))
    told = dpsgd(0.05, schedule=run, person=Person(batches="shuffled", replaced=True))
    assert out.success < swapped.success < 0.5 * told.success
    assert swapped.lower is None


def test_a_persons_records_are_put_back_one_after_the_other():
    """G(G(G(κ))); as a shuffle where that is less."""
    run, log = Segment(1.1, 0.01, 1000), math.log(0.01)
    for _ in range(3):
        log = allocation_bracket(1.1, 100, 10, log, 1e-4).log_upper
    found = dpsgd(0.01, schedule=run, person=Person(3, "balls-in-bins"))
    assert found.log_success == log
    assert found.lower == dpsgd(0.01, schedule=run, person=Person(batches="balls-in-bins")).lower
    loud = Segment(0.3, 0.5, 2)
    as_a_shuffle = dpsgd(0.3, schedule=loud, person=Person(40, "shuffled")).success
    assert dpsgd(0.3, schedule=loud, person=Person(40, "balls-in-bins")).success <= as_a_shuffle


@pytest.mark.parametrize(("noise", "bins", "baseline"), [(0.8, 5, 0.1), (1.5, 10, 0.05), (0.6, 3, 0.3)])
def test_two_records_thrown_at_random_stay_below_their_ceiling(noise, bins, baseline):
    generator = np.random.default_rng(1)
    pairs = np.eye(bins)[:, None] + np.eye(bins)  # both places, all equally likely
    places = pairs.reshape(-1, bins)

    def drawn(present):
        noisy = noise * generator.standard_normal((DRAWS, bins))
        noisy += present * places[generator.integers(len(places), size=DRAWS)]
        exponents = (noisy @ places.T - (places**2).sum(axis=1) / 2) / noise**2
        return np.log(np.exp(exponents).mean(axis=1))

    threshold = float(np.quantile(drawn(0), 1 - baseline))
    reached = float((drawn(1) > threshold).mean())
    found = dpsgd(
        baseline, noise_multiplier=noise, sample_rate=1 / bins, steps=bins, person=Person(2, "balls-in-bins")
    )
    margin = 5 * math.sqrt(reached * (1 - reached) / DRAWS) + 0.02 * reached  # the threshold is drawn too
    assert reached - margin <= found.success
    assert found.success < 2 * reached  # and not far from it


def test_all_records_in_every_batch_are_a_gaussian_mechanism():
    found = dpsgd(0.05, noise_multiplier=2.0, steps=4, person=Person(batches="balls-in-bins"))
    assert (
        found.success == dpsgd(0.05, noise_multiplier=2.0, steps=4).success == pytest.approx(0.2595, abs=1e-4)
    )


def test_a_pass_that_has_begun_counts_whole():
    begun, whole = (
        dpsgd(
            0.05, noise_multiplier=1.0, sample_rate=0.1, steps=steps, person=Person(batches="balls-in-bins")
        )
        for steps in (41, 50)
    )
    assert begun.success == whole.success
