"""γ and δ(ε) in about a millisecond, by inverting the complex cumulant along one vertical line.

With K the cumulant of the run's loss S, and the line Re z = c,

    P_ν(S > s) = 1/2πi ∫ e^{K(z) − zs} dz/z,    P_μ(S > s) = 1/2πi ∫ e^{K(z) − (z−1)s} dz/(z−1).

Crossing a pole turns P(S > s) into −P(S ≤ s), so every tail can be computed on the side where it
is small. At the saddle point the integrand does not oscillate, and the trapezoidal rule keeps
full *relative* precision however small the probability. An estimate, not a certificate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from remanence.bounds.engine.closed_forms import log_complement
from remanence.bounds.engine.cumulant import (
    Moments,
    affordable,
    chernoff_window,
    moments,
    order_for_baseline,
    order_for_mean,
    quadrature,
)
from remanence.bounds.engine.schedule import Schedule, total_steps

Complex = npt.NDArray[np.complex128]
Array = npt.NDArray[np.floating[Any]]

_LOG_WINDOW_MASS = math.log(1e-14)
_NEGLIGIBLE = 1e-13  # relative size at which the characteristic function is cut off
_MOST_FREQUENCIES = 3000
_MOST_ENTRIES = 4_000_000
_POLE_GAP = 0.7  # standard deviations between the contour and either pole
_TRUSTED = 1e-8
_FEWER_DIGITS = 1e-5


@dataclass(frozen=True)
class Estimate:
    """The result of contour inversion, and whether its own error estimates support six digits."""

    log_success: float
    log_complement: float
    converged: bool


@dataclass(frozen=True)
class Line:
    """The tilted characteristic function sampled along Re z = `order`."""

    order: float
    at: Moments
    frequencies: Array
    coefficients: Complex
    window: float
    means: tuple[float, float]
    leftover: float

    def tail(self, threshold: float, pole: int) -> tuple[float, float, float]:
        """Log of P(S > s) right of the pole or of P(S ≤ s) left of it, its slope in s, its relative error."""
        offset = self.order - pole
        scale = (self.frequencies[1] if len(self.frequencies) > 1 else 1.0) / (2 * math.pi)
        phased = self.coefficients * np.exp(-1j * self.frequencies * (threshold - self.at.mean))
        phased[0] *= 0.5
        terms = phased / (offset + 1j * self.frequencies)
        integral = math.copysign(2 * scale, offset) * float(terms.real.sum())
        level = self.at.cumulant - offset * threshold
        images = self._images(offset, level, threshold - self.means[pole])
        value = integral - images
        density = 2 * scale * float(phased.real.sum())
        noise = 2 * scale * float(np.abs(terms).sum()) * 1e-14 + images * 1e-15
        noise += self.leftover * 2 * scale * len(terms) / abs(offset + 1j * self.frequencies[-1])
        if value <= noise:
            return -math.inf, 0.0, math.inf
        return (
            float(level + math.log(value)),
            -math.copysign(1.0, offset) * density / value,
            float(noise / value),
        )

    def _images(self, offset: float, level: float, distance: float) -> float:
        """What the pole's periodic images add to the integral.

        One window away from the threshold the other tail is 1 wherever it matters, which makes the
        images a geometric series; taking them off lets the window be short. Where the threshold
        is more than a window away from the untilted mean they are below rounding.
        """
        if abs(distance) > self.window:
            return 0.0
        size = abs(offset) * self.window
        return math.exp(min(-(size if size > 40 else math.log(math.expm1(size))) - level, 690.0))


def _powers(base: Complex, count: int) -> Complex:
    """The powers 0 … count−1 of every entry, by doubling: far cheaper than as many exponentials."""
    powers = np.empty((len(base), count), dtype=np.complex128)
    powers[:, 0] = 1
    filled, block = 1, base.copy()
    while filled < count:
        more = min(filled, count - filled)
        np.multiply(powers[:, :more], block[:, None], out=powers[:, filled : filled + more])
        filled += more
        block = block * block
    return powers


def _log_modulus(schedule: Schedule, order: float, frequency: float) -> float:
    total = 0.0
    for segment in schedule:
        rule = quadrature(segment, lowest=order, highest=order, frequency=frequency)
        exponents = rule.log_weights + order * rule.losses
        weights = np.exp(exponents - exponents.max())
        value = abs(weights @ np.exp(1j * frequency * rule.losses)) / weights.sum()
        total += segment.steps * math.log(max(value, 1e-300))
    return total


def draw_line(schedule: Schedule, order: float, at: Moments) -> Line | None:
    """Sample the characteristic function of S tilted to `order`, or None where that would take too long.

    It would wherever S nearly has an atom: its characteristic function then barely decays.
    """
    below, above, _, _ = chernoff_window(schedule, order, at, log_mass=_LOG_WINDOW_MASS)
    window = max(above - at.mean, at.mean - below) + 3 * at.deviation
    spacing = 2 * math.pi / window
    for reach in (8.5, 10.0, 13.0, 18.0, 27.0, 40.0, 80.0, 160.0):
        last = reach / at.deviation
        count = math.ceil(last / spacing) + 1
        if count > _MOST_FREQUENCIES or not affordable(schedule, order, frequency=last):
            return None
        # One small value may be a dip: losses that come in jumps make the modulus rise again.
        if all(
            affordable(schedule, order, frequency=probe * last)
            and _log_modulus(schedule, order, probe * last) < math.log(_NEGLIGIBLE)
            for probe in (1.0, 1.1, 1.5, 2.2, 4.0)
        ):
            break
    else:
        return None
    logarithm = np.zeros(count, dtype=np.complex128)
    frequencies = spacing * np.arange(count)
    for segment in schedule:
        rule = quadrature(segment, lowest=order, highest=order, frequency=last)
        if len(rule.losses) * count > _MOST_ENTRIES:
            return None
        exponents = rule.log_weights + order * rule.losses
        weights = np.exp(exponents - exponents.max())
        weights /= weights.sum()
        mean = float(weights @ rule.losses)
        values = weights @ _powers(np.exp(1j * spacing * (rule.losses - mean)), count)
        logarithm += segment.steps * np.log(np.where(values == 0, 1e-300, values))
    coefficients = np.exp(logarithm)
    means = moments(schedule, 0.0).mean, moments(schedule, 1.0).mean
    return Line(order, at, frequencies, coefficients, window, means, float(abs(coefficients[-1])))


def _off_the_poles(order: float, deviation: float) -> float:
    gap = _POLE_GAP / deviation
    choices = [min(order, -gap), max(order, 1 + gap)]
    if 2 * gap < 1:
        choices.append(min(max(order, gap), 1 - gap))
    return min(choices, key=lambda choice: abs(choice - order))


def _line_near(schedule: Schedule, order: float, at: Moments) -> Line | None:
    moved = _off_the_poles(order, at.deviation)
    if not affordable(schedule, moved):
        return None
    if moved != order:
        at = moments(schedule, moved)
        if abs(moved) * at.deviation < 0.3 or abs(moved - 1) * at.deviation < 0.3:
            moved = _off_the_poles(moved, at.deviation)
            if not affordable(schedule, moved):
                return None
            at = moments(schedule, moved)
    return draw_line(schedule, moved, at)


def _solve_threshold(line: Line, log_baseline: float) -> tuple[float, float]:
    """The s at which P_ν(S > s) = κ, and the relative error of that probability."""
    target = log_baseline if line.order > 0 else float(log_complement(log_baseline))
    threshold = line.at.mean
    for _ in range(50):
        logarithm, slope, error = line.tail(threshold, 0)
        if slope == 0 or not math.isfinite(logarithm):
            return threshold, math.inf
        move = (target - logarithm) / slope
        threshold += min(max(move, -line.at.deviation), line.at.deviation)
        if abs(move * slope) < 1e-12 * (1 + abs(target) * 1e-2):
            return threshold, error
        if abs(threshold - line.at.mean) > 6 * line.at.deviation:
            break
    return threshold, math.inf


def estimate_success(schedule: Schedule, log_baseline: float) -> Estimate:
    """γ = P_μ(S > s) for the s with P_ν(S > s) = κ, by contour inversion.

    >>> from remanence.bounds.engine.schedule import Segment
    >>> found = estimate_success((Segment(0.987386, sample_rate=0.02, steps=1000),), math.log(0.1))
    >>> round(math.exp(found.log_success), 6), found.converged
    (0.327393, True)
    """
    fallback = Estimate(log_baseline, float(log_complement(log_baseline)), converged=False)
    if not affordable(schedule, 1.0):
        return fallback
    order, at = order_for_baseline(schedule, log_baseline)
    for _ in range(3):
        line = _line_near(schedule, order, at)
        if line is None:
            return fallback
        threshold, error = _solve_threshold(line, log_baseline)
        if math.isinf(error) or abs(threshold - line.at.mean) > 3 * line.at.deviation:
            previous = order
            order, at = order_for_mean(schedule, threshold, start=line.order)
            if abs(order - previous) * at.deviation < 0.2:
                break
            continue
        logarithm, _, power_error = line.tail(threshold, 1)
        if not math.isfinite(logarithm):
            break
        # Relative error of κ moves s, and with it γ by at most as large a factor.
        trusted = max(error, power_error, 4e-16 * total_steps(schedule)) < _TRUSTED
        other = float(log_complement(min(logarithm, 0.0)))
        success, complement = (logarithm, other) if line.order > 1 else (other, logarithm)
        sane = log_baseline - 1e-9 <= success <= 1e-9
        return Estimate(
            float(min(success, 0.0)), float(min(complement, 0.0)), converged=bool(trusted and sane)
        )
    return fallback


def estimate_log_delta(schedule: Schedule, epsilon: float) -> tuple[float, bool]:
    """Log δ(ε) for removing the target, and whether it can be trusted.

    δ(ε) = 1/2πi ∫ e^{K(z) − (z−1)ε} dz/(z(z−1)) on a line right of 1.

    >>> from remanence.bounds.engine.schedule import Segment
    >>> log_delta, trusted = estimate_log_delta((Segment(0.987386, sample_rate=0.02, steps=1000),), 4.0)
    >>> round(math.exp(log_delta) * 1e5, 4), trusted
    (1.0, True)
    """
    start = moments(schedule, 1.0)
    order, at = order_for_mean(schedule, max(epsilon, start.mean), start=1.0)
    gap = 1.2 / at.deviation
    if not affordable(schedule, 1 + gap):
        return 0.0, False
    if order < 1 + gap:
        order = 1 + gap
        at = moments(schedule, order)
    line = draw_line(schedule, order, at)
    if line is None:
        return 0.0, False
    with_target, _, error = line.tail(epsilon, 1)
    without, _, error_without = line.tail(epsilon, 0)
    ratio = epsilon + without - with_target
    if not ratio < 0:
        return 0.0, False
    share = -math.expm1(ratio)
    rounding = 4e-16 * total_steps(schedule) / share  # of very many steps; δ keeps six digits
    trusted = (error + error_without) / share < _TRUSTED and rounding < _FEWER_DIGITS
    log_delta = float(with_target + math.log(share))
    return log_delta, bool(trusted and log_delta <= 0)
