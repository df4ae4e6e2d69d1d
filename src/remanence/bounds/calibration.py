"""The inverse of the bounds: how much noise, how many steps, or what sampling rate keeps γ below a limit.

The returned setting is always on the safe side, and certified separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from scipy.special import ndtri, ndtri_exp

from remanence.bounds.bound import Bound, read_baselines
from remanence.bounds.engine.closed_forms import gaussian_log_delta_ends, shift_of
from remanence.bounds.engine.cumulant import affordable
from remanence.bounds.engine.hockey_stick import chernoff_log_delta, log_delta_ends, log_delta_near
from remanence.bounds.engine.schedule import MOST_STEPS, Segment, is_full_batch, log_never_sampled, normalise
from remanence.bounds.person import Person, read_person
from remanence.bounds.settings import dpsgd
from remanence.core.checks import number
from remanence.core.exceptions import InputError

Setting = Literal["noise_multiplier", "steps", "sample_rate"]

_LEAST_RATE = 1e-9
_RANGES = {"noise_multiplier": (1e-3, 1e6), "steps": (1, MOST_STEPS), "sample_rate": (_LEAST_RATE, 1.0)}
_ATTEMPTS = 100
_FURTHEST = 1.0  # that a secant moves it
_WIDER, _NEAR = 10.0, 1e-3  # how much wider the brackets of a search are, and how near to the limit it ends
_FAR = 1e-2  # of the excess, where γ is so near to 1 that its logarithm hardly moves
_NOISE_WIDTH = 2e-5  # relative, of a certified noise for (ε, δ)
_COARSE, _NEAR_DELTA = 2e-3, 0.01  # of δ: the lattices of a search, and how near to the limit it ends
_ROUGH = 0.05  # of δ if adding the target is not what counts
_ROUNDING = 1e-12  # of log δ
_USUAL_SLOPE = 40.0  # of log δ over −log σ
_RENYI_FACTOR = 4.0  # a logarithm: by how much Rényi divergences usually overstate δ
_NEARLY_ONE, _HARDLY = -1e-16, 1e-9  # a log γ and a share of the shift that a search can tell from none
_LARGEST = 600.0  # an exponent that a float can still take


@dataclass(frozen=True)
class Calibration:
    """Settings of DP-SGD that keep every attack at or below a limit, with the certificate."""

    solved_for: Setting
    noise_multiplier: float
    sample_rate: float
    steps: int
    bound: Bound

    @property
    def segment(self) -> Segment:
        """The run that these settings describe."""
        return Segment(self.noise_multiplier, self.sample_rate, self.steps)


def calibrate(
    max_success: float,
    baseline: float | None = None,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    log_baseline: float | None = None,
    person: Person | None = None,
) -> Calibration:
    """Solve for the one omitted setting so that γ(κ) ≤ max_success, for a record or for a person.

    The smallest noise, the largest number of steps (up to 10^9) or the largest sampling rate.

    >>> found = calibrate(0.3, 0.1, sample_rate=0.02, steps=1000)
    >>> round(found.noise_multiplier, 3), found.bound.success <= 0.3
    (1.055, True)
    """
    given = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps}
    missing: list[Setting] = [name for name in _RANGES if given[name] is None]  # pyright: ignore
    if len(missing) != 1:
        raise InputError(
            "Exactly one setting can be solved for.",
            needs="two of noise_multiplier, sample_rate and steps",
            got=f"{3 - len(missing)} of them",
            hint="leave out the one that you want to know; a full batch has a sampling rate of 1",
        )
    baselines, person = read_baselines(baseline, log_baseline), read_person(person)
    log_kappa = baselines.logs[0]
    number("max_success", max_success, above=0, below=1, hint="0.05")
    if math.log(max_success) <= log_kappa:
        raise InputError(
            "No setting can meet this limit.",
            needs="a limit above the baseline: a guess without the release already succeeds that often",
            got=f"a limit of {max_success:g} and a baseline of {math.exp(log_kappa):g}",
            hint="a longer shortlist, or a higher limit",
        )
    log_limit = math.log(max_success)
    width = min(1e-4, max(0.05 * (log_limit - log_kappa), 1e-9))  # a certificate must resolve the gap
    guessed, limit = (float(ndtri_exp(log)) for log in (log_kappa, log_limit))
    shift = limit - guessed

    def excess(log_success: float) -> float:
        """How far γ is above the limit: log((Φ⁻¹(γ) − Φ⁻¹(κ)) / shift), nearly linear in the setting's logarithm."""
        reached = float(ndtri_exp(min(log_success, _NEARLY_ONE))) - guessed
        return math.log(max(reached / shift, _HARDLY))

    def rough(segment: Segment) -> float:
        (found,) = person.brackets(segment, [log_kappa], rtol=_WIDER * width)
        both = math.isfinite(found.log_lower)  # then the upper side is off by twice as much
        middle = (2 * found.log_lower + found.log_upper) / 3 if both else found.log_upper
        return excess(middle + width / 2)  # a certificate is about as much above

    def certified(segment: Segment, _: float) -> float:
        return excess(person.brackets(segment, [log_kappa], rtol=width)[0].log_upper)

    # For many small steps the shift is about q·√(T·(e^{1/σ²} − 1)).
    run = Segment(*(1 if value is None else value for value in given.values()))
    rate, told = max(run.sample_rate, _LEAST_RATE), math.expm1(min(run.noise_multiplier**-2, _LARGEST))
    square = math.log1p((shift / rate) ** 2 / run.steps)  # 1/σ²
    guess, slope = {
        "noise_multiplier": (square**-0.5, square / -math.expm1(-square)),
        "steps": ((shift / rate) ** 2 / told, 0.5),
        "sample_rate": (shift / math.sqrt(run.steps * told), 1.0),
    }[missing[0]]
    line = _Line(run, missing[0], 1 if noise_multiplier is None else -1)
    # At the limit, the excess rises this much faster than log γ.
    scale = math.exp(log_limit + 0.5 * limit**2) * math.sqrt(2 * math.pi) / shift
    near, within = (min(scale * size, _FAR) for size in (min(_NEAR, 10 * width), width))
    segment = _least_safe(line, rough, certified, guess, slope=slope, near=near, within=lambda _: within)
    bound = dpsgd(log_baseline=log_kappa, schedule=[segment], person=person, rtol=width)
    return Calibration(missing[0], segment.noise_multiplier, segment.sample_rate, segment.steps, bound)


