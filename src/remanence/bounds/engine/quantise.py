"""One step of training on a lattice of privacy losses, from above and from below.

From above, "connect the dots": a noisy gradient whose likelihood ratio r lies between two lattice
points e^{ε_k} ≤ r ≤ e^{ε_k+1} is split between them so that the ratio is right on average. The
original pair of laws is a post-processing of the split one, hence dominated by it, at every level,
in both directions, and under composition. From below, the loss is rounded to the lattice: a
post-processing of the original pair.

Probabilities are kept as logarithms and without any tilt, so that how whole they are can be checked
however far out they are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from remanence.bounds.engine.rounding import UNIT
from remanence.bounds.engine.schedule import Array, Segment

# Gauss–Legendre nodes per half cell, by the largest (width × rate of change) each is exact for.
TIERS = ((0.001, 2), (0.02, 3), (0.2, 5), (1.5, 12), (math.inf, 64))
RULES = {count: np.polynomial.legendre.leggauss(count) for _, count in TIERS}
_CHUNK = 2**16  # nodes handled at once, few enough to stay in the cache
_PER_VALUE = 32  # relative error of one probability in units of rounding: a density, a rule, a split
_WHOLE = 1e-9  # how much of a law may be missing before its quadrature has failed


@dataclass(frozen=True)
class Masses:
    """Probabilities on consecutive lattice points, weighted by e^{tilt·loss} and scaled to sum to 1."""

    probabilities: Array
    log_total: float

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of the index."""
        index = np.arange(len(self.probabilities))
        mean = float(self.probabilities @ index)
        return mean, float(self.probabilities @ (index - mean) ** 2)


@dataclass(frozen=True)
class Step:
    """One quantised step: logarithms of untilted probabilities on consecutive losses from `start` on."""

    start: float
    spacing: float
    spread: Array  # dominating pair, without the target (with it: times e^loss)
    null: Array  # rounded loss without the target
    alternative: Array  # rounded loss with the target
    log_escaped: float  # mass with the target that the dominating pair moves to an infinite loss
    log_vanished: float  # mass without the target that it moves to a loss of −∞
    rounding: float  # relative error of any one probability

    @property
    def losses(self) -> Array:
        """The lattice."""
        return self.start + self.spacing * np.arange(len(self.null))

    def tilted(self, name: str, order: float) -> Masses:
        """One of the three laws under the tilt e^{order·S} of the law without the target."""
        exponents = getattr(self, name) + (order - (name == "alternative")) * self.losses
        peak = float(exponents.max())
        values = np.exp(exponents - peak)
        total = float(values.sum())
        return Masses(values / total, peak + math.log(total))


def loss_range(segment: Segment, *, order: float, log_mass: float) -> tuple[float, float]:
    """Noisy values between which one step, as it is and tilted, has all but about e^`log_mass` of its probability.

    The range does not affect validity: the mass beyond goes to infinite losses.
    """
    # Downwards the loss is flat, so a negative tilt moves the mass by no more than the order itself.
    low = min(0.0, order * segment.records) - segment.noise_multiplier * math.sqrt(-2 * min(log_mass, -2.0))
    return low, max(segment.cap, low + segment.noise_multiplier)


