"""The certified bracket of γ: a dominating pair from above, an explicit test from below.

Above: γ ≤ κ·e^s + δ(s) at every s, with δ the hockey-stick profile of the dominating pair; at the
best lattice point this is exactly what the pair allows. Below: the power of the randomised test of
level κ that rejects when the summed rounded loss is large. Both are off by O(spacing²), so
the lattice is refined until they meet. Truncation, folding and rounding widen the bracket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri_exp

from remanence.bounds.engine.bracket import Bracket
from remanence.bounds.engine.closed_forms import log_complement
from remanence.bounds.engine.cumulant import (
    Moments,
    chernoff_success,
    chernoff_window,
    moments,
    order_for_baseline,
)
from remanence.bounds.engine.law import Law, Part, Window, compose
from remanence.bounds.engine.quantise import Masses, loss_reach, quantise
from remanence.bounds.engine.rounding import UNIT, exponent_slack
from remanence.bounds.engine.schedule import Array, Schedule, Segment, log_never_sampled, total_steps

_PAIR = ("spread", "null", "alternative")
_MOST_POINTS = 2**21  # of one lattice: about half a second
_MANY_POINTS = 2**17  # beyond which steps are composed in groups,
_WIDEST = 100.0  # a spacing, and of groups times the tilt, far from where an exponential overflows
_SMOOTH = 4.0  # if no step's loss is as many deviations of a group's
_MOST_WORK = 3 * 2**21  # points of all lattices of one bracket
_PLAIN = -16.0  # probabilities above e^-16 need no tilt to be resolved
_SNAP = 0.7  # standard deviations within which a tilt is moved onto one of the two laws themselves
_MARGIN = 1.1  # by which a window is longer than Chernoff's bound of the true loss asks for
_EXTRA = 4  # and this many points
_STRETCHED = 100.0  # by which no law that is not nearly an atom is stretched
_SPARE = 6.0  # what is cut off is e^-6 of the tolerance
_COARSE = 2.0  # too wide at first, on the whole, is cheaper than too fine
_SPACING = 5.0  # deviations of a step per root of the tolerance: the error is its square over 25
_FEW_POINTS = 2**16  # of one step, beyond which the first lattice is not refined
_SHORT = 3.0  # deviations that a first tilt stays short of the saddle point
_OUTSIDE = 10.0  # mass outside a window is e^-10 of the tolerance times what is asked for,
_TILTED = -6.0  # which under a tilt is about e^-6
_LEAST_GAIN = 1e-3  # of log γ over log κ, in choosing the first spacing
_MUCH_SLACK = 0.3  # of the tolerance: numerical slack that a finer lattice would not cure
_REMEDIES = 2  # against it: another tilt, then a longer window
_LONGER = (2.0, 30.0, 4.0)  # powers of e of its mass: at least, at most, and beyond what is missing
_AIM = 0.75  # of the tolerance, in choosing the next spacing,
_FINEST_STEP, _COARSEST_STEP = 1 / 16, 0.85  # which is between these times the last
_LARGEST = 700.0  # an exponent that a float can still take
_PAD = 16  # roundings in a sum of the exponents that untilt a probability


@dataclass(frozen=True)
class LatticePair:
    """A run on a lattice, tilted for thresholds near one loss, and good for every baseline near there."""

    upper: Law
    null: Law
    alternative: Law
    order: float
    log_escaped: float
    log_vanished: float

    def bracket(self, log_baseline: float) -> tuple[Bracket, float]:
        """The bracket, and how much of its width is slack for numerical errors instead of spacing."""
        if abs(self.order) * self.upper.spacing > _LARGEST:  # too coarse for this tilt: nothing is known yet
            return Bracket(-math.inf, 0.0), 0.0
        log_upper, comp_lower, slack = self._dominated(log_baseline)
        log_lower, comp_upper, test_slack = self._tested(log_baseline)
        return Bracket(log_lower, log_upper, comp_lower, comp_upper), max(slack, test_slack)

    def _dominated(self, log_baseline: float) -> tuple[float, float, float]:
        law, order = self.upper, self.order
        log_absent = float(log_complement(log_baseline))
        if order >= 0:
            index = law.crossing(log_baseline, from_above=True)
        else:
            index = law.crossing(log_absent, from_above=False)
        index = min(max(index, 0), len(law.probabilities) - 1)
        threshold = law.loss_at(index)
        log_upper, comp_lower, slack = 0.0, -math.inf, math.inf
        if order >= 1:
            profile = law.above(index, 1 - order, hinge=True)
            scale = law.log_scale(index, 1.0)
            terms = [threshold + log_baseline, scale + _log(profile.high), self.log_escaped]
            log_upper = min(float(np.logaddexp.reduce(terms)) + _pad(law, index, log_baseline), 0.0)
            comp_lower = float(log_complement(log_upper))
            slack = math.exp(min(scale + _log(profile.high - profile.low) - log_upper, 0.0))
        if order <= 1:
            missed = law.below(index, 1 - order)
            scale = law.log_scale(index, 1.0)
            if order >= 0:
                reached = law.above(index, -order)
                gap = reached.low - _share_of(log_baseline, law, index, 1.0)
            else:
                reached = law.below(index, -order)
                vanished = _share_of(self.log_vanished, law, index, 1.0)
                gap = _share_of(log_absent, law, index, -1.0) - reached.high - vanished
            complement = missed.low + gap  # both in units of e^scale, because μ = e^s·ν at the threshold
            if complement > 0:
                found = min(scale + math.log(complement), 0.0) - _pad(law, index, log_baseline)
                comp_lower = max(comp_lower, found)
                log_upper = min(log_upper, float(log_complement(found)))
                spread = missed.high - missed.low + reached.high - reached.low
                slack = min(slack, spread * math.exp(min(scale - log_upper, _LARGEST)))
        return log_upper, comp_lower, slack

    def _tested(self, log_baseline: float) -> tuple[float, float, float]:
        null, alternative, order = self.null, self.alternative, self.order
        log_absent = float(log_complement(log_baseline))
        if order >= 0:
            atom = null.crossing(log_baseline, from_above=True)
        else:
            atom = null.crossing(log_absent, from_above=False)
        step = 1
        while True:
            if not 0 <= atom < len(null.probabilities) - 1:
                return log_baseline, float(log_complement(log_baseline)), math.inf
            scale = null.log_scale(atom)
            if order >= 0:
                spent = null.above(atom + 1, -order).high * math.exp(-order * null.spacing)
                left = _share_of(log_baseline, null, atom, -1.0) - spent
            else:
                kept = null.below(atom + 1, -order).low * math.exp(-order * null.spacing)
                left = kept - _share_of(log_absent, null, atom, 1.0)
            if left >= 0:
                break
            atom, step = atom + step, 2 * step
        share = min(left / null.at(atom).high, 1.0)
        log_lower, comp_upper, slack = log_baseline, float(log_complement(log_baseline)), math.inf
        scale = alternative.log_scale(atom)
        point = alternative.at(atom)
        if order >= 1:
            rejected = alternative.above(atom + 1, 1 - order)
            up = math.exp((1 - order) * null.spacing)
            power = rejected.low * up + share * point.low
            if power > 0:
                log_lower = scale + math.log(power) - _pad(alternative, atom, log_baseline)
                comp_upper = float(log_complement(min(log_lower, 0.0)))
                slack = (rejected.high - rejected.low) * up / power
        if order <= 1:
            missed = alternative.below(atom, 1 - order)
            complement = missed.high + (1 - share) * point.high
            found = min(scale + math.log(complement) + _pad(alternative, atom, log_baseline), 0.0)
            comp_upper = min(comp_upper, found)
            log_lower = max(log_lower, float(log_complement(found)))
            slack = min(slack, (missed.high - missed.low) * math.exp(min(scale - log_lower, _LARGEST)))
        return log_lower, comp_upper, slack


def _pad(law: Law, index: int, log_baseline: float) -> float:
    """The rounding error of a sum of the exponents that untilt a probability."""
    exponents = abs(law.log_total) + (1 + abs(law.tilt)) * abs(law.loss_at(index)) + abs(log_baseline)
    return _PAD * UNIT * (1 + exponents)


def _share_of(log_value: float, law: Law, index: int, side: float) -> float:
    """A probability in units of the law's scale at one point, rounded up (side 1) or down (−1)."""
    pad = side * _pad(law, index, log_value)
    return math.exp(min(log_value - law.log_scale(index) + pad, _LARGEST))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def certain_ends(schedule: Schedule, log_baseline: float) -> Bracket:
    """The bracket that holds without any lattice: κ ≤ γ ≤ the better of two bounds.

    Chernoff's; and, because the transcript is as without the target if it was never sampled, which has a
    probability of a: γ ≤ a·κ + 1 − a.
    """
    complement = log_never_sampled(schedule) + float(log_complement(log_baseline))
    complement -= exponent_slack(complement, log_baseline)
    never = float(log_complement(complement)) if complement > -math.inf else 0.0
    chernoff = chernoff_success(schedule, log_baseline)
    upper = max(min(chernoff, never), log_baseline)
    lowest = max(complement, float(log_complement(min(chernoff, 0.0))))
    return Bracket(log_baseline, upper, lowest, float(log_complement(log_baseline)))


