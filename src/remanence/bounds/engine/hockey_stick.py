"""Certified δ(ε) and ε(δ) of a run, from the same dominating pair as the bound on reconstruction.

Differential privacy requires both directions: removing the target, δ(ε) = E_μ[(1 − e^{ε−S})₊], and
adding it, δ(ε) = E_ν[(1 − e^{ε+S})₊]. One dominating pair bounds both, because dominance does
not depend on the order of the two laws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from remanence.bounds.engine.cumulant import Moments, cumulants, moments, order_for_mean
from remanence.bounds.engine.lattice import build_laws, capped, starting_spacing
from remanence.bounds.engine.law import Law
from remanence.bounds.engine.roots import root
from remanence.bounds.engine.rounding import exponent_slack
from remanence.bounds.engine.schedule import Schedule, log_never_sampled, log_sampled, total_steps

_MOST_ROUNDS = 6
_FINER = 0.6  # than the usual spacing, where only one side is computed
_PAIR = ("spread", "null", "alternative")
_SPARE = 14.0  # mass outside a window, below the tolerance
_CUT = 6.0  # mass cut off at infinite losses, below the tolerance
_GUESSED = 4.0  # Chernoff's bound on δ is too high by about this much
_RARE = -40.0
_LARGEST = 700.0  # an exponent that a float can still take


@dataclass(frozen=True)
class Profile:
    """δ(ε) of the dominating pair in one direction, good near the ε it was tilted for."""

    law: Law
    removing: bool
    log_lost: float  # mass at an infinite loss in the direction's favour

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
    # The requested event is about as rare as the tilt has made it common.
    log_floor = 0.0 if removing else 2 * min(at.cumulant - order * at.mean, 0.0)
    laws = build_laws(
        schedule,
        ("spread",),
        order=order,
        at=at,
        spacing=spacing,
        log_mass=_log_mass(rtol),
        log_floor=log_floor,
    )
    lost = laws.log_escaped if removing else laws.log_vanished
    return Profile(laws.by_name["spread"], removing, lost)


def _log_mass(rtol: float) -> float:
    return math.log(rtol) - _SPARE


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


def log_delta_ends(schedule: Schedule, epsilon: float, *, rtol: float = 1e-4) -> tuple[float, float]:
    """Certified bounds on log δ(ε) when the target is taken out, from below and from above.

    Below: δ(ε) ≥ μ(E) − e^ε·ν(E) for every event E; here E is a large summed rounded loss. Stops once they are `rtol`
    apart.

    >>> from remanence.bounds.engine.schedule import Segment
    >>> low, high = log_delta_ends((Segment(0.987386, sample_rate=0.02, steps=1000),), 4.0)
    >>> round(math.exp(low) * 1e5, 3), round(math.exp(high) * 1e5, 3)
    (1.0, 1.0)
    """
    low, high = -math.inf, chernoff_log_delta(schedule, epsilon, removing=True)
    high = min(high, log_sampled(schedule))  # δ ≤ P(the target was ever sampled)
    full, target, spacing = schedule, high - _GUESSED, math.inf
    for _ in range(_MOST_ROUNDS):
        if high - low <= rtol:
            break
        schedule = capped(full, target + math.log(rtol) - _CUT)
        order, at = _tilt(schedule, epsilon, removing=True)
        first = starting_spacing(schedule, at, spread=abs(order) * at.deviation, rtol=rtol)
        spacing = min(spacing, first)
        laws = build_laws(schedule, _PAIR, order=order, at=at, spacing=spacing, log_mass=_log_mass(rtol))
        upper, null, alternative = (laws.by_name[name] for name in _PAIR)
        high = min(high, Profile(upper, True, laws.log_escaped).log_delta(epsilon))
        low = max(low, _tested(null, alternative, epsilon, order))
        if laws.log_escaped > high + math.log(rtol) - 1:  # cut off too much
            target = max(low, target - 2 * _GUESSED)
            continue
        if laws.limited:
            break
        spacing *= min(max(math.sqrt(0.7 * rtol / max(high - low, rtol)), 1 / 16), 0.8)
    return low, high


def _tested(null: Law, alternative: Law, epsilon: float, order: float) -> float:
    """Log(μ(S ≥ ε) − e^ε·ν(S ≥ ε)) of the rounded loss, from below."""
    index = math.ceil((epsilon - null.first) / null.spacing)
    if not 0 <= index < len(null.probabilities):
        return -math.inf
    present, absent = alternative.above(index, 1 - order).low, null.above(index, -order).high
    log_present, log_absent = alternative.log_scale(index), null.log_scale(index) + epsilon
    place = (1 + abs(order)) * null.loss_at(index)
    pad = exponent_slack(alternative.log_total, null.log_total, place, epsilon)
    left = present - absent * math.exp(min(log_absent - log_present + 2 * pad, _LARGEST))
    return log_present - pad + math.log(left) if left > 0 else -math.inf


def log_delta_near(
    schedule: Schedule, epsilon: float, log_delta: float, *, removing: bool, rtol: float
) -> float:
    """A certified upper bound on log δ(ε) in one direction from one lattice, for a δ that is about `log_delta`.

    The lattice is as fine as a tolerance usually needs. Stops where Chernoff's bound is at most `log_delta`.
    """
    if not removing and -epsilon <= log_never_sampled(schedule):
        return -math.inf
    high = chernoff_log_delta(schedule, epsilon, removing=removing)
    if high <= log_delta:
        return high
    # Taking the target out, rare large losses are cut off; putting it in, they cost nothing.
    schedule = capped(schedule, log_delta + math.log(rtol) - _CUT if removing else _RARE)
    order, at = _tilt(schedule, epsilon, removing=removing)
    spacing = starting_spacing(schedule, at, spread=abs(order) * at.deviation, rtol=rtol)
    profile = _profile(schedule, order, at, removing=removing, spacing=spacing, rtol=rtol)
    return min(high, profile.log_delta(epsilon))


def log_delta_upper(schedule: Schedule, epsilon: float, *, rtol: float = 1e-4) -> float:
    """A certified upper bound on log δ(ε) under adding and removing alike."""
    removing = log_delta_ends(schedule, epsilon, rtol=rtol)[1]
    return max(removing, log_delta_near(schedule, epsilon, removing, removing=False, rtol=rtol))


def epsilon_upper(schedule: Schedule, log_delta: float, *, rtol: float = 1e-4) -> float:
    """A certified ε ≥ 0 with δ(ε) ≤ δ under adding and removing alike, within about `rtol` of the smallest."""
    found, step = _epsilon_removing(schedule, log_delta, rtol), rtol
    while log_delta_near(schedule, found, log_delta, removing=False, rtol=rtol) > log_delta:
        # Adding needs the larger ε in no case seen but where both need the same. At this limit it needs no δ at all.
        found, step = min(found + step * max(found, 1e-3), -log_never_sampled(schedule)), 2 * step
    return found


def _epsilon_removing(schedule: Schedule, log_delta: float, rtol: float) -> float:
    best = _chernoff_epsilon(schedule, log_delta)
    if best <= 0:
        return 0.0
    schedule = capped(schedule, log_delta + math.log(rtol) - _CUT)
    order, at = _tilt(schedule, best, removing=True)
    spacing = _FINER * starting_spacing(schedule, at, spread=abs(order) * at.deviation, rtol=rtol)
    for _ in range(_MOST_ROUNDS):
        profile = _profile(schedule, order, at, removing=True, spacing=spacing, rtol=rtol)
        found = _smallest_epsilon(profile, log_delta, abs(at.mean))
        best, previous = min(best, found), order
        if math.isfinite(found) and abs(abs(at.mean) - found) <= at.deviation:
            break
        order, at = _tilt(schedule, best, removing=True)  # it was off the centre of the lattice
        if abs(order - previous) * at.deviation <= 0.3:
            break
    return best


def _chernoff_epsilon(schedule: Schedule, log_delta: float) -> float:
    """The ε that Rényi divergences certify for δ."""
    grid = math.sqrt(2 - 2 * log_delta) / moments(schedule, 1.0).deviation * 2.0 ** np.arange(-7, 2.1, 0.25)
    values = (cumulants(schedule, 1 + grid) - log_delta + 1e-13 * total_steps(schedule)) / grid
    return max(float(values.min()), 0.0)


def _smallest_epsilon(profile: Profile, log_delta: float, start: float) -> float:
    """The smallest ε ≥ 0 at which the profile is certified to be at most δ; ∞ if none is in reach."""
    law = profile.law
    limit = law.loss_at(len(law.probabilities))

    def excess(epsilon: float) -> float:
        return profile.log_delta(epsilon) - log_delta

    low, high = 0.0, max(start, law.spacing)
    while excess(high) > 0:
        if high > limit:
            return math.inf
        low, high = high, high + max(0.25 * high, law.spacing)
    if low == 0.0 and excess(0.0) <= 0:
        return 0.0
    found = root(excess, low, high, precision=1e-12 * high)
    while excess(found) > 0:  # a step or two: the root is as precise as that
        found = min(found * (1 + 1e-11), high)
    return found