class _Builder:
    """Accumulates the three laws cell by cell."""

    def __init__(self, segment: Segment, *, spacing: float, order: float, log_mass: float) -> None:
        self.segment, self.spacing = segment, spacing
        low, high = segment.loss(np.array(loss_range(segment, order=order, log_mass=log_mass)))
        sampled = segment.sample_rate < 1
        self.anchor = segment.log_absence if sampled else 0.0
        first = math.floor((float(low) - self.anchor) / spacing)
        self.anchored = sampled and first < 1
        first = 0 if self.anchored else first
        self.cells = max(math.ceil((float(high) - self.anchor) / spacing) - first, 2)
        self.above = spacing * (first + 0.5 * np.arange(2 * self.cells + 1))
        self.noisy = segment.noisy_at(self.above)
        self.losses = self.anchor + self.above[::2]
        self.spread, self.null, self.alternative = np.full((3, self.cells + 1), -np.inf)

    def build(self) -> Step:
        cells = np.arange(1 if self.anchored else 0, self.cells)
        noise = self.segment.noise_multiplier
        scores = self.noisy / noise
        left, middle, right = (scores[2 * cells + shift] for shift in (0, 1, 2))
        widths = np.maximum(middle - left, right - middle)
        rates = 1 + np.maximum(np.abs(left), np.abs(right)) + self.segment.records / noise
        demands = widths * rates
        floor = -math.inf
        for ceiling, count in TIERS:
            chosen = cells[(demands > floor) & (demands <= ceiling)]
            floor, size = ceiling, _CHUNK // count
            for start in range(0, len(chosen), size):
                self._integrate(chosen[start : start + size], count)
        log_vanished, log_escaped = self._tails()
        if self.anchored:
            self._first_cell()
        missing = max(
            self._defect(self.null, 0.0),
            self._defect(self.alternative, 0.0),
            self._defect(self.spread, 0.0, outside=log_vanished),
            self._defect(self.spread, 1.0, outside=log_escaped),
        )
        if missing > _WHOLE:
            raise ArithmeticError(f"{missing:g} of a quantised step is missing: {self.segment}")
        return Step(
            float(self.losses[0]),
            self.spacing,
            self.spread,
            self.null,
            self.alternative,
            log_escaped,
            log_vanished,
            _PER_VALUE * UNIT * (1 + abs(self.anchor)) + missing,
        )

    def _integrate(self, cells: npt.NDArray[np.intp], count: int) -> None:
        nodes, weights = RULES[count]
        noise = self.segment.noise_multiplier
        left, middle, right = (self.noisy[2 * cells + shift] for shift in (0, 1, 2))
        closest = np.where(left * right < 0, 0.0, np.minimum(np.abs(left), np.abs(right)))
        level = -0.5 * (closest / noise) ** 2
        shares = self.segment.shares(left)
        full = math.expm1(self.spacing)
        sums = []
        for start, end in ((left, middle), (middle, right)):
            half = 0.5 * (end - start)
            noisy = start[:, None] + half[:, None] * (1 + nodes)
            density = np.exp(-0.5 * (noisy / noise) ** 2 - level[:, None])
            risen = self.segment.rise(shares, noisy - left[:, None])  # r / r_left − 1
            moved = np.clip(risen / full, 0.0, 1.0)
            scale = half / (noise * math.sqrt(2 * math.pi))
            sums.append(
                [
                    (value @ weights) * scale
                    for value in (density * (1 - moved), density * moved, density, density * (1 + risen))
                ]
            )
        (stay_1, move_1, null_low, alt_low), (stay_2, move_2, null_high, alt_high) = sums
        start = self.losses[cells]
        with np.errstate(divide="ignore"):
            self._add("spread", cells, level + np.log(stay_1 + stay_2))
            self._add("spread", cells + 1, level + np.log(move_1 + move_2))
            self._add("null", cells, level + np.log(null_low))
            self._add("null", cells + 1, level + np.log(null_high))
            self._add("alternative", cells, level + start + np.log(alt_low))
            self._add("alternative", cells + 1, level + start + np.log(alt_high))

    def _add(self, name: str, at: npt.NDArray[np.intp], logs: Array) -> None:
        values = getattr(self, name)
        values[at] = np.logaddexp(values[at], logs)

    def _tails(self) -> tuple[float, float]:
        """Put the mass outside the lattice on its ends; return the dominating pair's loss below and above.

        Below, it keeps the mass with the target and lets the surplus without it vanish; above, the
        other way round.
        """
        bottom, top = float(self.noisy[0]), float(self.noisy[-1])
        log_vanished = -math.inf
        if not math.isinf(bottom):
            log_null, log_alternative = self._log_between(-math.inf, bottom)
            kept = log_alternative - float(self.losses[0])
            self._put(0, kept, log_null, log_alternative)
            log_vanished = _log_difference(log_null, kept)
        log_null, log_alternative = self._log_between(top, math.inf)
        self._put(self.cells, log_null, log_null, log_alternative)
        return log_vanished, _log_difference(log_alternative, log_null + float(self.losses[-1]))

    def _first_cell(self) -> None:
        """The cell that starts at the lowest loss: x runs to −∞ there, and the integrals have closed forms."""
        segment, middle, right = self.segment, float(self.noisy[1]), float(self.noisy[2])
        added = segment.log_weights[1:] - segment.log_weights[0]
        parts = log_ndtr((right - segment.shifts[1:]) / segment.noise_multiplier)
        moved = float(np.logaddexp.reduce(added + parts)) - math.log(math.expm1(self.spacing))
        stayed = _log_difference(float(log_ndtr(right / segment.noise_multiplier)), moved)
        self._put(0, stayed, *self._log_between(-math.inf, middle))
        self._put(1, moved, *self._log_between(middle, right))

    def _put(self, index: int, spread: float, null: float, alternative: float) -> None:
        for values, log in ((self.spread, spread), (self.null, null), (self.alternative, alternative)):
            values[index] = np.logaddexp(values[index], log)

    def _log_between(self, low: float, high: float) -> tuple[float, float]:
        """The mass between two noisy values, without the target and with it, from the shorter tails."""
        noise = self.segment.noise_multiplier
        starts, ends = (low - self.segment.shifts) / noise, (high - self.segment.shifts) / noise
        flip = starts > 0
        near, far = np.where(flip, -starts, ends), np.where(flip, -ends, starts)
        long, short = log_ndtr(near), log_ndtr(far)
        with np.errstate(divide="ignore"):
            masses = long + np.log(-np.expm1(np.minimum(short - long, 0.0)))
        return float(masses[0]), float(np.logaddexp.reduce(self.segment.log_weights + masses))

    def _defect(self, law: Array, tilt: float, outside: float = -math.inf) -> float:
        """How far a law is from having total mass 1, with what it lost outside."""
        total = float(np.exp(law + tilt * self.losses).sum())
        return abs(total + math.exp(outside) - 1)


def _log_difference(larger: float, smaller: float) -> float:
    """Log(e^larger − e^smaller); −∞ where they are equal to rounding."""
    return larger + math.log(-math.expm1(smaller - larger)) if smaller < larger else -math.inf


def quantise(segment: Segment, *, spacing: float, order: float, log_mass: float) -> Step:
    """One step on a lattice of the given spacing, without all but e^`log_mass` of it, as it is and tilted."""
    return _Builder(segment, spacing=spacing, order=order, log_mass=log_mass).build()


def loss_reach(segment: Segment, *, order: float, log_mass: float) -> float:
    """The range of the lattice of one step."""
    low, high = segment.loss(np.array(loss_range(segment, order=order, log_mass=log_mass)))
    return float(high - low)
