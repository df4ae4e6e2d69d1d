"""The law of the whole run's loss on a lattice, with every numerical error bounded.

A law is kept tilted by e^{cS}: the tilt moves the probabilities that matter for one threshold to
where floating point resolves them, whether they are 0.1 or 10^-2000. Outside a window the tilted
law has almost no mass, and a Chernoff bound from the lattice variable's own cumulant says how
little; that mass folds back into the window, so it is charged as an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.fft import next_fast_len

from remanence.bounds.engine.quantise import Masses
from remanence.bounds.engine.rounding import UNIT, transform_error
from remanence.bounds.engine.schedule import Array

_LOG_DROPPED = -60.0  # Fourier coefficients smaller than this exponential are set to 0
_LARGEST_EXPONENT = 600.0  # whose exponential is safely in the range of a float
_LEAST_POINTS = 16
_ROW = 64  # points whose exponentials are shared
_NEGLIGIBLE_WEIGHT = 50.0  # and so are terms with weights below e^-50


@dataclass(frozen=True)
class Interval:
    """A non-negative number known to lie between two others, both in units of some e^scale."""

    low: float
    high: float


@dataclass(frozen=True)
class Law:
    """P(S = first + i·spacing) = exp(log_total − tilt·(i·spacing)) · probabilities[i], within the errors."""

    probabilities: Array
    first: float
    spacing: float
    tilt: float
    log_total: float
    point_error: float  # of any one probability
    energy_error: float  # root of the summed squares of the errors of all probabilities
    centre: int  # the point at the tilted mean
    outside: float  # mass outside the window, which may have folded onto any point inside
    rounding: float  # relative error of every untilted probability
    carried: float = 0.0  # error of all probabilities of the laws of groups of steps that it was made of

    @property
    def folding_matters(self) -> bool:
        """Whether the mass folded into the window exceeds the rounding error inside it."""
        return self.outside > self.energy_error * math.sqrt(len(self.probabilities))

    def loss_at(self, position: float) -> float:
        """The loss S at a lattice point, or in between."""
        return self.first + self.spacing * position

    def log_scale(self, position: float, extra_tilt: float = 0.0) -> float:
        """The exponent that turns a tilted probability there into an untilted one, times e^{extra·S}."""
        return self.log_total - (self.tilt - extra_tilt) * self.loss_at(position)

    def above(self, position: float, slope: float, *, hinge: bool = False) -> Interval:
        """Σ over i ≥ position of probabilities[i]·e^{slope·(S_i − S)}, for slope ≤ 0.

        With `hinge` each term is also multiplied by 1 − e^{−(S_i − S)}.
        """
        stop = len(self.probabilities)
        if slope < 0:
            stop = min(stop, math.ceil(position + 1 + _NEGLIGIBLE_WEIGHT / (-slope * self.spacing)))
        return self._weighed(math.ceil(position), stop, position, slope, hinge=hinge)

    def below(self, position: float, slope: float, *, hinge: bool = False) -> Interval:
        """Σ over i < position of probabilities[i]·e^{slope·(S_i − S)}, for slope ≥ 0.

        With `hinge` each term is also multiplied by 1 − e^{S_i − S}.
        """
        start = 0
        if slope > 0:
            start = max(start, math.floor(position - 1 - _NEGLIGIBLE_WEIGHT / (slope * self.spacing)))
        return self._weighed(start, math.ceil(position), position, slope, hinge=hinge)

    def at(self, index: int) -> Interval:
        """The tilted probability of one point."""
        return self._weighed(index, index + 1, index, 0.0)

    def _weighed(
        self, start: int, stop: int, origin: float, slope: float, *, hinge: bool = False
    ) -> Interval:
        start, stop = max(start, 0), min(stop, len(self.probabilities))
        if stop <= start:
            return Interval(0.0, self.outside + self.carried + math.exp(-_NEGLIGIBLE_WEIGHT))
        terms = self.probabilities[start:stop]
        count, covered = stop - start, float(stop - start)
        energy = covered
        if slope or hinge:
            distances = self.spacing * (np.arange(start, stop) - origin)
            weights = np.exp(slope * distances) if slope else np.ones(count)
            if hinge:
                weights *= -np.expm1(-np.abs(distances))
            covered, energy = float(weights.sum()), float(weights @ weights)
            value = float(terms @ weights)
        else:
            value = float(terms.sum())
        relative = min(self.rounding, 1.0) + (count + 8) * UNIT + 4 * UNIT * abs(self.log_total)
        errors = min(self.point_error * covered, self.energy_error * math.sqrt(energy))  # Cauchy and Schwarz
        slack = self.outside + self.carried + errors + math.exp(-_NEGLIGIBLE_WEIGHT)
        if relative > _LARGEST_EXPONENT:  # nothing is known
            return Interval(0.0, math.inf)
        return Interval(
            max(value - slack, 0.0) * math.exp(-relative), (max(value, 0.0) + slack) * math.exp(relative)
        )

    def crossing(self, log_level: float, *, from_above: bool) -> int:
        """The point at which the mass above it (or below it), point included, first reaches e^log_level."""
        count = len(self.probabilities)
        reach = count if not self.tilt else int(_LARGEST_EXPONENT / abs(self.tilt * self.spacing))
        reference, heading = self.centre, 0
        while True:
            # Weights overflow or vanish beyond `reach`; a level not found by then is further out.
            low, high = max(reference - reach, 0), min(reference + reach + 1, count)
            weights = np.exp(-self.tilt * self.spacing * (np.arange(low, high) - reference))
            weighted = self.probabilities[low:high] * weights
            target = math.exp(min(log_level - self.log_scale(reference), 700.0))
            if from_above:
                found = high - 1 - int(np.searchsorted(np.cumsum(weighted[::-1]), target))
            else:
                found = low + int(np.searchsorted(np.cumsum(weighted), target))
            direction = 1 if found >= high - 1 and high < count else -1 if found <= low and low > 0 else 0
            further = min(max(reference + direction * reach, 0), count - 1)
            if further == reference or direction == -heading:  # a tilt so steep that nothing is in reach
                return found
            reference, heading = further, direction


@dataclass(frozen=True)
class Part:
    """The tilted law of one step of a segment: its point 0, how often it happens, and its relative error."""

    masses: Masses
    start: float
    steps: int
    rounding: float

    def moments(self, spacing: float) -> tuple[float, float]:
        """Mean and variance of the summed loss."""
        mean, variance = self.masses.moments
        return self.steps * (self.start + spacing * mean), self.steps * spacing**2 * variance


@dataclass(frozen=True)
class Window:
    """The window of a tilted law, and the Chernoff offsets t for the mass below and above."""

    low: float
    mean: float
    high: float
    offsets: tuple[float, float]


def compose(laws: Sequence[Part], *, spacing: float, tilt: float, window: Window) -> Law:
    """The law of a sum of independent lattice losses, on a window."""
    origin = math.fsum(part.steps * part.start for part in laws)
    first = math.floor((window.low - origin) / spacing)
    least = max(math.ceil((window.high - window.low) / spacing) + 2, _LEAST_POINTS)
    size = int(next_fast_len(least, real=True))  # pyright: ignore
    error = transform_error(size)

    logarithms = np.zeros(size // 2 + 1)
    inverse = np.zeros(size // 2 + 1)
    transforms = []
    for part in laws:
        transform = np.fft.rfft(_folded(part.masses.probabilities, size), n=size)
        transforms.append((transform, part.steps))
        modulus = np.abs(transform)
        modulus += error
        inverse += part.steps / modulus
        logarithms += part.steps * np.log(modulus, out=modulus)
    kept = np.flatnonzero(logarithms > _LOG_DROPPED)
    product = np.zeros(size // 2 + 1, dtype=np.complex128)
    product[kept] = math.prod((_power(transform[kept], steps) for transform, steps in transforms), start=1.0)
    probabilities = np.roll(np.fft.irfft(product, n=size), -(first % size))

    # Of each coefficient, twice over: half of the frequencies stand for all.
    moduli = np.exp(logarithms[kept])
    errors = 2 * error * moduli * (inverse[kept] + 1)
    dropped = math.exp(_LOG_DROPPED + 1)
    point_error = 2 * float(errors.sum()) / size + dropped
    energy_error = math.sqrt(2 * float(errors @ errors) / size) + dropped  # Parseval
    energy_error += error * math.sqrt(2 * float(moduli @ moduli) / size)  # and of the way back
    edges = (origin + spacing * first, origin + spacing * (first + size))
    outside = _chernoff(laws, spacing, edges, window.offsets)
    return Law(
        probabilities,
        first=edges[0],
        spacing=spacing,
        tilt=tilt,
        log_total=math.fsum(part.steps * part.masses.log_total for part in laws),
        point_error=point_error,
        energy_error=energy_error,
        centre=min(max(round((window.mean - edges[0]) / spacing), 0), size - 1),
        outside=outside,
        rounding=math.fsum(part.steps * part.rounding for part in laws),
    )


def _folded(probabilities: Array, size: int) -> Array:
    if len(probabilities) <= size:
        return probabilities
    padded = np.zeros(-(-len(probabilities) // size) * size)
    padded[: len(probabilities)] = probabilities
    return padded.reshape(-1, size).sum(axis=0)


def _chernoff(
    laws: Sequence[Part], spacing: float, edges: tuple[float, float], offsets: tuple[float, float]
) -> float:
    """P(S < edges[0]) + P(S ≥ edges[1]) ≤ Σ exp(K(±t) ∓ t·edge), K from the lattice law itself."""
    rates = np.array([-offsets[0], offsets[1]])
    exponents = -rates * edges
    for part in laws:
        moments = log_moments(part.masses.probabilities, rates * spacing)
        exponents += part.steps * (moments + rates * part.start + 2 * part.rounding)
    return float(np.exp(np.minimum(exponents, 0.0)).sum())


def _power(values: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """A power of every entry by squaring, off by about 3u times the exponent: faster than a logarithm."""
    result = None
    while True:
        if exponent & 1:
            result = values if result is None else result * values
        exponent >>= 1
        if not exponent:
            return values if result is None else result
        values = values * values


def log_moments(probabilities: Array, rates: Array) -> Array:
    """Log Σ p_i·e^{rate·i} for each rate, of rows of points that share their exponentials."""
    last = len(probabilities) - 1
    whole = len(probabilities) // _ROW * _ROW
    offset = np.where(rates > 0, _ROW - 1.0, 0.0)  # the largest exponential of a row is 1
    peaks = np.maximum(rates * last, 0.0)
    rows = probabilities[:whole].reshape(-1, _ROW) @ np.exp(rates * (np.arange(_ROW)[:, None] - offset))
    starts = _ROW * np.arange(whole // _ROW)[:, None] + offset
    rest = np.arange(whole, last + 1)[:, None]
    found = np.einsum("ij,ij->j", rows, np.exp(rates * starts - peaks))
    found += probabilities[whole:] @ np.exp(rates * rest - peaks)
    for at in np.flatnonzero(found < 1e-250):
        # So steep that the end of the lattice drowns the points that carry the mass.
        carrying = np.flatnonzero(probabilities > 0)
        logarithms = np.log(probabilities[carrying]) + rates[at] * carrying
        peaks[at] = logarithms.max()
        found[at] = np.exp(logarithms - peaks[at]).sum()
    return peaks + np.log(found)
