"""The cumulant Λ of the privacy loss, the input of tilting and Chernoff bounds.

One step's loss is L(x) = log(1−q + q·e^v) with v = (x − ½)/σ² and x drawn without the target;
Λ(z) = log E e^{zL} is entire, and K(z) = Σ T·Λ(z) is the cumulant of the whole run's loss S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from remanence.bounds.engine.schedule import Array, Schedule, Segment, total_steps

_MOST_NODES = 30_000
_REACH = 9.5  # standard deviations; the density there is below 1e-19 of its peak


@dataclass(frozen=True)
class Quadrature:
    """Nodes of a trapezoidal rule for E e^{zL}, exact to rounding for −`lowest` ≤ Re z ≤ `highest`."""

    losses: Array
    log_weights: Array


def quadrature(segment: Segment, *, lowest: float, highest: float) -> Quadrature:
    """The rule whose step resolves e^{zL}.

    The loss has branch points at distance πσ² from the real line, so the step has to shrink with σ².
    """
    noise = segment.noise_multiplier
    start, width, count = _layout(segment, lowest=lowest, highest=highest)
    noisy = start + width * np.arange(math.ceil(count))
    log_weights = -0.5 * (noisy / noise) ** 2 + math.log(width / noise / math.sqrt(2 * math.pi))
    return Quadrature(segment.loss(noisy), log_weights)


def _layout(segment: Segment, *, lowest: float, highest: float) -> tuple[float, float, float]:
    noise = segment.noise_multiplier
    variance = noise**2
    # With k records the loss is up to k times as steep, and the k branch points of e^{zL} lie on one line.
    below, above = min(0.0, lowest) * segment.records, max(0.0, highest) * segment.records
    strip = 18.7 * variance / (38 + 2 * min(-below, 200.0) + 4.5 * variance)
    if below < 0 and segment.sample_rate < 1:
        # Below this e^{zL} is flat, so a tilt cannot move the integrand any further.
        flat = 0.5 + variance * (
            segment.log_odds_of_absence - math.log(segment.records) - math.log1p(-below) - 5
        )
        below = max(below, min(flat, 0.0))
    width = 2 * math.pi * noise / 8.7
    if noise < 4:
        # With more noise the branch points are further away than the Gaussian needs them to be.
        width = min(width, strip)
    start = below - _REACH * noise
    end = min(above + _REACH * noise, segment.cap)
    return start, width, (end - start) / width + 1


def affordable(schedule: Schedule, order: float) -> bool:
    """Whether the cumulant at this order takes a sensible number of nodes.

    Orders that do not arise where S is nearly an atom, and no tilt of sensible size moves it.
    """
    return all(_layout(segment, lowest=order, highest=order)[2] <= _MOST_NODES for segment in schedule)


@dataclass(frozen=True)
class Moments:
    """K(c), K'(c) and K''(c): the run's loss under the law tilted by e^{cS}."""

    cumulant: float
    mean: float
    variance: float

    @property
    def deviation(self) -> float:
        """The tilted standard deviation √K''(c), kept above 0: with negligible noise S is an atom."""
        return max(math.sqrt(self.variance), 1e-30)


def moments(schedule: Schedule, order: float) -> Moments:
    """The cumulant and its first two derivatives at a real order.

    >>> at_one = moments((Segment(2.0, steps=4),), 1.0)
    >>> round(at_one.cumulant, 12) + 0.0, round(at_one.mean, 12), round(at_one.variance, 12)
    (0.0, 0.5, 1.0)
    """
    cumulant = mean = variance = 0.0
    for segment in schedule:
        rule = quadrature(segment, lowest=order, highest=order)
        exponents = rule.log_weights + order * rule.losses
        peak = exponents.max()
        weights = np.exp(exponents - peak)
        total = weights.sum()
        weights /= total
        step_mean = float(weights @ rule.losses)
        cumulant += segment.steps * float(peak + np.log(total))
        mean += segment.steps * step_mean
        variance += segment.steps * float(weights @ (rule.losses - step_mean) ** 2)
    return Moments(cumulant, mean, variance)


def cumulants(schedule: Schedule, orders: Array) -> Array:
    """K at several real orders.

    >>> cumulants((Segment(2.0, steps=4),), np.array([2.0, 3.0])).round(12).tolist()
    [1.0, 3.0]
    """
    result = np.zeros(len(orders))
    for segment in schedule:
        rule = quadrature(segment, lowest=float(orders.min()), highest=float(orders.max()))
        exponents = rule.log_weights + orders[:, None] * rule.losses
        peaks = exponents.max(axis=1)
        sums = np.exp(exponents - peaks[:, None]).sum(axis=1)
        result += segment.steps * (peaks + np.log(sums))
    return result


def _log_tail(order: float, at: Moments) -> float:
    """Esscher's approximation of log P(S > K'(c)), or of log P(S ≤ K'(c)) for a negative order."""
    spread = abs(order) * at.deviation
    return at.cumulant - order * at.mean + spread**2 / 2 + float(log_ndtr(-spread))


def order_for_baseline(schedule: Schedule, log_baseline: float) -> tuple[float, Moments]:
    """The tilt c that moves the mean of S to about where the best test of level κ puts its threshold.

    Only centres windows: nothing certified depends on how well the tail is approximated.
    """
    upper = log_baseline <= -math.log(2)
    if upper:
        target, sign = log_baseline, 1.0
    else:
        target, sign = math.log(-math.expm1(log_baseline)), -1.0

    def excess(size: float) -> tuple[float, Moments]:
        at = moments(schedule, sign * size)
        return _log_tail(size, Moments(at.cumulant, sign * at.mean, at.variance)) - target, at

    origin = moments(schedule, 0.0)
    if target >= -math.log(2) - 1e-9:
        return 0.0, origin
    low, high_value = 0.0, -math.log(2) - target
    low_value = high_value
    high = math.sqrt(max(-2 * target, 1e-3)) / max(origin.deviation, 1e-150)
    if sign > 0 and high > 1:
        # A skewed S has its threshold far below where its deviation without the target suggests.
        high = min(high, max(1.0, math.sqrt(-2 * target) / moments(schedule, 1.0).deviation))
    while high > 1e-9 and not affordable(schedule, sign * high):
        high /= 2
    at = origin
    while affordable(schedule, sign * high):
        high_value, at = excess(high)
        if high_value <= 0:
            break
        low, low_value = high, high_value
        high *= 2
    else:
        return sign * low, at
    for _ in range(60):
        # The exponent is close to quadratic in c, hence interpolation in √(−log tail).
        a, b = math.sqrt(max(-(low_value + target), 0)), math.sqrt(max(-(high_value + target), 0))
        share = (math.sqrt(-target) - a) / (b - a) if b > a else 0.5
        middle = low + (high - low) * min(max(share, 0.05), 0.95)
        value, at = excess(middle)
        if abs(value) < 0.02 * (1 + 0.02 * abs(target)) or high - low < 1e-6 * high:
            return sign * middle, at
        if value > 0:
            low, low_value = middle, value
        else:
            high, high_value = middle, value
    # Esscher's approximation jumps where a second mode takes over: the moments of this very order.
    return sign * high, moments(schedule, sign * high)


def order_for_mean(schedule: Schedule, mean: float, *, start: float) -> tuple[float, Moments]:
    """The tilt c with K'(c) = `mean` to within a tenth of a standard deviation, if there is one.

    If there is none, because the loss cannot fall below Σ T·log(1−q), an extreme tilt.
    """
    order = start
    at = moments(schedule, order)
    low, high = -math.inf, math.inf
    for _ in range(80):
        gap = mean - at.mean
        settled = math.isfinite(high - low) and high - low <= 1e-9 * (abs(low) + abs(high))
        if abs(gap) <= 0.1 * at.deviation or settled:
            break
        if gap > 0:
            low = order
        else:
            high = order
        reach = 2 / at.deviation if at.deviation > 0 else math.inf
        move = min(max(gap / max(at.variance, 1e-300), -reach), reach)
        order = order + move
        creeping = math.isfinite(high - low) and abs(move) < 0.1 * (high - low)
        if not low < order < high or creeping:
            order = (low + high) / 2
        if not affordable(schedule, order):
            return low if gap > 0 else high, at
        at = moments(schedule, order)
    return order, at


def chernoff_window(
    schedule: Schedule, order: float, at: Moments, *, log_mass: float
) -> tuple[float, float, float, float]:
    """Edges outside which the tilted S has mass at most e^`log_mass` each, and the offsets proving it.

    P_c(S ≥ b) ≤ exp(K(c+t) − K(c) − t·b) for every t > 0, and likewise below.
    """
    below, left = _best_offset(schedule, order, at, -1.0, log_mass)
    above, right = _best_offset(schedule, order, at, 1.0, log_mass)
    return -below, above, left, right


def _best_offset(
    schedule: Schedule, order: float, at: Moments, sign: float, log_mass: float
) -> tuple[float, float]:
    """The smallest (K(c±t) − K(c) − log_mass)/t and its t."""
    gaussian = math.sqrt(-2 * log_mass) / at.deviation
    # From small offsets up: for a skewed S the optimum lies far below the Gaussian one, and
    # beyond the optimum the cumulant, and the work to find it, can explode.
    offset = min(gaussian / 16, 0.1)
    best, best_offset = math.inf, offset
    while offset < 3 * gaussian and (affordable(schedule, order + sign * 8 * offset) or math.isinf(best)):
        grid = offset * 2.0 ** np.arange(0, 3, 0.5)
        values = (cumulants(schedule, order + sign * grid) - at.cumulant - log_mass) / grid
        near = int(values.argmin())
        if values[near] >= best:
            break
        best, best_offset = float(values[near]), float(grid[near])
        if near < len(grid) - 1:
            break
        offset *= 8
    return best, best_offset


def chernoff_success(schedule: Schedule, log_baseline: float) -> float:
    """An upper bound on log γ that always holds, from Rényi divergences alone.

    log γ ≤ inf over α > 1 of ((α−1)·log κ + K(α))/α (Hayes et al. 2023, Theorem 7 and Eq. 2, for any q).

    >>> round(math.exp(chernoff_success((Segment(10.0, steps=100),), math.log(0.1))), 3)
    0.519
    """
    if not affordable(schedule, 2.0):
        return 0.0
    centre, _ = order_for_baseline(schedule, min(log_baseline, -math.log(2)))
    grid = 1 + max(centre, 1e-3) * 2.0 ** np.arange(-8, 1.1, 0.5)
    best = math.inf
    for _ in range(3):
        values = ((grid - 1) * log_baseline + cumulants(schedule, grid)) / grid
        best = min(best, float(values.min()))
        near = int(values.argmin())
        grid = np.linspace(grid[max(near - 1, 0)], grid[min(near + 1, len(grid) - 1)], 9)
    return min(0.0, best + 1e-13 * total_steps(schedule))
