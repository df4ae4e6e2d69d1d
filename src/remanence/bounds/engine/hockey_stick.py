"""Certified δ(ε) and ε(δ) of a run, from the same dominating pair as the bound on reconstruction.

Differential privacy asks for both directions: taking the target out, δ(ε) = E_μ[(1 − e^{ε−S})₊], and
putting it in, δ(ε) = E_ν[(1 − e^{ε+S})₊]. One dominating pair bounds both, because dominance does
not care which of the two laws is called the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from remanence.bounds.engine.contour import estimate_log_delta
from remanence.bounds.engine.cumulant import Moments, cumulants, moments, order_for_mean
from remanence.bounds.engine.lattice import build_laws, starting_spacing
from remanence.bounds.engine.law import Law
from remanence.bounds.engine.rounding import exponent_slack
from remanence.bounds.engine.schedule import Schedule, total_steps

_MOST_ROUNDS = 5


@dataclass(frozen=True)
class Profile:
    """δ(ε) of the dominating pair in one direction, good near the ε it was tilted for."""

    law: Law
    removing: bool
    log_lost: float  # mass at an infinite loss in the direction's favour
    limited: bool

    def log_delta(self, epsilon: float) -> float:
        """An upper bound on log δ(ε)."""
        law, tilt = self.law, self.law.tilt
        if self.removing:
            position = (epsilon - law.first) / law.spacing
            found = law.above(position, 1 - tilt, hinge=True).high
            scale = law.log_scale(position, 1.0)
        else:
            position = (-epsilon - law.first) / law.spacing
            found = law.below(position, -tilt, hinge=True).high
            scale = law.log_scale(position)
        return min(float(np.logaddexp(scale + math.log(found), self.log_lost)), 0.0)


def _tilt(schedule: Schedule, epsilon: float, *, removing: bool) -> tuple[float, Moments]:
    edge = 1.0 if removing else 0.0
    start = moments(schedule, edge)
    target = epsilon if removing else -epsilon
    if (target <= start.mean) if removing else (target >= start.mean):
        return edge, start
    return order_for_mean(schedule, target, start=edge)


def _profile(
    schedule: Schedule, order: float, at: Moments, *, removing: bool, spacing: float, rtol: float
) -> Profile:
    laws = build_laws(
        schedule, ("spread",), order=order, at=at, spacing=spacing, log_mass=math.log(rtol) - 14
    )
    lost = laws.log_escaped if removing else laws.log_vanished
    return Profile(laws.by_name["spread"], removing, lost, laws.limited)


def chernoff_log_delta(schedule: Schedule, epsilon: float, *, removing: bool) -> float:
    """An upper bound on log δ(ε) that always holds.

    δ ≤ exp(K(α) − (α−1)·ε) for every α > 1, and δ ≤ exp(K(−t) − t·ε) for every t > 0 the other way.
    """
    order, at = _tilt(schedule, epsilon, removing=removing)
    offset = abs(order - 1) if removing else abs(order)
    grid = max(offset, 0.1 / at.deviation) * 2.0 ** np.arange(-3, 1.6, 0.25)
    orders = 1 + grid if removing else -grid
    values = cumulants(schedule, orders) - grid * epsilon
    return min(0.0, float(values.min()) + 1e-13 * total_steps(schedule))


def _lowest_loss(schedule: Schedule) -> float:
    return sum(segment.steps * segment.log_absence for segment in schedule)


def log_delta_upper(
    schedule: Schedule, epsilon: float, *, removing: bool, enough: float = -math.inf, rtol: float = 1e-4
) -> float:
    """A certified upper bound on log δ(ε) in one direction, within about `rtol` of the truth.

    Stops as soon as it is at most `enough`.

    >>> from remanence.bounds.engine.schedule import Segment
    >>> run = (Segment(0.987386, sample_rate=0.02, steps=1000),)
    >>> round(math.exp(log_delta_upper(run, 4.0, removing=True)) * 1e5, 3)
    1.0
    """
    if not removing and -epsilon <= _lowest_loss(schedule):
        return -math.inf
    best = chernoff_log_delta(schedule, epsilon, removing=removing)
    if best <= enough:
        return best
    order, at = _tilt(schedule, epsilon, removing=removing)
    aim, trusted = estimate_log_delta(schedule, epsilon) if removing else (0.0, False)
    spacing = starting_spacing(schedule, at, spread=abs(order) * at.deviation, rtol=rtol)
    for _ in range(_MOST_ROUNDS):
        profile = _profile(schedule, order, at, removing=removing, spacing=spacing, rtol=rtol)
        previous, best = best, min(best, profile.log_delta(epsilon))
        # The error falls with the square of the spacing, so the last gain tells what is left.
        left = best - aim if trusted else (previous - best) / 3
        if left <= rtol or best <= enough or profile.limited:
            break
        spacing *= 0.5
    return best


def log_delta_lower(schedule: Schedule, epsilon: float, *, rtol: float = 1e-5) -> float:
    """A certified lower bound on log δ(ε) when the target is taken out, about `rtol` below the truth.

    δ(ε) ≥ μ(E) − e^ε·ν(E) for every event E; here E is a large summed rounded loss.

    >>> from remanence.bounds.engine.schedule import Segment
    >>> run = (Segment(0.987386, sample_rate=0.02, steps=1000),)
    >>> round(math.exp(log_delta_lower(run, 4.0)) * 1e5, 3)
    1.0
    """
    order, at = _tilt(schedule, epsilon, removing=True)
    spacing = starting_spacing(schedule, at, spread=abs(order) * at.deviation, rtol=rtol)
    laws = build_laws(
        schedule,
        ("null", "alternative"),
        order=order,
        at=at,
        spacing=spacing,
        log_mass=math.log(rtol) - 14,
    ).by_name
    null, alternative = laws["null"], laws["alternative"]
    index = math.ceil((epsilon - null.first) / null.spacing)
    if not 0 <= index < len(null.probabilities):
        return -math.inf
    present, absent = alternative.above(index, 1 - order).low, null.above(index, -order).high
    log_present, log_absent = alternative.log_scale(index), null.log_scale(index) + epsilon
    pad = exponent_slack(
        alternative.log_total, null.log_total, (1 + abs(order)) * null.loss_at(index), epsilon
    )
    ratio = log_absent - log_present + 2 * pad
    left = present - absent * math.exp(min(ratio, 700.0))
    return log_present - pad + math.log(left) if left > 0 else -math.inf


def _smallest_epsilon(profile: Profile, log_delta: float, start: float) -> float:
    """The smallest ε ≥ 0 at which the profile is certified to be at most δ; ∞ if none is in reach."""
    law = profile.law
    limit = law.loss_at(len(law.probabilities)) if profile.removing else -law.first
    low, high = 0.0, max(start, 1e-3)
    while profile.log_delta(high) > log_delta:
        if high > limit:
            return math.inf
        low, high = high, high + max(0.25 * high, law.spacing)
    if low == 0.0 and profile.log_delta(0.0) <= log_delta:
        return 0.0
    low_value, high_value = profile.log_delta(low) - log_delta, profile.log_delta(high) - log_delta
    side = 0
    for _ in range(100):
        if high - low <= 1e-9 * high + 1e-12:
            break
        # Illinois: halving a stale end's value keeps false position from creeping.
        guess = (low * high_value - high * low_value) / (high_value - low_value)
        guess = min(max(guess, low + 0.01 * (high - low)), high - 0.01 * (high - low))
        value = profile.log_delta(guess) - log_delta
        if value > 0:
            low, low_value = guess, value
            high_value = high_value / 2 if side == 1 else high_value
            side = 1
        else:
            high, high_value = guess, value
            low_value = low_value / 2 if side == -1 else low_value
            side = -1
        if -1e-7 <= value <= 0:
            break
    return high


def _chernoff_epsilon(schedule: Schedule, log_delta: float, *, removing: bool) -> tuple[float, float]:
    """The ε that Rényi divergences certify for δ, and the order that does it."""
    at = moments(schedule, 1.0 if removing else 0.0)
    grid = math.sqrt(2 - 2 * log_delta) / at.deviation * 2.0 ** np.arange(-7, 2.1, 0.25)
    orders = 1 + grid if removing else -grid
    values = (cumulants(schedule, orders) - log_delta + 1e-13 * total_steps(schedule)) / grid
    best = int(values.argmin())
    return max(float(values[best]), 0.0), float(orders[best])


def epsilon_upper_one_way(
    schedule: Schedule, log_delta: float, *, removing: bool, rtol: float = 1e-4
) -> float:
    """A certified ε ≥ 0 with δ(ε) ≤ δ in one direction, within about `rtol` of the smallest."""
    safe, order = _chernoff_epsilon(schedule, log_delta, removing=removing)
    if not removing:
        safe = min(safe, -_lowest_loss(schedule))
    if safe <= 0:
        return 0.0
    at = moments(schedule, order)
    spacing = starting_spacing(schedule, at, spread=abs(order) * at.deviation, rtol=rtol)
    best, limited = safe, False
    for _ in range(_MOST_ROUNDS):
        profile = _profile(schedule, order, at, removing=removing, spacing=spacing, rtol=rtol)
        limited = profile.limited
        found = _smallest_epsilon(profile, log_delta, abs(at.mean))
        change, best = best - min(best, found), min(best, found)
        off_centre = math.isinf(found) or abs(abs(at.mean) - found) > 1.0 * at.deviation
        if off_centre:
            previous = order
            order, at = _tilt(schedule, best, removing=removing)
            if abs(order - previous) * at.deviation > 0.3:
                continue
        if limited or change <= rtol * best or (removing and _confirmed(schedule, best, log_delta, rtol)):
            break
        spacing *= 0.6
    return best


def _confirmed(schedule: Schedule, epsilon: float, log_delta: float, rtol: float) -> bool:
    estimate, trusted = estimate_log_delta(schedule, epsilon)
    return trusted and estimate >= log_delta - rtol


def log_delta_upper_both_ways(schedule: Schedule, epsilon: float) -> float:
    """A certified upper bound on log δ(ε) under adding and removing alike."""
    removing = log_delta_upper(schedule, epsilon, removing=True)
    return max(removing, log_delta_upper(schedule, epsilon, removing=False, enough=removing))


def epsilon_upper_both_ways(schedule: Schedule, log_delta: float) -> float:
    """A certified ε with δ(ε) ≤ δ under adding and removing alike."""
    removing = epsilon_upper_one_way(schedule, log_delta, removing=True)
    if log_delta_upper(schedule, removing, removing=False, enough=log_delta) <= log_delta:
        return removing
    return max(removing, epsilon_upper_one_way(schedule, log_delta, removing=False))
