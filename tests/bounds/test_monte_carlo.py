from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom, kstest, norm

from remanence import bounds
from remanence.bounds import Segment
from remanence.core.exceptions import InputError
from remanence_papers import monte_carlo
from remanence_papers.monte_carlo import (
    bennett_as_printed,
    complement,
    corrected,
    dkw_as_printed,
    from_target,
    sample_losses,
)


def generator(seed=0):
    return np.random.default_rng(seed)


def exact(segment, baseline):
    return bounds.dpsgd(baseline, schedule=segment).success


def standard_errors(baseline, shift, samples):
    """Of the top sum, the complement and the dual for a Gaussian mechanism, by integration.

    The asymptotic variance of a mean over ⌈κN⌉ order statistics is that of the ratio's excess over the
    threshold a: Var_ν[(r − a)_+] for the top, Var_ν[(a − r)_+] for the rest, Var_μ[(1 − a/r)_+] for the dual.
    """
    x = np.linspace(-12, 12 + 2 * shift, 200_001)
    weights = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    ratios = np.exp(shift * x - shift**2 / 2)
    level = math.exp(shift * -ndtri(baseline) - shift**2 / 2)

    def deviation(values, under):
        return math.sqrt((under @ values**2 - (under @ values) ** 2) / samples)

    return (
        deviation(np.maximum(ratios - level, 0), weights),
        deviation(np.maximum(level - ratios, 0), weights),
        deviation(np.maximum(1 - level / ratios, 0), weights * ratios),
    )


@pytest.mark.parametrize(("with_target", "sign"), [(False, -1), (True, 1)])
def test_losses_of_a_full_batch_run_are_normal(with_target, sign):
    run = [Segment(2.0, steps=3), Segment(4.0, steps=4)]
    losses = sample_losses(run, samples=20_000, with_target=with_target, rng=generator())
    assert kstest(losses, norm(sign * 0.5, 1.0).cdf).pvalue > 1e-3


@pytest.mark.parametrize("chunk", [2**17, 700])
@pytest.mark.parametrize("with_target", [False, True])
def test_a_subsampled_step_has_the_loss_that_its_density_says(with_target, chunk, monkeypatch):
    monkeypatch.setattr(monte_carlo, "_CHUNK", chunk)
    noise, rate = 0.8, 0.3
    losses = sample_losses(
        Segment(noise, rate), samples=20_000, with_target=with_target, rng=generator(with_target)
    )
    noisy = 0.5 + noise**2 * np.log((np.exp(losses) - 1 + rate) / rate)
    share = rate if with_target else 0.0
    law = (1 - share) * ndtr(noisy / noise) + share * ndtr((noisy - 1) / noise)
    assert kstest(law, "uniform").pvalue > 1e-3


def test_tiny_noise_does_not_overflow():
    losses = sample_losses(Segment(0.01, 0.5, 3), samples=1000, with_target=True, rng=generator(6))
    assert np.isfinite(losses).all()
    assert losses.max() > 2 * 0.5 / 0.01**2