def capped(schedule: Schedule, log_mass: float) -> Schedule:
    """The run without all but about e^`log_mass` of its probability with the target."""
    log_step_mass = log_mass - math.log(total_steps(schedule))
    return tuple(segment.capped(log_step_mass) for segment in schedule)


@dataclass(frozen=True)
class Laws:
    """Composed laws by name, and what the dominating pair put at infinite losses."""

    by_name: dict[str, Law]
    points: int
    limited: bool
    log_escaped: float
    log_vanished: float


def build_laws(
    schedule: Schedule,
    names: Sequence[str],
    *,
    order: float,
    at: Moments,
    spacing: float,
    log_mass: float,
    log_floor: float = 0.0,
) -> Laws:
    """The named laws of the run, tilted to `order`, on a lattice no finer than the work limit allows.

    e^`log_floor` is about the smallest probability of a small loss that is wanted from them.
    """
    spacing = min(spacing, _WIDEST)
    low, high, *offsets = chernoff_window(schedule, order, at, log_mass=log_mass)
    log_step_mass = log_mass - math.log(total_steps(schedule)) + min(at.cumulant, log_floor, 0.0)
    reach = sum(loss_reach(segment, order=order, log_mass=log_step_mass) for segment in schedule)
    # In groups, if those have no rare large losses, so that their law is about as smooth as that of all steps.
    smooth = reach < _SMOOTH * at.deviation * total_steps(schedule) ** -0.25
    wide = spacing * total_steps(schedule) ** 0.25  # of the groups' lattice
    smooth = smooth and (1 + abs(order)) * wide < _WIDEST
    many = len(schedule) == 1 and high - low > _MANY_POINTS * spacing and smooth
    if many:
        count = round(math.sqrt(total_steps(schedule)))
        group = (replace(schedule[0], steps=count),)
        edges = chernoff_window(group, order, moments(group, order), log_mass=log_mass - math.log(count + 2))
        many = edges[1] - edges[0] <= _MOST_POINTS * spacing
    finest = (reach if many else max(high - low, reach)) / _MOST_POINTS
    limited = spacing < finest
    spacing = max(spacing, finest)
    quantised = [
        quantise(segment, spacing=spacing, order=order, log_mass=log_step_mass) for segment in schedule
    ]
    parts = {
        name: [
            Part(step.tilted(name, order), step.start, segment.steps, step.rounding)
            for step, segment in zip(quantised, schedule, strict=True)
        ]
        for name in names
    }
    points, off = sum(len(step.null) for step in quantised), dict.fromkeys(names, 0.0)
    if many:
        grouped = _grouped(
            schedule[0], {name: parts[name][0] for name in names}, spacing, (order, at, log_mass)
        )
        parts, off, spacing = grouped.parts, grouped.off, grouped.spacing
        points += grouped.points
    # Rounding moves the summed loss by up to T·spacing², and spreads it: the window goes along. The two
    # rounded laws are compared point by point, so they share one.
    windows = {
        name: _window(each, spacing, at, (low, high), (offsets[0], offsets[1]))
        for name, each in parts.items()
    }
    if "null" in windows and "alternative" in windows:
        windows["null"] = windows["alternative"] = _joint(windows["null"], windows["alternative"])
    laws = {}
    for name, each in parts.items():
        law = compose(each, spacing=spacing, tilt=order - (name == "alternative"), window=windows[name])
        laws[name] = replace(law, carried=off[name])
    counts = np.log([segment.steps for segment in schedule])
    return Laws(
        laws,
        points=points + max(len(law.probabilities) for law in laws.values()),
        limited=limited,
        log_escaped=float(np.logaddexp.reduce(counts + [step.log_escaped for step in quantised])),
        log_vanished=float(np.logaddexp.reduce(counts + [step.log_vanished for step in quantised])),
    )


