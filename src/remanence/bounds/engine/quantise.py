"""One step of training on a lattice of privacy losses, from above and from below.

From above, "connect the dots": a noisy gradient whose likelihood ratio r lies between two lattice
points e^{ε_k} ≤ r ≤ e^{ε_k+1} is split between them so that the ratio is right on average. The
original pair of laws is a post-processing of the split one, hence dominated by it, at every level,
in both directions, and under composition. From below, the loss is rounded to the lattice: a
post-processing of the original pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri_exp

from remanence.bounds.engine.cumulant import loss
from remanence.bounds.engine.schedule import Segment

Array = npt.NDArray[np.floating[Any]]

_UNIT = float(np.finfo(np.float64).eps) / 2
# Gauss–Legendre nodes per half cell, by the largest (width × rate of change) each is exact for.
_TIERS = ((0.001, 2), (0.02, 3), (0.2, 5), (1.5, 12), (math.inf, 64))
_CHUNK = 2**16  # nodes handled at once, few enough to stay in the cache
_RULES = {count: np.polynomial.legendre.leggauss(count) for _, count in _TIERS}


@dataclass(frozen=True)
class Masses:
    """Probabilities on consecutive lattice points, weighted by e^{tilt·loss} and scaled to sum to 1."""

    probabilities: Array
    log_total: float


@dataclass(frozen=True)
class Step:
    """One quantised step; `start` is the loss of lattice point 0 of all three laws."""

    start: float
    spread: Masses  # dominating pair: without the target, tilt c (with the target: tilt c − 1)
    null: Masses  # rounded loss without the target, tilt c
    alternative: Masses  # rounded loss with the target, tilt c − 1
    log_escaped: float  # mass with the target that the dominating pair moves to an infinite loss
    log_vanished: float  # mass without the target that it moves to a loss of −∞
    rounding: float  # relative error of any one probability


def _exponent_at(segment: Segment, above_anchor: Array, anchor: float) -> Array:
    """The v = (x − ½)/σ² at which the loss is `anchor` + `above_anchor`."""
    if segment.sample_rate == 1:
        return anchor + above_anchor
    with np.errstate(divide="ignore"):
        small = np.log(np.expm1(np.minimum(above_anchor, 1.0)))
        large = above_anchor + np.log1p(-np.exp(-np.maximum(above_anchor, 1.0)))
    return segment.log_odds_of_absence + np.where(above_anchor < 1, small, large)


def _mass_between(low: Array, high: Array) -> Array:
    """Standard normal mass between two points, from whichever tail is the shorter."""
    return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


def loss_range(segment: Segment, *, order: float, log_mass: float) -> tuple[float, float]:
    """Losses outside which one tilted step has about e^`log_mass` of its probability."""
    noise = segment.noise_multiplier
    reach = -noise * float(ndtri_exp(min(log_mass, -2.0)))
    ends = np.array([min(0.0, order) - reach, max(1.0, order) + reach])
    low, high = loss(segment, ends)
    return float(low), float(high)


class _Builder:
    """Accumulates the three laws cell by cell, all relative to one common exponent."""

    def __init__(self, segment: Segment, *, spacing: float, order: float, log_mass: float) -> None:
        self.segment, self.spacing, self.order = segment, spacing, order
        low, high = loss_range(segment, order=order, log_mass=log_mass)
        self.anchor = segment.log_absence if segment.sample_rate < 1 else 0.0
        first = math.floor((low - self.anchor) / spacing)
        self.anchored = segment.sample_rate < 1 and first < 1
        first = 0 if self.anchored else first
        self.cells = max(math.ceil((high - self.anchor) / spacing) - first, 2)
        halves = 0.5 * np.arange(2 * self.cells + 1)
        self.above = spacing * (first + halves)
        self.exponents = _exponent_at(segment, self.above, self.anchor)
        self.scores = 0.5 / segment.noise_multiplier + segment.noise_multiplier * self.exponents
        self.losses = self.anchor + self.above[::2]
        self.spread, self.null, self.alternative = np.zeros((3, self.cells + 1))
        self.peak = 0.0

    def build(self) -> Step:
        lowest, highest = self._tails()
        cells = np.arange(1 if self.anchored else 0, self.cells)
        left, middle, right = (self.scores[2 * cells + shift] for shift in (0, 1, 2))
        inner = np.where(left * right < 0, 0.0, np.minimum(np.abs(left), np.abs(right)))
        levels = self.order * self.losses[cells] - 0.5 * inner**2
        self.peak = max(float(levels.max()), lowest[0], highest[0])
        if self.anchored:
            self.peak = max(self.peak, self.order * float(self.losses[0]) + float(log_ndtr(left[0])))
        ends = np.maximum(np.abs(left), np.abs(right))
        widths = np.maximum(middle - left, right - middle)
        demands = widths * (1 + ends)
        floor = 0.0
        for ceiling, count in _TIERS:
            chosen = cells[(demands > floor) & (demands <= ceiling)] if floor else cells[demands <= ceiling]
            floor = ceiling
            size = _CHUNK // count
            for start in range(0, len(chosen), size):
                self._integrate(chosen[start : start + size], count)
        self._add(0, lowest)
        self._add(self.cells, highest)
        if self.anchored:
            self._first_cell()
        return self._finish()

    def _integrate(self, cells: npt.NDArray[np.intp], count: int) -> None:
        nodes, weights = _RULES[count]
        contiguous = slice(cells[0], cells[-1] + 1) if cells[-1] - cells[0] == len(cells) - 1 else None
        left, middle, right = (self.exponents[2 * cells + shift] for shift in (0, 1, 2))
        share = self._share(cells)[:, None]
        level = (self.order * self.losses[cells] - self.peak)[:, None]
        noise = self.segment.noise_multiplier
        full = np.expm1(right - left)[:, None]
        up = np.exp(self.order * self.spacing)
        up_alternative = np.exp((self.order - 1) * self.spacing)
        sums = []
        for start, end in ((left, middle), (middle, right)):
            half = 0.5 * (end - start)
            inside = half[:, None] * (1 + nodes)
            grown = np.expm1(inside + (start - left)[:, None])
            scores = 0.5 / noise + noise * (start[:, None] + inside)
            density = np.exp(level - 0.5 * scores**2)
            scale = noise * half / math.sqrt(2 * math.pi)
            moved = grown / full
            risen = density @ weights * scale
            sums.append(
                (
                    ((density * (1 - moved)) @ weights) * scale,
                    ((density * moved) @ weights) * scale,
                    risen,
                    ((density * (1 + share * grown)) @ weights) * scale,
                )
            )
        (stay_1, move_1, null_low, alt_low), (stay_2, move_2, null_high, alt_high) = sums
        at = contiguous if contiguous is not None else cells
        after = slice(cells[0] + 1, cells[-1] + 2) if contiguous is not None else cells + 1
        self.spread[at] += stay_1 + stay_2
        self.spread[after] += (move_1 + move_2) * up
        self.null[at] += null_low
        self.null[after] += null_high * up
        self.alternative[at] += alt_low
        self.alternative[after] += alt_high * up_alternative

    def _share(self, cells: npt.NDArray[np.intp]) -> Array:
        """How much of the likelihood ratio at a lattice point is due to the target, q·e^v/r."""
        if self.segment.sample_rate == 1:
            return np.ones(len(cells))
        return -np.expm1(-self.above[2 * cells])

    def _tails(self) -> tuple[tuple[float, float, float, float], tuple[float, float, float, float]]:
        """What lies outside the lattice, as (exponent, spread, null, alternative) for each end."""
        segment = self.segment
        shift, log_rate = 1 / segment.noise_multiplier, math.log(segment.sample_rate)
        results = []
        for index, sign in ((0, 1.0), (-1, -1.0)):
            score, level = float(self.scores[index]), self.order * float(self.losses[index])
            if math.isinf(score):
                results.append((-math.inf, 0.0, 0.0, 0.0))
                self.log_vanished = -math.inf
                continue
            log_null = float(log_ndtr(sign * score))
            log_alternative = float(
                np.logaddexp(segment.log_absence + log_null, log_rate + log_ndtr(sign * (score - shift)))
            )
            relative = log_alternative - float(self.losses[index])
            exponent = level + max(log_null, relative)
            null, alternative = math.exp(log_null + level - exponent), math.exp(relative + level - exponent)
            results.append((exponent, alternative if sign > 0 else null, null, alternative))
            if sign > 0:
                self.log_vanished = log_null
            else:
                self.log_escaped = log_alternative
        return results[0], results[1]

    def _add(self, index: int, tail: tuple[float, float, float, float]) -> None:
        exponent, spread, null, alternative = tail
        scale = math.exp(exponent - self.peak)
        self.spread[index] += spread * scale
        self.null[index] += null * scale
        self.alternative[index] += alternative * scale

    def _first_cell(self) -> None:
        """The cell that starts at log(1−q): v runs to −∞ there, and the integrals have closed forms."""
        segment = self.segment
        shift = 1 / segment.noise_multiplier
        middle, right = self.scores[1], self.scores[2]
        scale = math.exp(self.order * float(self.losses[0]) - self.peak)
        up, up_alternative = np.exp(self.order * self.spacing), np.exp((self.order - 1) * self.spacing)
        moved = math.exp(float(log_ndtr(right - shift)) - float(self.exponents[2]))
        self.spread[0] += scale * max(float(ndtr(right)) - moved, 0.0)
        self.spread[1] += scale * moved * up
        odds = math.exp(-segment.log_odds_of_absence)
        low, high = float(ndtr(middle)), float(_mass_between(middle, right))
        low_present, high_present = (
            float(ndtr(middle - shift)),
            float(_mass_between(middle - shift, right - shift)),
        )
        self.null[0] += scale * low
        self.null[1] += scale * high * up
        self.alternative[0] += scale * (low + odds * low_present)
        self.alternative[1] += scale * (high + odds * high_present) * up_alternative

    def _finish(self) -> Step:
        null, alternative = self._normalised(self.null), self._normalised(self.alternative)
        rounding = 32 * _UNIT * (1 + abs(self.anchor))
        rounding += max(self._defect(null, self.order), self._defect(alternative, self.order - 1))
        spread = self._normalised(self.spread)
        start = float(self.losses[0])
        return Step(start, spread, null, alternative, self.log_escaped, self.log_vanished, rounding)

    def _normalised(self, values: Array) -> Masses:
        total = float(values.sum())
        return Masses(values / total, self.peak + math.log(total))

    def _defect(self, law: Masses, tilt: float) -> float:
        """How far a law is from having total mass 1, where undoing the tilt does not overflow."""
        exponents = law.log_total - tilt * self.losses
        if np.max(np.abs(exponents)) > 300:
            return 0.0
        return abs(float(law.probabilities @ np.exp(exponents)) - 1)


def quantise(segment: Segment, *, spacing: float, order: float, log_mass: float) -> Step:
    """One step on a lattice of the given spacing, tilted to `order`, without all but e^`log_mass` of it."""
    return _Builder(segment, spacing=spacing, order=order, log_mass=log_mass).build()


def loss_reach(segment: Segment, *, order: float, log_mass: float) -> float:
    """How far the lattice of one step would stretch."""
    low, high = loss_range(segment, order=order, log_mass=log_mass)
    return high - low
