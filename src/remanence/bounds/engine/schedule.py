"""The settings of a DP-SGD run: noise, sampling rate and number of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, log_ndtr

from remanence.bounds.engine.rounding import exponent_slack
from remanence.core.checks import number, whole
from remanence.core.exceptions import InputError

Array = npt.NDArray[np.floating[Any]]

MOST_STEPS = 10**9
MOST_RECORDS = 1000
LEAST_NOISE, MOST_NOISE = 1e-6, 1e12  # beyond them, squares and exponents leave the range of a float
_CAPS = 256  # points among which a cap is chosen
_GUESSES = 1024  # points between which the inverse of the loss is interpolated before Newton's method
_HUGE = 1e150
_NEGLIGIBLE_SHARE = 1e-20  # of a likelihood ratio, far below its rounding


@dataclass(frozen=True)
class Segment:
    """A stretch of training during which neither the noise nor the sampling changes.

    Each of its T steps releases ν = N(0, σ²) without the person and μ = Σ_j w_j·N(j, σ²) with them, in
    units of the clipping norm; w is the binomial law of how many of their k records are in the batch, each on
    its own with probability q. With one record, k = 1, μ is (1−q)·N(0, σ²) + q·N(1, σ²).

    That pair dominates. Given which of the others are in the batch, the release is N(c_B, σ²·I) with c_B the sum of
    the clipped gradients of those records B of theirs that are in it, |c_B| ≤ |B|, and so has the likelihood ratio
    R = Σ_B p_B·e^{X_B} with X_B normal of variance |c_B|²/σ² and mean −|c_B|²/2σ² without the person. For every α >
    0, E(R − α)₊ is the expectation of a supermodular function of (X_B), because x ↦ (x − α)₊ is convex, and so
    largest, for given marginals, if all X_B rise together (Tchen 1980): if all c_B point the same way. Growing
    |c_B| to |B| makes it no smaller: put the growth into a direction of its own for each B, from which forgetting
    those directions leads back, and apply the same argument. What is left is the pair above, at every α, hence in
    both directions and under adaptive composition. By the same argument more records dominate fewer: "at most k" is
    "k".

    >>> Segment(1.1, sample_rate=0.01, steps=1000).log_odds_of_absence  # log((1−q)/q)
    4.59511985013459
    >>> Segment(1.0, sample_rate=0.5, records=2).log_weights.round(4).tolist()  # 1/4, 1/2, 1/4
    [-1.3863, -0.6931, -1.3863]
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int = 1
    records: int = 1
    cap: float = field(default=math.inf, repr=False)  # noisy values above it count as an infinite loss

    def __post_init__(self) -> None:
        noise, rate, steps = self.noise_multiplier, self.sample_rate, self.steps
        number("noise_multiplier", noise, least=LEAST_NOISE, most=MOST_NOISE, hint="1.1")
        number("sample_rate", rate, above=0, most=1, hint="batch size / records")
        whole("steps", steps, most=MOST_STEPS, hint="1000")
        whole("number of records", self.records, most=MOST_RECORDS, hint="1: a person is one record")

    @property
    def log_absence(self) -> float:
        """The logarithm of the probability (1−q)^k that a step samples none of their records."""
        return self.records * math.log1p(-self.sample_rate) if self.sample_rate < 1 else -math.inf

    @property
    def log_odds_of_absence(self) -> float:
        """The logarithm of (1−q)/q."""
        return (
            math.log1p(-self.sample_rate) - math.log(self.sample_rate) if self.sample_rate < 1 else -math.inf
        )

    @cached_property
    def shifts(self) -> Array:
        """The possible numbers of their records in a batch."""
        return np.arange(self.records + 1.0)

    @cached_property
    def log_weights(self) -> Array:
        """The logarithms of the probabilities of these numbers."""
        k, j = self.records, self.shifts
        if self.sample_rate == 1:
            return np.where(j == k, 0.0, -np.inf)
        if k == 1:
            return np.array([self.log_absence, math.log(self.sample_rate)])
        ways = gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1)
        return ways + j * math.log(self.sample_rate) + (k - j) * math.log1p(-self.sample_rate)

    def capped(self, log_mass: float) -> Segment:
        """The same, with all but about e^`log_mass` of a step's probability with the target below a cap.

        Rare enormous losses decide no bound, but would stretch the lattice and mislead the tilt. What is cut off is
        charged in full, as an infinite loss.
        """
        reach = self.noise_multiplier * math.sqrt(-2 * log_mass)
        grid = np.linspace(0.0, self.records + reach, _CAPS)
        tails = _log_sum(self.log_weights + log_ndtr((self.shifts - grid[:, None]) / self.noise_multiplier))
        return replace(self, cap=float(grid[np.argmax(tails <= log_mass)]) or math.inf)

    def loss(self, noisy: Array) -> Array:
        """The privacy loss of one noisy gradient (its component along the target's), log dμ/dν.

        >>> float(Segment(1.0, sample_rate=0.5).loss(np.array(0.5)))
        0.0
        """
        variance = self.noise_multiplier**2
        if self.records == 1:
            return np.logaddexp(self.log_absence, math.log(self.sample_rate) + (noisy - 0.5) / variance)
        return np.logaddexp(self.log_absence, self._log_risen(noisy) + self.log_absence)

    def _log_risen(self, noisy: Array) -> Array:
        """Log(r/w₀ − 1), with r the likelihood ratio: the contribution of the person's presence."""
        j = self.shifts[1:]
        exponents = self.log_weights[1:] - self.log_weights[0] - j**2 / (2 * self.noise_multiplier**2)
        return _log_sum(exponents + noisy[..., None] * (j / self.noise_multiplier**2))

    def noisy_at(self, above: Array) -> Array:
        """The noisy values at which the loss is this far above its minimum, or above 0 for full batches."""
        variance = self.noise_multiplier**2
        if self.sample_rate == 1:
            return self.records / 2 + variance * above / self.records
        with np.errstate(divide="ignore"):
            small = np.log(np.expm1(np.minimum(above, 1.0)))
            large = above + np.log1p(-np.exp(-np.maximum(above, 1.0)))
        risen = np.where(above < 1, small, large)
        if self.records == 1:
            return 0.5 + variance * (self.log_odds_of_absence + risen)
        return self._invert(risen)

    def _invert(self, risen: Array) -> Array:
        """Where `_log_risen` has given values: interpolated, then by Newton's method, which cannot overshoot.

        The function is convex and its slope is between 1/σ² and k/σ².
        """
        variance, j = self.noise_multiplier**2, self.shifts[1:]
        finite = np.isfinite(risen)
        wanted = risen[finite]
        # j = 1 alone: too far right
        single = 0.5 + variance * (wanted - self.log_weights[1] + self.log_weights[0])
        spread = variance * float(_log_sum(self.log_weights[1:]) - self.log_weights[1])
        grid = np.linspace(min(single.min() - spread, 0.0), max(single.max(), 0.0), _GUESSES)
        levels = self._log_risen(grid)
        noisy = np.minimum(np.interp(wanted, levels, grid), single)
        exponents = self.log_weights[1:] - self.log_weights[0] - j**2 / (2 * variance)
        for _ in range(50):
            terms = exponents + noisy[:, None] * (j / variance)
            peak = terms.max(axis=1, keepdims=True)
            parts = np.exp(terms - peak)
            total = parts.sum(axis=1)
            gap = wanted - (peak[:, 0] + np.log(total))
            move = gap * variance / (parts @ j / total)
            noisy = noisy + move
            if np.all(np.abs(gap) <= 1e-14 * (1 + np.abs(wanted))):
                break
        found = np.full(risen.shape, -np.inf)
        found[finite] = noisy
        return found

    def shares(self, noisy: Array) -> Array:
        """How much of the likelihood ratio at a noisy value is due to j of their records, for each j ≥ 1."""
        j = self.shifts[1:]
        terms = self.log_weights[1:] + (noisy[:, None] * j - j**2 / 2) / self.noise_multiplier**2
        shares = np.exp(terms - self.loss(noisy)[:, None])
        used = np.flatnonzero((shares > _NEGLIGIBLE_SHARE).any(axis=0))
        return shares[:, : int(used[-1]) + 1] if len(used) else shares[:, :1]

    def rise(self, shares: Array, further: Array) -> Array:
        """The relative growth of the likelihood ratio over this distance: Σ_j share_j·(e^{j·x/σ²} − 1)."""
        once = np.expm1(further / self.noise_multiplier**2)
        grown, total = once, shares[:, :1] * once
        for index in range(1, shares.shape[1]):
            # e^{(j+1)x} − 1 from e^{jx} − 1, without cancellation. Its share is below rounding where it is huge.
            grown = np.minimum(grown * (1 + once) + once, _HUGE)
            total = total + shares[:, index : index + 1] * grown
        return total