def noise_for_epsilon(
    epsilon: float,
    *,
    delta: float,
    sample_rate: float = 1.0,
    steps: int = 1,
    enough: bool = True,
    guess: float | None = None,
) -> float:
    """The smallest noise multiplier for which DP-SGD is certified (ε, δ)-differentially private.

    With `enough=False`, a certified *lower* bound on the smallest one: γ decreases with the noise, so γ at
    that noise is a ceiling for every training that is (ε, δ)-differentially private with these settings. The two
    are about 1e-4 apart.

    A good `guess`, such as the answer for similar settings, saves time and changes the answer within its tolerance.

    >>> round(noise_for_epsilon(4.0, delta=1e-5, sample_rate=0.02, steps=1000), 4)
    0.9874
    """
    number("epsilon", epsilon, above=0, hint="epsilon=8")
    number("delta", delta, above=0, below=1, hint="delta=1e-5")
    shape, log_delta = Segment(1.0, sample_rate, steps), math.log(delta)
    if -math.expm1(log_never_sampled((shape,))) < delta:
        return _RANGES["noise_multiplier"][0]  # sampled so rarely that no noise is needed

    def rough(segment: Segment) -> float:
        """How far log δ is above the limit, or with less noise below it."""
        segments = normalise(segment)
        if is_full_batch(segments):
            found = gaussian_log_delta_ends(epsilon, shift=shift_of(segments))[1]
        else:
            found = log_delta_near(segments, epsilon, log_delta, removing=True, rtol=_COARSE) - 1.5 * _COARSE
        return found - log_delta if enough else log_delta - found

    def certified(segment: Segment, slope: float) -> float:
        segments = normalise(segment)
        if is_full_batch(segments):
            low, high = gaussian_log_delta_ends(epsilon, shift=shift_of(segments))
            return (high - log_delta if enough else log_delta - low) + _ROUNDING
        rtol = min(max(_NOISE_WIDTH * slope, 1e-4), 5e-3)
        if not enough:
            return log_delta - log_delta_ends(segments, epsilon, rtol=rtol)[0] + _ROUNDING
        over = log_delta_near(segments, epsilon, log_delta, removing=True, rtol=rtol)
        for width in (_ROUGH, rtol):  # the other direction usually needs far less noise
            if over <= log_delta - _ROUNDING:
                other = log_delta_near(segments, epsilon, log_delta, removing=False, rtol=width)
                if other <= log_delta - _ROUNDING:
                    break
                over = max(over, other) if width == rtol else over
        return over - log_delta + _ROUNDING

    def within(slope: float) -> float:
        return (0.1 if shape.sample_rate == 1 else 4 if enough else 1) * _NOISE_WIDTH * slope  # 1: a formula

    line = _Line(shape, "noise_multiplier", 1 if enough else -1)
    if guess is None:
        guess = _renyi_noise(shape, epsilon, log_delta)
    number("guess", guess, above=0, hint="the noise of similar settings")
    return _least_safe(
        line, rough, certified, guess, slope=_USUAL_SLOPE, near=_NEAR_DELTA, within=within
    ).noise_multiplier