@pytest.mark.parametrize("baseline", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_the_right_estimators_agree_with_the_closed_form(baseline, shift):
    samples = 100_000
    success = bounds.gaussian(baseline, noise_multiplier=1 / shift).success
    losses = sample_losses(Segment(1 / shift), samples=samples, with_target=False, rng=generator(7))
    dual = from_target(Segment(1 / shift), baseline=baseline, samples=samples, rng=generator(8))
    top, rest, mean = standard_errors(baseline, shift, samples)
    assert corrected(losses, baseline=baseline).success == pytest.approx(success, abs=5 * top)
    assert complement(losses, baseline=baseline).success == pytest.approx(success, abs=5 * rest)
    # s comes from a pilot a tenth of the size; the objective is flat around it, so that adds little.
    assert dual.success == pytest.approx(success, abs=6 * mean)


def test_the_top_sum_misses_everything_at_low_noise_and_the_others_do_not():
    segment = Segment(1.0, steps=100)
    losses = sample_losses(segment, samples=100_000, with_target=False, rng=generator(12))
    assert exact(segment, 0.1) > 0.999999
    assert corrected(losses, baseline=0.1).success < 0.01
    assert complement(losses, baseline=0.1).success > 0.999999
    found = from_target(segment, baseline=0.1, samples=100_000, rng=generator(13))
    assert found.lower > 0.999
    assert found.upper == 1


def test_the_complement_can_be_negative_for_small_baselines_and_the_dual_cannot():
    losses = [
        sample_losses(Segment(1.0), samples=2000, with_target=False, rng=generator(seed))
        for seed in range(40)
    ]
    # γ = 3.0 %; the mean of all ratios has a standard deviation of √((e − 1) / 2000) = 2.9 %.
    assert min(complement(one, baseline=0.002).success for one in losses) < 0
    found = from_target(Segment(1.0), baseline=0.002, samples=2000, rng=generator())
    assert 0 <= found.lower <= found.success <= found.upper


SETTINGS = [
    (Segment(1.0), 0.1, 500),
    (Segment(0.3), 0.1, 500),
    (Segment(1.0), 0.002, 500),
    (Segment(0.1), 0.3, 200),
    (Segment(1.0, 0.1, 20), 0.05, 500),
]


@pytest.mark.parametrize(("segment", "baseline", "samples"), SETTINGS)
def test_the_interval_from_the_target_covers_at_its_level(segment, baseline, samples):
    repetitions, confidence = 300, 0.9
    success, rng = exact(segment, baseline), generator(14)
    found = [
        from_target(segment, baseline=baseline, samples=samples, rng=rng, confidence=confidence)
        for _ in range(repetitions)
    ]
    above = sum(one.lower > success for one in found)
    below = sum(one.upper < success * (1 - 1e-12) for one in found)
    # Each end may fail one time in twenty: more than 31 failures in 300 have a chance of 1e-4 at that rate.
    limit = int(binom.isf(1e-4, repetitions, (1 - confidence) / 2))
    assert above <= limit
    assert below <= limit
    assert above + below <= binom.isf(1e-4, repetitions, 1 - confidence)


def test_the_intervals_of_the_paper_miss_at_low_noise():
    success, rng = exact(Segment(0.3), 0.1), generator(16)
    covered = np.zeros(4, int)
    for _ in range(100):
        losses = sample_losses(Segment(0.3), samples=10_000, with_target=False, rng=rng)
        target = from_target(Segment(0.3), baseline=0.1, samples=10_000, rng=rng, confidence=0.999)
        covered += [
            dkw_as_printed(losses, baseline=0.1).covers(success),
            bennett_as_printed(losses, baseline=0.1, log_second_moment=1).covers(success),
            bennett_as_printed(losses, baseline=0.1, log_second_moment=1 / 0.3**2).covers(success),
            target.covers(success),
        ]
    # At 99.9 % four misses in 100 have a chance of 4e-6.
    assert covered[0] < 50
    assert covered[1] < 90
    assert covered[2] > covered[1]
    assert covered[3] >= 97


def test_the_second_moment_as_printed_makes_the_interval_useless_for_many_steps():
    losses = sample_losses(Segment(10.0, steps=100), samples=10_000, with_target=False, rng=generator(17))
    useless = bennett_as_printed(losses, baseline=0.1, log_second_moment=100)
    right = bennett_as_printed(losses, baseline=0.1, log_second_moment=100 / 10**2)
    assert (useless.lower, useless.upper) == (0, 1)
    assert right.upper - right.lower < 0.2
    assert bennett_as_printed(losses, baseline=0.1, log_second_moment=1e5).upper == 1


IMPOSSIBLE = 0.0, 1.0, -0.1, math.nan


def test_small_samples_give_wide_intervals_or_are_refused_as_impossible_baselines_are():
    found = from_target(Segment(1.0), baseline=0.1, samples=20, rng=generator(19))
    assert found.lower < 0.389 < found.upper == 1
    with pytest.raises(InputError, match="samples"):
        sample_losses(Segment(1.0), samples=0, with_target=False, rng=generator())
    for baseline, samples, named in ((0.1, 19, "samples"), *((bad, 100, "baseline") for bad in IMPOSSIBLE)):
        with pytest.raises(InputError, match=named):
            from_target(Segment(1.0), baseline=baseline, samples=samples, rng=generator())
    for baseline in IMPOSSIBLE:
        with pytest.raises(InputError, match="baseline"):
            corrected(np.zeros(10), baseline=baseline)