def _log_sum(exponents: Array) -> Array:
    """Log Σ e^a along the last axis; SciPy's own takes ten times as long on small arrays."""
    peak = exponents.max(axis=-1, keepdims=True)
    return peak[..., 0] + np.log(np.exp(exponents - peak).sum(axis=-1))


Schedule = tuple[Segment, ...]


def normalise(schedule: Segment | Sequence[Segment]) -> Schedule:
    """The same run with equal segments merged; their order does not matter to any bound.

    >>> normalise([Segment(2.0, steps=3), Segment(2.0, steps=4)])
    (Segment(noise_multiplier=2.0, sample_rate=1.0, steps=7, records=1),)
    """
    segments = [schedule] if isinstance(schedule, Segment) else schedule
    if not isinstance(segments, Sequence) or not all(isinstance(each, Segment) for each in segments):
        raise InputError(
            "The schedule cannot be used.",
            needs="a Segment, or a list of them",
            got=f"{schedule!r:.80}",
            hint="[Segment(1.1, 0.01, 1000)]",
        )
    whole("number of segments", len(segments), hint="[Segment(1.1, 0.01, 1000)]")
    steps: dict[tuple[float, float, int], int] = {}
    for segment in segments:
        noise, rate, records = segment.noise_multiplier, segment.sample_rate, segment.records
        if rate == 1:  # all k records in every batch are one record k times as long
            noise, records = noise / records, 1
        settings = (float(noise), float(rate), int(records))
        steps[settings] = steps.get(settings, 0) + int(segment.steps)
    return tuple(
        Segment(noise, rate, count, records) for (noise, rate, records), count in sorted(steps.items())
    )


def total_steps(schedule: Schedule) -> int:
    """How many noisy gradients the run releases in all.

    >>> total_steps((Segment(1.0, steps=3), Segment(2.0, steps=4)))
    7
    """
    return sum(segment.steps for segment in schedule)


def is_full_batch(schedule: Schedule) -> bool:
    """Whether every step uses every record, so that the run composes to one Gaussian mechanism."""
    return all(segment.sample_rate == 1 for segment in schedule)


def log_never_sampled(schedule: Schedule) -> float:
    """The logarithm of the probability that no step samples any of the person's records."""
    return math.fsum(segment.steps * segment.log_absence for segment in schedule)


def log_sampled(schedule: Schedule) -> float:
    """The logarithm of the probability that some step samples one of the person's records, rounded up."""
    never = log_never_sampled(schedule)
    log = math.log(-math.expm1(never)) if never < 0 else -math.inf
    return min(log + exponent_slack(log), 0.0)
