"""Bounds that need no numerics: full-batch runs of any length, and single steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, log_ndtr, ndtri_exp

from remanence.bounds.engine.schedule import Schedule, Segment

Array = npt.NDArray[np.floating[Any]]


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


def single_step_success(log_baseline: npt.ArrayLike, *, segment: Segment) -> tuple[Array, Array]:
    """Log γ and log(1−γ) of one subsampled step.

    γ = (1−q)·κ + q·Φ(Φ⁻¹(κ) + 1/σ): one step's likelihood ratio rises with the noisy
    gradient, so the best test is the Gaussian one.

    >>> log_success, _ = single_step_success(np.log(0.1), segment=Segment(1.0, sample_rate=0.5))
    >>> round(float(np.exp(log_success)), 5)
    0.24457
    """
    log_baseline = np.asarray(log_baseline, dtype=np.float64)
    present, missed = gaussian_success(log_baseline, shift=1 / segment.noise_multiplier)
    log_rate = math.log(segment.sample_rate)
    absent = segment.log_absence
    log_success = np.minimum(np.logaddexp(absent + log_baseline, log_rate + present), 0)
    complement = np.minimum(np.logaddexp(absent + log_complement(log_baseline), log_rate + missed), 0)
    # Whichever of the two is small knows the other to more digits than its own sum does.
    return (
        np.where(complement < log_success, log_complement(complement), log_success),
        np.where(complement < log_success, complement, log_complement(log_success)),
    )


def gaussian_log_delta(epsilon: npt.ArrayLike, *, shift: float) -> Array:
    """Log δ(ε) of a Gaussian mechanism.

    δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle and Wang 2018, Theorem 8). Written with
    Mills ratios in the tail, where the two terms share all their leading digits.

    >>> round(float(np.exp(gaussian_log_delta(1.0, shift=1.0))), 6)
    0.126937
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)
    near, far = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    root_half = math.sqrt(0.5)
    # Clipped at 0 because erfcx overflows where the other branch is taken anyway.
    mills = math.sqrt(math.pi / 2) * (
        erfcx(np.maximum(-near, 0) * root_half) - erfcx(np.maximum(-far, 0) * root_half)
    )
    with np.errstate(divide="ignore"):
        tail = np.log(np.maximum(mills, 0)) - near**2 / 2 - 0.5 * math.log(2 * math.pi)
        ratio = np.minimum(epsilon + log_ndtr(far) - log_ndtr(near), 0)
        bulk = log_ndtr(near) + log_complement(ratio)
    return np.where((near < 0) & (far < 0), tail, bulk)