@dataclass(frozen=True)
class _Groups:
    """Laws of groups of steps on a lattice that is as much wider as their loss is."""

    parts: dict[str, list[Part]]
    off: dict[str, float]  # of all probabilities of the whole run together
    spacing: float
    points: int


def _grouped(
    segment: Segment, steps: dict[str, Part], spacing: float, tilt: tuple[float, Moments, float]
) -> _Groups:
    """Compose √T steps, put their loss on a lattice T^¼ times as wide, and leave the groups to be composed.

    As for one step, the dominating pair is split between neighbours and the others are rounded. A lattice for all steps
    at once would have √T points for each deviation of one step.
    """
    order, at, log_mass = tilt
    total, usual = segment.steps, math.isqrt(segment.steps)
    sizes = np.arange(usual, usual + usual // 4 + 1)
    size = int(sizes[np.argmin(total % sizes)])  # that leaves few steps over, or none
    ratio = round(math.sqrt(size))
    count, rest = divmod(total, size)
    parts: dict[str, list[Part]] = {name: [] for name in steps}
    off, points = dict.fromkeys(steps, 0.0), 0
    for length, times in ((size, count), (rest, 1)) if rest else ((size, count),):
        share = length / total
        part_of = Moments(at.cumulant * share, at.mean * share, at.variance * share)
        low, high, *offsets = chernoff_window(
            (replace(segment, steps=length),), order, part_of, log_mass=log_mass - math.log(count + 1)
        )
        laws = {}
        for name, step in steps.items():
            group = [replace(step, steps=length)]
            window = _window(group, spacing, part_of, (low, high), (offsets[0], offsets[1]))
            laws[name] = compose(group, spacing=spacing, tilt=order - (name == "alternative"), window=window)
        origins = {name: length * step.start for name, step in steps.items()}
        firsts = {name: round((law.first - origins[name]) / spacing) for name, law in laws.items()}
        lowest = min(firsts.values()) // ratio - 1
        for name, law in laws.items():
            masses = np.maximum(law.probabilities, 0.0)
            widen = _split if name == "spread" else _rounded
            coarse = widen(masses, firsts[name], ratio, lowest, (spacing, law.tilt))
            missing = float(coarse.sum())
            found = Masses(coarse / missing, law.log_total + math.log(missing))
            parts[name].append(Part(found, origins[name] + spacing * ratio * lowest, times, law.rounding))
            error = law.outside + law.energy_error * math.sqrt(len(masses))
            off[name] += times * error * math.exp(abs(law.tilt) * spacing * ratio) * (1 + times * error)
            points += len(masses) // len(laws)
    return _Groups(parts, off, spacing * ratio, points)


def _split(masses: Array, first: int, ratio: int, lowest: int, scale: tuple[float, float]) -> Array:
    """Tilted masses on a lattice `ratio` times as wide: split so that those with and without the target stay."""
    spacing, tilt = scale
    beyond, width = spacing * np.arange(ratio), spacing * ratio
    moved = np.expm1(beyond) / math.expm1(width)
    cells = _cells(masses, first - lowest * ratio, ratio)
    wider = np.zeros(len(cells) + 1)
    wider[:-1] += cells @ ((1 - moved) * np.exp(-tilt * beyond))
    wider[1:] += cells @ (moved * np.exp(tilt * (width - beyond)))
    return wider


def _rounded(masses: Array, first: int, ratio: int, lowest: int, scale: tuple[float, float]) -> Array:
    """Tilted masses on a lattice `ratio` times as wide, each at the nearest point."""
    spacing, tilt = scale
    half = ratio // 2
    return _cells(masses, first - lowest * ratio + half, ratio) @ np.exp(
        tilt * spacing * (half - np.arange(ratio))
    )


def _cells(masses: Array, first: int, ratio: int) -> Array:
    """Masses in rows of `ratio`, the first of which starts at point 0."""
    cells = np.zeros((-(-(first + len(masses)) // ratio), ratio))
    cells.reshape(-1)[first : first + len(masses)] = masses
    return cells


def _window(
    parts: Sequence[Part],
    spacing: float,
    at: Moments,
    edges: tuple[float, float],
    offsets: tuple[float, float],
) -> Window:
    """The window of the true loss, moved and stretched as quantising has moved and stretched the law."""
    each = [part.moments(spacing) for part in parts]
    mean, variance = math.fsum(m for m, _ in each), math.fsum(v for _, v in each)
    stretch = max(math.sqrt(variance) / at.deviation, 1.0) * _MARGIN
    # Of a loss that is nearly an atom, quantising may stretch the law beyond measure.
    most = (_MOST_POINTS if stretch < _STRETCHED else _FEW_POINTS) * spacing
    low, high = (mean + min(max(stretch * (edge - at.mean), -most), most) for edge in edges)
    return Window(low - _EXTRA * spacing, mean, high + _EXTRA * spacing, offsets)


def _joint(one: Window, other: Window) -> Window:
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Window(low, one.mean, high, one.offsets)


def _snapped(schedule: Schedule, order: float, at: Moments, log_baseline: float) -> tuple[float, Moments]:
    """The order, or 0 or 1 if one of them is near: there both tails of a law can be had at once."""
    for law in (0.0, 1.0) if log_baseline > -3 else (1.0,):
        if order != law and abs(order - law) * at.deviation < _SNAP:
            return law, moments(schedule, law)
    return order, at


def starting_order(schedule: Schedule, log_baseline: float) -> tuple[float, Moments]:
    """The first tilt."""
    if log_baseline > -math.log(2) and log_complement(log_baseline) > _PLAIN:
        # Not worth a tilt, and a near-atom at Σ T·log(1−q) would ask for an enormous one.
        return 0.0, moments(schedule, 0.0)
    order, at = order_for_baseline(schedule, log_baseline)
    spread = order * at.deviation
    if order > 1:
        # Short of the saddle point costs two digits and spares the long upper tail that a skewed S grows
        # under larger tilts.
        order = max(order * (1 - _SHORT / spread), 1.0) if spread > _SHORT else 1.0
        at = moments(schedule, order)
    return _snapped(schedule, order, at, log_baseline)


def starting_spacing(schedule: Schedule, at: Moments, *, spread: float, rtol: float) -> float:
    """About the widest lattice that meets the tolerance, for a loss that is nearly Gaussian.

    `spread` is how many deviations the threshold is away from the untilted mean.
    Wider where that would take very many points: S may nearly be an atom, which needs far fewer.
    """
    relative = _SPACING * math.sqrt(rtol) / (1 + spread)
    reach = max(
        loss_reach(segment, order=1.0, log_mass=math.log(rtol) - 2 * _OUTSIDE) for segment in schedule
    )
    return max(relative * at.deviation / math.sqrt(total_steps(schedule)), reach / _FEW_POINTS)


def lattice_bracket(
    schedule: Schedule, log_baseline: float, *, rtol: float = 1e-4
) -> tuple[Bracket, LatticePair]:
    """The certified bracket, and the lattice that gave it.

    >>> from remanence.bounds.engine.schedule import Segment
    >>> ends, _ = lattice_bracket((Segment(0.987386, sample_rate=0.02, steps=1000),), math.log(0.1))
    >>> round(math.exp(ends.log_lower), 4), round(math.exp(ends.log_upper), 4)
    (0.3274, 0.3274)
    """
    best = certain_ends(schedule, log_baseline)
    log_width = math.log(rtol)
    schedule = capped(schedule, log_baseline + log_width - _SPARE)
    order, at = starting_order(schedule, log_baseline)
    plain = order in (0.0, 1.0)
    log_mass = log_width - _OUTSIDE + (max(log_baseline, _PLAIN) if plain else _TILTED)
    spread = (
        abs(float(ndtri_exp(log_baseline))) if plain else abs(order) * at.deviation + _SHORT * (order > 1)
    )
    # For a run that reveals little, even a coarse lattice gives a narrow bracket.
    gain = min(max(best.log_upper - log_baseline, _LEAST_GAIN), 1.0)
    spacing = _COARSE * starting_spacing(schedule, at, spread=spread, rtol=rtol) / math.sqrt(gain)
    log_floor = float(log_complement(log_baseline))
    work, remedies = 0, 0
    while True:
        laws = build_laws(
            schedule, _PAIR, order=order, at=at, spacing=spacing, log_mass=log_mass, log_floor=log_floor
        )
        upper, null, alternative = (laws.by_name[name] for name in _PAIR)
        pair = LatticePair(upper, null, alternative, order, laws.log_escaped, laws.log_vanished)
        ends, slack = pair.bracket(log_baseline)
        best = best.meets(ends)
        work += laws.points
        if best.excess(rtol) <= 1 or work > _MOST_WORK:
            break
        if slack > _MUCH_SLACK * rtol:
            remedies += 1
            if remedies > _REMEDIES:
                break
            if remedies == 1 and order > 0:
                order, at = order_for_baseline(schedule, log_baseline)
                order, at = _snapped(schedule, order, at, log_baseline)
            elif any(law.folding_matters for law in (upper, null, alternative)):
                least, most, beyond = _LONGER
                log_mass -= min(max(math.log(slack / rtol), least), most) + beyond
            else:
                break
        elif laws.limited:
            break
        else:
            spacing *= min(max(math.sqrt(_AIM / ends.excess(rtol)), _FINEST_STEP), _COARSEST_STEP)
    return best, pair


def lattice_brackets(
    schedule: Schedule, log_baselines: Sequence[float], *, rtol: float = 1e-4
) -> list[Bracket]:
    """The certified brackets of many baselines, sharing lattices between those that need the same tilt."""
    results: dict[int, Bracket] = {}
    waiting = sorted(range(len(log_baselines)), key=lambda index: log_baselines[index])
    while waiting:
        middle = waiting.pop(len(waiting) // 2)
        results[middle], pair = lattice_bracket(schedule, log_baselines[middle], rtol=rtol)
        for index in list(waiting):
            ends = pair.bracket(log_baselines[index])[0].meets(certain_ends(schedule, log_baselines[index]))
            if ends.excess(rtol) <= 1:
                results[index] = ends
                waiting.remove(index)
    return [results[index] for index in range(len(log_baselines))]
