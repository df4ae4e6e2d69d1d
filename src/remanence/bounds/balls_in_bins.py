"""Balls in bins, or random allocation: each pass throws a record into one of b batches.

N(0, σ²·I_b) against the mean of N(e_t, σ²·I_b) over t = 1 … b, once for each of E passes. By the multinomial theorem
E_ν[r^α] = α!/b^α·[z^α](Σ_i z^i/i!·e^{i(i−1)/2σ²})^b, so log γ ≤ ((α−1)·log κ + E·log E_ν[r^α])/α for every whole α > 1.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from remanence.bounds.engine.rounding import exponent_slack

_LARGEST_ORDER = 96  # of the Rényi divergences


def allocation_success(noise: float, bins: int, passes: int, log_baseline: float) -> float:
    """Log γ of balls in bins, from Rényi divergences of integer order .

    >>> round(math.exp(allocation_success(2.0, 100, 1, math.log(0.01))), 4)
    0.012
    """
    orders = np.arange(_LARGEST_ORDER + 1.0)
    series = orders * (orders - 1) / (2 * noise**2) - gammaln(orders + 1)  # logarithms of its coefficients
    power = _series_power(series, bins)[2:]
    used = orders[2:]
    log_moments = power + gammaln(used + 1) - used * math.log(bins)
    values = ((used - 1) * log_baseline + passes * log_moments) / used
    best = int(values.argmin())
    slack = exponent_slack(
        log_baseline, passes * float(log_moments[best]), _LARGEST_ORDER * math.log2(bins + 1)
    )
    return min(0.0, float(values[best]) + slack)


def _series_power(series: np.ndarray, exponent: int) -> np.ndarray:
    """The logarithms of the coefficients of a power of a series, up to the same degree; all are positive."""
    result = np.full_like(series, -np.inf)
    result[0] = 0.0
    while exponent:
        if exponent & 1:
            result = _convolved(result, series)
        exponent >>= 1
        series = _convolved(series, series) if exponent else series
    return result


def _convolved(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.array(
        [np.logaddexp.reduce(one[: degree + 1] + other[: degree + 1][::-1]) for degree in range(len(one))]
    )
