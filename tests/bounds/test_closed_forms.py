from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from remanence.bounds.engine.closed_forms import (
    gaussian_log_delta_ends,
    gaussian_success,
    log_complement,
    single_step_success,
)
from remanence.bounds.engine.dpsgd import delta_lower, delta_upper
from remanence.bounds.engine.schedule import Segment

mpmath.mp.dps = 60


def log_cdf(x):
    return mpmath.log1p(-mpmath.ncdf(-x)) if x > 0 else mpmath.log(mpmath.ncdf(x))


def quantile_from(log_baseline):
    """Φ⁻¹(κ) in 60 digits, by Newton's method on log Φ."""
    log_baseline = mpmath.mpf(log_baseline)
    if log_baseline > -0.7:
        x = mpmath.mpf(1)
        target = -mpmath.expm1(log_baseline)
        return mpmath.findroot(
            lambda y: mpmath.log(mpmath.ncdf(-y) / target), max(x, mpmath.sqrt(-2 * mpmath.log(target)) - 1)
        )
    start = -mpmath.sqrt(-2 * log_baseline) + (1 if log_baseline < -5 else 0.5)
    return mpmath.findroot(lambda y: mpmath.log(mpmath.ncdf(y)) - log_baseline, start)


@pytest.mark.parametrize("log_baseline", [-1e-9, -0.1, -0.5, math.log(0.1), -20.0, -1e3, -4258.0])
@pytest.mark.parametrize("shift", [0.01, 1.0, 5.0, 33.0])
def test_the_gaussian_form_agrees_with_sixty_digits_in_both_tails(log_baseline, shift):
    log_success, complement = gaussian_success(log_baseline, shift=shift)
    quantile = quantile_from(log_baseline) + mpmath.mpf(shift)
    assert float(log_success) == pytest.approx(float(log_cdf(quantile)), rel=1e-12, abs=0)
    assert float(complement) == pytest.approx(float(log_cdf(-quantile)), rel=1e-12, abs=0)


@pytest.mark.parametrize("log_baseline", [-0.1, math.log(0.1), -300.0])
@pytest.mark.parametrize(("noise", "rate"), [(0.3, 0.001), (1.0, 0.5), (5.0, 0.99)])
def test_a_single_step_agrees_with_sixty_digits(log_baseline, noise, rate):
    log_success, complement = single_step_success(log_baseline, segment=Segment(noise, rate))
    quantile = quantile_from(log_baseline) + 1 / mpmath.mpf(noise)
    rate = mpmath.mpf(rate)
    baseline = mpmath.exp(mpmath.mpf(log_baseline))
    success = (1 - rate) * baseline + rate * mpmath.ncdf(quantile)
    missed = (1 - rate) * (1 - baseline) + rate * mpmath.ncdf(-quantile)
    assert float(log_success) == pytest.approx(
        float(mpmath.log(success) if success < 0.5 else mpmath.log1p(-missed)), rel=1e-12, abs=0
    )
    assert float(complement) == pytest.approx(
        float(mpmath.log(missed) if missed < 0.5 else mpmath.log1p(-success)), rel=1e-12, abs=0
    )


def test_many_baselines_are_evaluated_at_once():
    logs = np.log([1e-300, 0.1, 0.9])
    log_success, complement = single_step_success(logs, segment=Segment(1.0, 0.5))
    assert log_success.shape == complement.shape == (3,)
    assert np.all(np.diff(log_success) > 0)
    assert np.allclose(np.logaddexp(log_success, complement), 0, atol=1e-14)


@pytest.mark.parametrize("log_probability", [-1e-300, -1e-10, -0.5, -0.69, -0.7, -30.0, -800.0])
def test_complements_are_accurate_at_both_ends(log_probability):
    exact = mpmath.log(-mpmath.expm1(mpmath.mpf(log_probability)))
    assert float(log_complement(log_probability)) == pytest.approx(float(exact), rel=1e-14, abs=1e-320)


def exact_log_delta(epsilon, shift):
    with mpmath.workdps(150):
        epsilon, shift = mpmath.mpf(epsilon), mpmath.mpf(shift)
        near, far = (mpmath.ncdf(side * shift / 2 - epsilon / shift) for side in (1, -1))
        return mpmath.log(near - mpmath.exp(epsilon) * far)


def test_the_ends_of_delta_hold_the_truth_at_extreme_noise_too():
    generator = np.random.default_rng(3)
    widths = []
    for index in range(400):
        shift = 10 ** generator.uniform(-9, 2)
        by_shift = shift * 10 ** generator.uniform(-6, 1.5)
        epsilon = 0.0 if index % 10 == 0 else by_shift if index % 2 else 10 ** generator.uniform(-6, 3)
        if epsilon > 400 * shift:  # mpmath's 150 digits end there
            continue
        low, high = gaussian_log_delta_ends(epsilon, shift=shift)
        truth = exact_log_delta(epsilon, shift)
        assert low <= truth <= high, (epsilon, shift)
        widths.append(high - low)
    assert np.median(widths) < 1e-10
    assert max(widths) < 2e-3


@pytest.mark.parametrize("noise", [1e3, 1e5, 1e6])
def test_a_certified_delta_is_not_below_the_truth_where_its_terms_cancel(noise):
    for epsilon in (0.0, 1e-9, 0.1 / noise):
        truth = mpmath.exp(exact_log_delta(epsilon, 1 / noise))
        found = delta_upper(Segment(noise), epsilon)
        assert truth <= found <= truth * (1 + 1e-6)
        assert truth * (1 - 1e-6) <= delta_lower(Segment(noise), epsilon) <= truth
