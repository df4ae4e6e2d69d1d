"""Random allocation (balls in bins): each pass throws a record into one of b batches, which is kept secret.

One pass releases N(0, σ²·I_b) without the record, and the mean of N(e_t, σ²·I_b) over t with it. Its likelihood ratio
is a mean of independent numbers, r = (Y_1 + … + Y_b)/b with Y = e^{(x − 1/2)/σ²}, each of mean 1 without the record;
with it, one of them is drawn from the other law. Feldman and Shenfeld (2026) compute the law of such a mean; here it is
certified from both sides, on two lattices.

*Above.* Y is split between the two neighbours of an evenly spaced lattice so that its mean stays. The sum of split
numbers is larger in convex order, so the split pair dominates: E(r − α)₊ rises for every α, also under composition.
The law of the sum with the record is (size-biased Y) ∗ Y^{∗(b−1)}, by FFT. Its logarithm is split again, onto a lattice
of losses ("connect the dots"), and composed over the passes. *Below.* The test that rounds every Y to the lattice, sums
them and rounds the logarithm of the sum: its size and power are computed from its own two laws.

It covers adaptive gradients of at most 1: y_t = c·x_t + √(1 − c²)·w_t, with c and the direction chosen from what the
earlier releases showed, turns the pair above into that of a shorter gradient, step by step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, ndtr, ndtri

from remanence.bounds.engine.bracket import Bracket
from remanence.bounds.engine.closed_forms import log_complement
from remanence.bounds.engine.law import Law, Part, Window, compose, log_moments
from remanence.bounds.engine.quantise import RULES, TIERS, Masses
from remanence.bounds.engine.rounding import FUNCTION, UNIT, exponent_slack
from remanence.bounds.engine.schedule import Array

_LEAST_LOG = math.log(1e-9)  # of a baseline; below it no lattice without a tilt has enough digits
_LEAST_NOISE, _MOST_NOISE = (0.1, 1e6)  # below, Y is above every lattice; above, it barely differs from 1
_MOST_POINTS = 2**17  # of one lattice, about 80 ms
_CLOSED = 4  # cells of the smallest numbers, which have closed forms; beyond them these would cancel
_CHUNK = 2**16  # nodes handled at once, few enough to stay in the cache
_ROUNDS = 8
_FIRST = 0.25  # standard deviations of Y, and of a pass's loss: the first spacings
_FEW_POINTS = 2**14  # of the first lattice up to the largest Y
_SHARE = 0.05  # of the tolerance, for what lies outside a window
_SHARE_ABOVE = 0.2  # of the tolerance, for what lies above the largest Y that is looked at
_MUCH = 0.3  # of the width
_MOSTLY = 0.05  # with the record, above the largest lattice
_LEAST_STEP = 1e-12  # of losses
_LARGEST = 700.0  # an exponent that a float can still take
_LOOSE = 50.0  # times the tolerance: a width for which more points than usual are worth their time
_AIM, _FINEST, _COARSEST = 0.6, 1 / 32, 0.7  # in choosing the next spacing
_LARGEST_ORDER = 96  # of the Rényi divergences


@lru_cache(maxsize=256)
def allocation_bracket(noise: float, bins: int, passes: int, log_baseline: float, rtol: float) -> Bracket:
    """The bracket of γ for balls in bins.

    >>> found = allocation_bracket(2.0, 100, 1, math.log(0.01), 1e-4)
    >>> round(math.exp(found.log_lower), 5), round(math.exp(found.log_upper), 5)
    (0.01152, 0.01152)
    """
    found = Bracket(log_baseline, max(_renyi(noise, bins, passes, log_baseline), log_baseline))
    if log_baseline >= _LEAST_LOG and bins > 1 and _LEAST_NOISE < noise <= _MOST_NOISE:
        found = _refined(found, noise, bins, passes, log_baseline, rtol)
    lower, upper = max(found.log_lower, log_baseline), max(found.log_upper, log_baseline)
    if lower > upper + exponent_slack(lower, upper):
        settings = f"noise {noise}, {bins} bins, {passes} passes, log κ = {log_baseline}"
        raise ArithmeticError(f"the two sides of a certified bracket crossed: {settings}")
    lower = min(lower, upper)
    return Bracket(
        lower,
        upper,
        float(log_complement(upper)),
        float(log_complement(lower)),
        "random allocation",
        converged=upper - lower <= rtol,
    )


def _refined(
    best: Bracket, noise: float, bins: int, passes: int, log_baseline: float, rtol: float
) -> Bracket:
    """The bracket of finer and finer lattices."""
    cut = math.exp(log_baseline) * rtol / passes
    top, spread = _largest(noise, bins, cut * _SHARE_ABOVE)
    if top >= bins * _MOST_POINTS and passes * _above(noise, top) > _MOSTLY:  # too little noise for any
        return best
    spacing, share = max(_FIRST * spread, top / _FEW_POINTS), _FIRST
    for _ in range(_ROUNDS):
        found, points, off = _on_lattices(
            noise, bins, passes, log_baseline, (spacing, share, top, cut * _SHARE)
        )
        best = best.meets(found)
        width = best.log_upper - best.log_lower
        excess = width / rtol
        left = excess * (points / _MOST_POINTS) ** 1.5  # with as many points as usual
        most = _MOST_POINTS * (1.5 if left > _LOOSE else 1)
        # Finer lattices do not cure rounding.
        if excess <= 1 or 2 * points > most or off > _MUCH * width * math.exp(best.log_upper):
            break
        factor = min(max(math.sqrt(_AIM / excess), _FINEST, points / most), _COARSEST)
        spacing, share = spacing * factor, share * factor
        if left > 1:  # a wider bracket distinguishes fewer large numbers
            before, (top, _) = top, _largest(noise, bins, cut * _SHARE_ABOVE * left)
            spacing *= top / before
    return best


def _above(noise: float, value: float) -> float:
    """The probability with the record that Y is above a value."""
    return float(ndtr(0.5 / noise - noise * math.log(value)))


def _largest(noise: float, bins: int, cut: float) -> tuple[float, float]:
    """The Y beyond which values are not distinguished, and the standard deviation of Y up to there.

    It happens with a probability of at most `cut` without the record, or with it. What is above counts as an infinite
    loss, which raises κ·e^s + E_μ(1 − e^{s−S})₊ by e^s times its mass without the record.
    """
    highest = min(-float(ndtri(cut / bins)), 1 / noise - float(ndtri(cut)))
    top = min(math.exp(min(highest / noise - 0.5 / noise**2, 700.0)), float(bins * _MOST_POINTS))
    highest = noise * math.log(top) + 0.5 / noise
    square = math.exp(min(1 / noise**2, 700.0)) * float(ndtr(highest - 2 / noise)) + top**2 * float(
        ndtr(-highest)
    )
    return top, math.sqrt(max(square - 1, noise**-2 / 4))


@dataclass(frozen=True)
class _Sum:
    """The law of a sum on a lattice, and the total error of its probabilities."""

    law: Law
    off: float

    @classmethod
    def of(cls, parts: Sequence[Part], spacing: float, log_mass: float, off: float) -> _Sum:
        if len(parts) == 1 and parts[0].steps == 1:  # nothing to compose
            (part,) = parts
            law = Law(
                part.masses.probabilities,
                part.start,
                spacing,
                0.0,
                part.masses.log_total,
                0.0,
                0.0,
                0,
                0.0,
                0.0,
            )
            return cls(law, off)
        law = compose(parts, spacing=spacing, tilt=0.0, window=_window(parts, spacing, log_mass))
        folded = law.outside + law.energy_error * math.sqrt(len(law.probabilities))
        return cls(law, folded + off)

    @property
    def masses(self) -> Array:
        return np.maximum(self.law.probabilities, 0.0) * math.exp(self.law.log_total)

    @property
    def places(self) -> Array:
        return self.law.first + self.law.spacing * np.arange(len(self.law.probabilities))


def _on_lattices(
    noise: float, bins: int, passes: int, log_baseline: float, resolution: tuple[float, float, float, float]
) -> tuple[Bracket, int, float]:
    """The bracket from lattices of one spacing, their number of points, and the rounding error."""
    spacing, share, top, cut = resolution
    log_mass = math.log(cut)
    split, null, present, escaped, error = _one_number(noise, spacing, max(math.ceil(top / spacing), 2))
    biased = _part(split * (spacing * np.arange(len(split))), 1)
    off = bins * error
    above = _Sum.of([biased, _part(split, bins - 1)], spacing, log_mass, off)
    absent = _Sum.of([_part(null, bins)], spacing, log_mass, off)
    there = _Sum.of([_part(present, 1), _part(null, bins - 1)], spacing, log_mass, off)

    losses = [_losses(each.places, bins) for each in (above, absent, there)]
    masses = above.masses
    mean = float(masses @ losses[0])
    deviation = math.sqrt(max(float(masses @ (losses[0] - mean) ** 2), 1e-300))
    low = float(losses[0][min(int(np.searchsorted(np.cumsum(masses), cut)), len(masses) - 1)])
    high = max(float(each[-1]) for each in losses)
    step = max(share * deviation, (high - low) / _MOST_POINTS, _LEAST_STEP)
    grid = step * np.arange(math.floor(low / step), math.ceil(high / step) + 2)
    rounds = (
        _connected(masses, losses[0], grid),
        *(_rounded(each.masses, at, grid) for each, at in ((absent, losses[1]), (there, losses[2]))),
    )
    once = (above, absent, there)
    dominating, size, power = (
        _Sum.of([_part(found, passes, float(grid[0]))], step, log_mass, passes * each.off)
        for found, each in zip(rounds, once, strict=True)
    )
    upper = _dominated(dominating, log_baseline, passes * escaped)
    lower = _tested(size, power, log_baseline)
    points = sum(len(each.law.probabilities) for each in (above, dominating))
    return Bracket(lower, upper), points, dominating.off + size.off + power.off


def _losses(sums: Array, bins: int) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.maximum(np.log(np.maximum(sums, 0.0) / bins), -745.0)


def _one_number(noise: float, spacing: float, cells: int) -> tuple[Array, Array, Array, float, float]:
    """Y on its lattice: split so that its mean stays, and rounded, without the record and with it.

    Then the mass with the record that is cut off, and how far the probabilities of one law may be off in all.
    """
    split, null, present = np.zeros((3, cells + 1))
    closed = min(_CLOSED, cells)
    log_spacing = math.log(spacing)
    with np.errstate(divide="ignore"):
        places, middles = (
            noise * (np.log(at) + log_spacing) + 0.5 / noise
            for at in (np.arange(closed + 1), np.arange(closed) + 0.5)
        )
    mass, moment = _between(places), _between(places - 1 / noise) / spacing
    lattice = np.arange(closed + 1.0)
    split[:closed] = np.maximum(lattice[1:] * mass - moment, 0.0)
    split[1 : closed + 1] += np.maximum(moment - lattice[:-1] * mass, 0.0)
    edges = np.concatenate([[-np.inf], middles, places[-1:]])
    null[: closed + 1], present[: closed + 1] = _between(edges), _between(edges - 1 / noise)
    off = float(_tails(places) @ (2 + lattice)) + float(_tails(places - 1 / noise).sum()) * (1 + 1 / spacing)
    error = 2 * FUNCTION * (off + float(_tails(edges).sum() + _tails(edges - 1 / noise).sum()))

    starts = np.arange(closed, cells, dtype=np.float64)  # the density is smooth there, and nothing cancels
    near = noise * (np.log(starts) + log_spacing) + 0.5 / noise
    demands = noise / starts * (2 + np.abs(near) + 1 / noise)
    floor = -math.inf
    for limit, count in TIERS:
        chosen = starts[(demands > floor) & (demands <= limit)]
        floor = limit
        for first in range(0, len(chosen), _CHUNK // count):
            _integrate(
                chosen[first : first + _CHUNK // count], count, (noise, spacing), (split, null, present)
            )
    last = noise * math.log(spacing * cells) + 0.5 / noise
    beyond = float(ndtr(-last))
    split[-1] += beyond  # they count as the largest number, and what that lacks has escaped
    null[-1] += beyond
    present[-1] += float(ndtr(1 / noise - last))
    escaped = max(float(ndtr(1 / noise - last)) - spacing * cells * beyond, 0.0)
    error += max(abs(float(law.sum()) - 1) for law in (split, null, present))
    error += abs(spacing * float(split @ np.arange(cells + 1.0)) + escaped - 1)
    return split, null, present, escaped + FUNCTION, error + 8 * FUNCTION


def _integrate(
    starts: Array, count: int, scale: tuple[float, float], laws: tuple[Array, Array, Array]
) -> None:
    """Add the mass of some cells to the three laws."""
    (noise, spacing), (split, null, present) = scale, laws
    nodes, weights = RULES[count]
    at = starts.astype(np.intp)
    for start in (0.0, 0.5):  # either half
        inside = start + 0.25 * (1 + nodes)
        values = starts[:, None] + inside
        scores = noise * np.log(values * spacing) + 0.5 / noise
        density = np.exp(-0.5 * scores**2) * (0.25 * noise / math.sqrt(2 * math.pi)) / values
        mass = density @ weights
        moved = density @ (weights * inside)
        biased = (density * values) @ weights * spacing
        side = int(start > 0)
        split[at] += mass - moved
        split[at + 1] += moved
        null[at + side] += mass
        present[at + side] += biased


def _between(edges: Array) -> Array:
    """Normal probabilities between consecutive edges, from the shorter tails."""
    below, above = ndtr(edges), ndtr(-edges)
    return np.maximum(np.where(edges[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1]), 0.0)


def _tails(edges: Array) -> Array:
    return np.minimum(ndtr(edges), ndtr(-edges))


def _part(masses: Array, steps: int, start: float = 0.0) -> Part:
    total = float(masses.sum())
    return Part(Masses(masses / total, math.log(total)), start, steps, 8 * UNIT)


def _window(parts: Sequence[Part], spacing: float, log_mass: float) -> Window:
    """The window that holds all but about e^`log_mass` of the sum's mass on either side, by Chernoff's bound."""
    each = [part.moments(spacing) for part in parts]
    mean = math.fsum(m for m, _ in each)
    deviation = math.sqrt(max(math.fsum(v for _, v in each), spacing**2))
    longest = spacing * max(len(part.masses.probabilities) for part in parts)
    normal = math.sqrt(-2 * log_mass) / deviation

    rates = np.array(
        [-normal / 2, -normal, -2 * normal, normal / 4, normal / 2, normal]
        + [count / longest for count in (5, 15, 30, 60)]
    )
    cumulants = sum(
        part.steps * (log_moments(part.masses.probabilities, rates * spacing) + rates * part.start)
        for part in parts
    )
    edges = (cumulants - log_mass) / rates
    lowest, highest = int(edges[:3].argmax()), 3 + int(edges[3:].argmin())
    below, left, above, right = (
        float(x) for x in (edges[lowest], -rates[lowest], edges[highest], rates[highest])
    )
    least = math.fsum(part.steps * part.start for part in parts)
    if below <= least:  # nothing lies below
        return Window(least - spacing, mean, above + spacing, (1000 / spacing, right))
    return Window(below, mean, above + spacing, (left, right))


def _connected(masses: Array, losses: Array, grid: Array) -> Array:
    """Masses with the record split between two losses, so that those without it stay too; below the grid they rise."""
    step = float(grid[1] - grid[0])
    at = np.maximum(losses, grid[0])
    left = np.minimum(((at - grid[0]) / step).astype(np.intp), len(grid) - 2)
    # e^−ε between e^−ε_k and e^−ε_(k+1)
    stay = np.clip(np.expm1(grid[left + 1] - at) / math.expm1(step), 0.0, 1.0)
    count = len(grid)
    parts = ((left, masses * stay), (left + 1, masses * (1 - stay)))
    return sum((np.bincount(at, weights, count).astype(np.float64) for at, weights in parts), np.zeros(count))


def _rounded(masses: Array, losses: Array, grid: Array) -> Array:
    step = float(grid[1] - grid[0])
    nearest = np.clip(np.rint((losses - grid[0]) / step), 0, len(grid) - 1).astype(np.intp)
    return np.bincount(nearest, masses, len(grid)).astype(np.float64)


def _dominated(found: _Sum, log_baseline: float, escaped: float) -> float:
    """κ·e^s + E_μ(1 − e^{s−S})₊ at the best s, with all errors added."""
    law, baseline = found.law, math.exp(log_baseline)
    without = np.cumsum((found.masses * np.exp(np.minimum(-found.places, _LARGEST)))[::-1])[::-1]
    index = int(np.searchsorted(-without, -baseline, side="right")) - 1
    index = min(max(index, 0), len(without) - 1)
    reached = law.above(index, 0.0, hinge=True).high * math.exp(law.log_total)
    kept = math.exp(min(log_baseline + law.loss_at(index), 1.0))  # 1 or more says nothing
    return min(math.log(kept + reached + found.off + escaped) + 64 * UNIT, 0.0)


def _tested(size: _Sum, power: _Sum, log_baseline: float) -> float:
    """The power of the randomised test of level κ that rejects when the loss is large."""
    law, baseline = size.law, math.exp(log_baseline) * (1 - 64 * UNIT) - size.off
    above = np.cumsum(size.masses[::-1])[::-1]
    atom = max(int(np.searchsorted(-above, -baseline, side="right")) - 1, 0)
    while atom < len(above) and law.above(atom + 1, 0.0).high > baseline:
        atom += 1
    if baseline <= 0 or atom >= len(above):
        return -math.inf
    spent, at = law.above(atom + 1, 0.0).high, law.at(atom).high
    share = min((baseline - spent) / at, 1.0)
    other = atom + round((law.first - power.law.first) / law.spacing)
    reached = (
        power.law.above(other + 1, 0.0).low
        + share * power.law.at(min(max(other, 0), len(power.law.probabilities) - 1)).low
    )
    return math.log(left) if (left := reached - power.off) > 0 else -math.inf


def _renyi(noise: float, bins: int, passes: int, log_baseline: float) -> float:
    """An upper bound on log γ that holds for every baseline, from Rényi divergences of integer order.

    By the multinomial theorem E_ν[r^α] = α!/b^α·[z^α](Σ_i z^i/i!·e^{i(i−1)/2σ²})^b, and
    log γ ≤ ((α−1)·log κ + E·log E_ν[r^α])/α for every whole α > 1.
    """
    orders = np.arange(_LARGEST_ORDER + 1.0)
    series = orders * (orders - 1) / (2 * noise**2) - gammaln(orders + 1)  # logarithms of its coefficients
    power = _series_power(series, bins)[2:]
    used = orders[2:]
    log_moments = power + gammaln(used + 1) - used * math.log(bins)
    values = ((used - 1) * log_baseline + passes * log_moments) / used
    best = int(values.argmin())
    slack = exponent_slack(
        log_baseline, passes * float(log_moments[best]), _LARGEST_ORDER * math.log2(bins + 1)
    )
    return min(0.0, float(values[best]) + slack)


def _series_power(series: Array, exponent: int) -> Array:
    """The logarithms of the coefficients of a power of a series, up to the same degree; all are positive."""
    result = np.full_like(series, -np.inf)
    result[0] = 0.0
    while exponent:
        if exponent & 1:
            result = _convolved(result, series)
        exponent >>= 1
        series = _convolved(series, series) if exponent else series
    return result


def _convolved(one: Array, other: Array) -> Array:
    return np.array(
        [np.logaddexp.reduce(one[: degree + 1] + other[: degree + 1][::-1]) for degree in range(len(one))]
    )
