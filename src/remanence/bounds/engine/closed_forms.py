"""Bounds that need no numerics: full-batch runs of any length, and single steps."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfcx, log_ndtr, ndtri_exp

from remanence.bounds.engine.rounding import FUNCTION, exponent_slack
from remanence.bounds.engine.schedule import Array, Schedule, Segment


def log_complement(log_probability: npt.ArrayLike) -> Array:
    """The logarithm of 1−p from the logarithm of p, accurate at both ends.

    >>> float(log_complement(np.log(0.25)))
    -0.2876820724517809
    """
    logarithm = np.asarray(log_probability, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.where(
            logarithm > -math.log(2),
            np.log(-np.expm1(logarithm)),
            np.log1p(-np.exp(np.minimum(logarithm, -0.5))),
        )


def shift_of(schedule: Schedule) -> float:
    """How many standard deviations apart a full-batch run puts its two transcripts, √(Σ T/σ²).

    >>> shift_of((Segment(10.0, steps=64), Segment(5.0, steps=9)))
    1.0
    """
    return math.sqrt(math.fsum(segment.steps / segment.noise_multiplier**2 for segment in schedule))


def gaussian_success(log_baseline: npt.ArrayLike, *, shift: float) -> tuple[Array, Array]:
    """Log γ and log(1−γ) of a Gaussian mechanism, which every full-batch run composes to.

    γ = Φ(Φ⁻¹(κ) + μ) with μ = √(Σ T/σ²) (Hayes et al. 2023, Corollary 4 with q = 1).

    >>> log_success, _ = gaussian_success(np.log(0.1), shift=1.0)
    >>> round(float(np.exp(log_success)), 5)
    0.38914
    """
    quantile = ndtri_exp(np.asarray(log_baseline, dtype=np.float64)) + shift
    return np.asarray(log_ndtr(quantile)), np.asarray(log_ndtr(-quantile))


def success_slack(log_baseline: float, *, shift: float) -> tuple[float, float]:
    """How far log γ and log(1−γ) of a Gaussian mechanism may be off, by the error of Φ⁻¹(κ) + μ and of Φ itself.

    The first moves log Φ(x) by φ(x)/Φ(x) times as much.
    """
    quantile = float(ndtri_exp(log_baseline))
    moved = FUNCTION * (abs(quantile) + shift)
    slacks = []
    for x in (quantile + shift, -quantile - shift):
        log = float(log_ndtr(x))
        hazard = math.exp(min(-0.5 * x * x - 0.5 * math.log(2 * math.pi) - log, 700.0))
        slacks.append(moved * hazard + FUNCTION * (abs(log) + min(1.0, abs(log))))
    return slacks[0], slacks[1]


def single_step_success(log_baseline: npt.ArrayLike, *, segment: Segment) -> tuple[Array, Array]:
    """Log γ and log(1−γ) of one subsampled step.

    γ = Σ_j w_j·Φ(Φ⁻¹(κ) + j/σ), for one record (1−q)·κ + q·Φ(Φ⁻¹(κ) + 1/σ): one step's likelihood ratio
    rises with the noisy gradient, so the best test is the Gaussian one.

    >>> log_success, _ = single_step_success(np.log(0.1), segment=Segment(1.0, sample_rate=0.5))
    >>> round(float(np.exp(log_success)), 5)
    0.24457
    """
    log_baseline = np.asarray(log_baseline, dtype=np.float64)
    parts = [
        gaussian_success(log_baseline, shift=shift / segment.noise_multiplier) for shift in segment.shifts
    ]
    log_success, complement = (
        np.minimum(
            np.logaddexp.reduce(
                [log + part[side] for log, part in zip(segment.log_weights, parts, strict=True)]
            ),
            0,
        )
        for side in (0, 1)
    )
    # Whichever of the two is small knows the other to more digits than its own sum does.
    return (
        np.where(complement < log_success, log_complement(complement), log_success),
        np.where(complement < log_success, complement, log_complement(log_success)),
    )


def gaussian_log_delta_ends(epsilon: float, *, shift: float) -> tuple[float, float]:
    """Log δ(ε) of a Gaussian mechanism, certified from below and from above.

    With x = ε/μ − μ/2 < 0: δ = (erf(−x/√2) + erf((x+μ)/√2))/2 − (e^ε − 1)·Φ(−x−μ), which does not cancel for small μ.
    Else δ = φ(x)·(R(x) − R(x+μ)) with the Mills ratio R. Where those two cancel: R′(x) = x·R(x) − 1 rises, and lies
    between −1/(1 + x²) and −1/(3 + x²) (the convergents x/(x²+1) < R < (x²+2)/(x³+3x)), so R(x) − R(x+μ) is between
    μ/(3 + (x+μ)²) and μ·min(1/(1+x²), 1 − x·R(x)).

    >>> low, high = gaussian_log_delta_ends(1.0, shift=1.0)
    >>> round(math.exp(low), 9), round(math.exp(high), 9)
    (0.126936738, 0.126936738)
    """
    size = epsilon / shift + shift / 2  # of the terms that x is the difference of
    x, beyond, root = epsilon / shift - shift / 2, size, math.sqrt(0.5)
    if x < 0:
        risen = 0.5 * float(erf(-x * root) + erf(beyond * root))
        log_far = float(log_ndtr(-beyond))
        fallen = math.expm1(epsilon) * math.exp(log_far) if epsilon < 1 else math.exp(epsilon + log_far)
        fallen -= 0.0 if epsilon < 1 else math.exp(log_far)
        density = math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        slack = FUNCTION * (risen + fallen * (1 + epsilon + abs(log_far)) + density * size)
        low, high = risen - fallen - slack, min(risen - fallen + slack, 1.0)
        return (math.log(low) if low > 0 else -math.inf), math.log(high)
    here, there = (math.sqrt(math.pi / 2) * float(erfcx(point * root)) for point in (x, beyond))
    error = FUNCTION * (1 + size)
    high = min(
        here * (1 + error) - there * (1 - error),
        shift * min(1 - x * here + error * (1 + x * here), 1 / (1 + x * x)) * (1 + error),
    )
    low = max(here * (1 - error) - there * (1 + error), shift / (3 + beyond * beyond) * (1 - error))
    exponent = -x * x / 2 - 0.5 * math.log(2 * math.pi)
    pad = exponent_slack(x * x, x * size, math.log(high))
    return exponent + math.log(low) - pad, min(exponent + math.log(high) + pad, 0.0)
