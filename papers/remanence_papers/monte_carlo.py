"""Monte-Carlo estimates of γ for DP-SGD: for cross-checks and for teaching, never for a certificate.

γ = sup{μ(E): ν(E) ≤ κ} depends on a run only through the law of its privacy loss S = log dμ/dν under
ν (without the target) and under μ (with it). Algorithm 1 of Hayes et al. 2023 samples S under ν. It is
here as printed, which is wrong, as it was meant, and as the authors' code has it, with the intervals
that the paper sketches. `from_target` samples under μ and is the only one whose interval is proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from remanence.bounds.engine.schedule import Segment, normalise
from remanence.core.checks import number, whole
from remanence.core.rates import clopper_pearson

Array = npt.NDArray[np.floating[Any]]
_CHUNK = 2**17  # noisy gradients held at once: small enough for a processor's cache
_CAP = 700.0  # beyond it log(1 − q + q·e^y) = y + log q to the last bit, and e^y would overflow


@dataclass(frozen=True)
class Estimate:
    """A point estimate of γ. Nothing keeps it below 1 or above the baseline."""

    success: float
    samples: int


@dataclass(frozen=True)
class Interval:
    """A point estimate of γ between two ends, and the confidence claimed for them."""

    success: float
    lower: float
    upper: float
    confidence: float
    samples: int

    def covers(self, success: float) -> bool:
        """Whether a value lies between the ends."""
        return self.lower <= success <= self.upper


def sample_losses(
    schedule: Segment | Sequence[Segment], *, samples: int, with_target: bool, rng: np.random.Generator
) -> Array:
    """Draw the privacy loss of whole runs, S = Σ log(1 − q + q·exp((x − ½)/σ²)).

    x ~ N(0, σ²) without the target, (1 − q)·N(0, σ²) + q·N(1, σ²) with it. Memory is bounded by the
    result and one chunk. Losses of full batches add up to one normal number, so those runs cost one draw.

    >>> losses = sample_losses(Segment(1.0), samples=5, with_target=False, rng=np.random.default_rng(0))
    >>> losses.round(3).tolist()
    [-0.374, -0.632, 0.14, -0.395, -1.036]
    """
    whole("samples", samples, hint="samples=100_000")
    losses = np.zeros(samples)
    for segment in normalise(schedule):
        noise, rate = segment.noise_multiplier, segment.sample_rate
        if rate == 1:
            square = segment.steps / noise**2
            centre = square / 2 if with_target else -square / 2
            losses += centre + math.sqrt(square) * rng.standard_normal(samples)
            continue
        width = min(segment.steps, _CHUNK)
        rows = max(1, _CHUNK // width)
        for start in range(0, samples, rows):
            part = losses[start : start + rows]
            for done in range(0, segment.steps, width):
                shape = (len(part), min(width, segment.steps - done))
                exponents = rng.standard_normal(shape) * (1 / noise) - 0.5 / noise**2
                if with_target:
                    exponents += (rng.random(shape) < rate) / noise**2
                capped = np.minimum(exponents, _CAP)  # three times as fast as logaddexp
                part += (np.log1p(rate * np.expm1(capped)) + (exponents - capped)).sum(axis=1)
    return losses


def as_printed(losses: Array, *, baseline: float) -> Estimate:
    """Algorithm 1 of Hayes et al. 2023 to the letter, which is wrong: it estimates γ/κ.

    γ̂ = (1/N')·Σ of the N' = ⌈κN⌉ largest ratios r = e^S, for losses sampled under ν. Since
    μ(E) = E_ν[r·1_E], the sum has to be divided by N; dividing by N' gives the mean of r *within* E.

    >>> as_printed(np.log([0.5, 0.5, 0.5, 2.5]), baseline=0.25).success  # μ(E) is 0.625
    2.5
    """
    top, _ = _split(losses, baseline)
    return Estimate(float(np.exp(top).mean()), len(losses))


def corrected(losses: Array, *, baseline: float) -> Estimate:
    """Algorithm 1 with the right normaliser, γ̂ = (1/N)·Σ of the ⌈κN⌉ largest ratios.

    Consistent, but its variance is of the order of E_ν[r²] = (1 + q²(e^(1/σ²) − 1))^T: at low noise γ comes
    from ratios that no feasible sample contains, and the estimate is close to 0 where γ is close to 1.

    >>> corrected(np.log([0.5, 0.5, 0.5, 2.5]), baseline=0.25).success
    0.625
    """
    top, _ = _split(losses, baseline)
    return Estimate(float(np.exp(top).sum()) / len(losses), len(losses))


def complement(losses: Array, *, baseline: float) -> Estimate:
    """What the authors' code computes, γ̂ = 1 − (1/N)·Σ of the other ratios, using E_ν[r] = 1.

    Those are bounded by the threshold e^s, so it is fine at low noise, and the wrong choice for small κ,
    where it subtracts two numbers close to 1 and can turn negative.

    >>> complement(np.log([0.5, 0.5, 0.5, 2.5]), baseline=0.25).success
    0.625
    """
    _, rest = _split(losses, baseline)
    return Estimate(1 - float(np.exp(rest).sum()) / len(losses), len(losses))


def dkw_as_printed(
    losses: Array,
    *,
    baseline: float,
    confidence: float = 0.999,
    estimator: Callable[..., Estimate] = corrected,
) -> Interval:
    """The interval that Section 3.3 of Hayes et al. 2023 suggests for the quantile; not valid for γ.

    With probability 1 − 2·e^(−2Nη²) no share under ν is off by more than η, which is an *absolute* error
    in κ; we turn it into one in γ by evaluating at κ ± η. Wrong for two reasons: the error of the mean
    over the chosen event is left out, and once κ ≤ η the lower end is 0 whatever the run.

    >>> losses = sample_losses(Segment(1.0), samples=10**5, with_target=False, rng=np.random.default_rng(0))
    >>> found = dkw_as_printed(losses, baseline=0.1)  # the truth is 0.389
    >>> round(found.lower, 3), round(found.upper, 3)
    (0.376, 0.403)
    """
    error = math.sqrt(math.log(2 / (1 - confidence)) / (2 * len(losses)))
    middle = estimator(losses, baseline=baseline).success
    lower = estimator(losses, baseline=baseline - error).success if baseline > error else 0.0
    upper = estimator(losses, baseline=baseline + error).success if baseline + error < 1 else 1.0
    return _clipped(middle, lower, upper, confidence, len(losses))


def bennett_as_printed(
    losses: Array, *, baseline: float, log_second_moment: float, confidence: float = 0.999
) -> Interval:
    """The interval that Section 3.3 of Hayes et al. 2023 suggests for the mean; not valid for γ.

    Bennett: |mean − E| ≥ t with probability at most 2·exp(−N·(v/b²)·h(b·t/v)), h(u) = (1 + u)·log(1 + u) − u,
    for a second moment of at most v and values of at most b. The paper's v is e^T, so `log_second_moment`
    is T as printed; E_ν[r²] can be as large as e^(T/σ²). Wrong for three reasons: e^T is too small for σ < 1
    (and useless for many steps); ratios have no b, so the largest of the sample stands in; the event was
    chosen on the same sample.

    >>> losses = sample_losses(Segment(1.0), samples=10**5, with_target=False, rng=np.random.default_rng(0))
    >>> found = bennett_as_printed(losses, baseline=0.1, log_second_moment=1)
    >>> round(found.lower, 3), round(found.upper, 3)
    (0.367, 0.411)
    """
    middle = corrected(losses, baseline=baseline).success
    largest = math.exp(float(losses.max()))
    needed = math.log(2 / (1 - confidence)) / len(losses)

    def reached(error: float) -> float:
        u = largest * error * math.exp(-log_second_moment)
        if u < 1e-4:  # where h would cancel, and e^T may overflow
            return error**2 * math.exp(-log_second_moment) * (0.5 - u / 6)
        return ((1 + u) * math.log1p(u) - u) * math.exp(log_second_moment) / largest**2

    low, high = 0.0, 1.0
    for _ in range(60):
        error = (low + high) / 2
        low, high = (low, error) if reached(error) >= needed else (error, high)
    return _clipped(middle, middle - high, middle + high, confidence, len(losses))


def from_target(
    schedule: Segment | Sequence[Segment],
    *,
    baseline: float,
    samples: int,
    rng: np.random.Generator,
    confidence: float = 0.99,
) -> Interval:
    """Sample with the target, where the action is, and get an interval that holds at its confidence.

    For every s, μ(E) ≤ e^s·ν(E) + ∫(dμ − e^s dν)_+, hence γ ≤ e^s·κ + E_μ[(1 − e^(s − S))_+]: the mean of
    a variable in [0, 1] at any noise. s solves E_μ[e^(−S)·1(S > s)] = κ on a pilot sample, so it is fixed
    before the samples that count. Upper end: empirical Bernstein, mean + √(2V·log(2/α)/N) + 7·log(2/α)/(3(N − 1))
    (Maurer and Pontil 2009, Theorem 4). Lower end: a test S > t with t from another pilot has power p and size
    a by Clopper and Pearson, and γ ≥ p·min(1, κ/a) because γ is concave in κ. Half of the error probability
    goes to the upper end, a quarter each to p and a. `samples` are drawn from either law, and a tenth for pilots.

    >>> found = from_target(Segment(1.0), baseline=0.1, samples=10**5, rng=np.random.default_rng(0))
    >>> round(found.lower, 3), round(found.upper, 3)  # the truth is 0.389
    (0.374, 0.392)
    """
    number("baseline", baseline, above=0, below=1, hint="0.1")
    whole("samples", samples, least=20, hint="samples=100_000")
    failure = 1 - confidence
    pilot = -(-samples // 10)
    threshold = _dual_threshold(sample_losses(schedule, samples=pilot, with_target=True, rng=rng), baseline)
    # A size that its own upper limit will just not carry past κ: overshooting costs more than falling short.
    level = max(clopper_pearson(round(baseline * samples), samples, failure / 4)[0], 1 / pilot)
    top, _ = _split(sample_losses(schedule, samples=pilot, with_target=False, rng=rng), level)
    cut = float(top.min())

    present = sample_losses(schedule, samples=samples, with_target=True, rng=rng)
    excess = -np.expm1(np.minimum(threshold - present, 0.0))
    middle = baseline * math.exp(threshold) + float(excess.mean())
    variance, log_term = float(excess.var(ddof=1)), math.log(4 / failure)
    radius = math.sqrt(2 * variance * log_term / samples) + 7 * log_term / (3 * (samples - 1))

    absent = sample_losses(schedule, samples=samples, with_target=False, rng=rng)
    power, _ = clopper_pearson(int(np.count_nonzero(present > cut)), samples, failure / 4)
    _, size = clopper_pearson(int(np.count_nonzero(absent > cut)), samples, failure / 4)
    lower = power * min(1.0, baseline / size)
    return Interval(min(1.0, middle), lower, min(1.0, middle + radius), confidence, samples)


def _clipped(middle: float, lower: float, upper: float, confidence: float, samples: int) -> Interval:
    return Interval(middle, min(max(lower, 0.0), 1.0), min(max(upper, 0.0), 1.0), confidence, samples)


def _split(losses: Array, baseline: float) -> tuple[Array, Array]:
    """The ⌈κN⌉ largest losses, and the others."""
    number("baseline", baseline, above=0, below=1, hint="0.1")
    kept = max(1, math.ceil(baseline * len(losses) - 1e-9))
    ordered = np.partition(losses, len(losses) - kept)
    return ordered[len(losses) - kept :], ordered[: len(losses) - kept]


def _dual_threshold(losses: Array, baseline: float) -> float:
    """The s that minimises e^s·κ + E_μ[(1 − e^(s − S))_+] on a sample; −∞, for γ ≤ 1, if none does better."""
    descending = np.sort(losses)[::-1]
    shares = np.cumsum(np.exp(-descending)) / len(losses)
    index = int(np.searchsorted(shares, baseline))
    return float(descending[index]) if index < len(losses) else -math.inf