def _renyi_noise(shape: Segment, epsilon: float, log_delta: float) -> float:
    """About the noise that (ε, δ) needs, from Rényi divergences, which are off by about a constant factor in δ."""
    if shape.sample_rate == 1:  # δ is about the normal tail beyond ε/μ − μ/2, with μ = √T/σ
        tail = max(-float(ndtri(math.exp(log_delta))), 0.0)
        return math.sqrt(shape.steps) / (math.sqrt(tail**2 + 2 * epsilon) - tail)

    @cache
    def excess(log: float) -> float:
        run = (replace(shape, noise_multiplier=math.exp(log)),)
        if not affordable(run, 2.0):
            return math.inf
        return chernoff_log_delta(run, epsilon, removing=True) - _RENYI_FACTOR - log_delta

    low = high = math.log(max(shape.sample_rate * math.sqrt(2 * shape.steps * -log_delta) / epsilon, 0.3))
    smallest, largest = map(math.log, _RANGES["noise_multiplier"])
    while excess(low) <= 0 and low > smallest:
        low, high = max(low - 0.5, smallest), low
    while excess(high) > 0 and high < largest:
        low, high = high, min(high + 0.5, largest)
    for _ in range(5):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return math.exp(high)


@dataclass(frozen=True)
class _Line:
    """Runs that differ in one setting, by its logarithm times a sign: the larger, the safer."""

    run: Segment
    setting: Setting
    sign: int

    @property
    def ends(self) -> tuple[float, float]:
        first, last = sorted(self.place(end) for end in _RANGES[self.setting])
        return first, last

    def place(self, value: float) -> float:
        return self.sign * math.log(value)

    def at(self, place: float) -> Segment:
        value = min(math.exp(self.sign * place), _RANGES[self.setting][1])
        if self.setting == "steps":
            value = max(1, math.floor(value * (1 + 1e-12)))
        return replace(self.run, **{self.setting: value})


def _least_safe(
    line: _Line,
    rough: Callable[[Segment], float],
    certified: Callable[[Segment, float], float],
    guess: float,
    *,
    slope: float,
    near: float,
    within: Callable[[float], float],
) -> Segment:
    """The least safe run whose certificate is at most 0, and not far below: found by the rough function first.

    Both functions fall along the line by about `slope`, and `within` says how far below, given the slope.
    """
    lowest, highest = line.ends
    start = min(max(line.place(guess), lowest), highest)
    place, value, slope = _secants(lambda x: rough(line.at(x)), start, slope, line.ends, (-near, near))
    window = within(slope)
    ahead = min(max((value + window / 2) / slope, -_FURTHEST), _FURTHEST)
    start = min(max(place + ahead, lowest), highest)
    place, value, _ = _secants(
        lambda x: certified(line.at(x), slope), start, slope, line.ends, (-window, 0.0)
    )
    if not (value <= 0 and math.isfinite(place)):
        least, most = _RANGES[line.setting]
        raise InputError(
            f"No value of {line.setting} meets the limit.",
            needs=f"a limit that one from {least:g} to {most:g} is certain to meet",
            got="a limit that not even the safest of them is certain to meet",
            hint="a higher limit, more noise, fewer steps or a lower sampling rate",
        )
    return line.at(place)


def _secants(
    function: Callable[[float], float],
    place: float,
    slope: float,
    ends: tuple[float, float],
    wanted: tuple[float, float],
) -> tuple[float, float, float]:
    """Where a function that falls by about `slope` is in the wanted range: the place, the value and the slope.

    If it jumps over that range or never enters it, the nearest place where it is below, or else the last of all.
    The slope is measured where values differ by much more than that range, and so by more than their errors.
    """
    lowest, highest = ends
    refused, allowed, kept = -math.inf, math.inf, -math.inf
    move, before = 0.0, math.inf
    for _ in range(_ATTEMPTS):
        value = function(place)
        if value > 0:
            refused = place
        else:
            allowed, kept = place, value
        if wanted[0] <= value <= wanted[1] or place == (highest if value > 0 else lowest):
            return place, value, slope
        if allowed - refused <= (wanted[1] - wanted[0]) / slope:  # it jumps over the range
            break
        fallen = before - value
        if move and math.isfinite(fallen) and abs(fallen) > 2 * (wanted[1] - wanted[0]):
            slope = min(max(fallen / move, slope / 4), 4 * slope)  # values have errors: no more at once
        creeping = value * before > 0 and 2 * abs(value) > abs(before)  # still far, on the same side
        aimed = min(max((value - sum(wanted) / 2) / slope, -_FURTHEST), _FURTHEST)
        target = place + (2 * move if creeping else aimed)
        if not refused < target < allowed:  # bisect or, with no end on one side yet, go on
            middle = (refused + allowed) / 2
            target = middle if math.isfinite(middle) else place + aimed
        target = min(max(target, lowest), highest)
        move, before, place = target - place, value, target
    return allowed, kept, slope
