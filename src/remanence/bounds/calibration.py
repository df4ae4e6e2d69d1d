"""The inverse of the bounds: how much noise, how many steps, or what sampling rate keeps γ below a limit.

The returned setting is always on the safe side, and certified separately.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from scipy.special import ndtri

from remanence.bounds.bound import Bound, read_baselines
from remanence.bounds.engine.contour import estimate_log_delta, estimate_success
from remanence.bounds.engine.cumulant import affordable
from remanence.bounds.engine.dpsgd import delta_lower, delta_upper
from remanence.bounds.engine.hockey_stick import chernoff_log_delta, log_delta_near
from remanence.bounds.engine.roots import root
from remanence.bounds.engine.schedule import MOST_STEPS, Segment, is_full_batch, log_never_sampled, normalise
from remanence.bounds.person import Person, read_person
from remanence.bounds.settings import dpsgd
from remanence.core.checks import number
from remanence.core.exceptions import InputError

_LEAST_RATE = 1e-9
_NOISE_RANGE = (1e-3, 1e6)
_PRECISION = 1e-6  # of the search; the certificate then decides
_WIDTH = 5e-5  # of a certificate, roughly
_ATTEMPTS = 30
_NUDGE = 1e-3  # over which a slope is measured
_NOISE_WIDTH = 2e-5  # relative, of a certified noise for (ε, δ)
_COARSE = 1e-3  # of δ if there is no other estimate
_ROUGH = 0.05  # of δ, to begin with
_ROUNDING = 1e-12  # of log δ
_DECIDED = 1e-5  # of the search, if a certificate decides afterwards
_USUAL_SLOPE, _SECANTS, _NEAR = -40.0, 4, 0.1  # of log δ over log σ; in looking for a first guess
_RENYI_FACTOR = 4.0  # a logarithm: by how much Rényi divergences usually overstate δ


@dataclass(frozen=True)
class Calibration:
    """Settings of DP-SGD that keep every attack at or below a limit, with the certificate."""

    solved_for: Literal["noise_multiplier", "steps", "sample_rate"]
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
    missing = [name for name, value in given.items() if value is None]
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

    def excess(segment: Segment) -> float:
        """Positive if the estimate exceeds the limit."""
        if person.is_plain:
            found = estimate_success(person.schedules(segment)[0], log_kappa)
            if found.converged:
                return found.log_success - log_limit
        return person.brackets(segment, [log_kappa], rtol=10 * width)[0].log_upper - log_limit

    def certified(segment: Segment, _: float = 0.0) -> float:
        """The same for the certified ceiling."""
        return person.brackets(segment, [log_kappa], rtol=width)[0].log_upper - log_limit

    if noise_multiplier is None:
        shape = Segment(1.0, sample_rate, steps)  # pyright: ignore
        sample_rate, steps = shape.sample_rate, shape.steps
        distance = float(ndtri(max_success) - ndtri(math.exp(log_kappa))) if log_kappa > -700 else 1.0
        guess = 1 / math.sqrt(math.log1p((distance / (sample_rate * math.sqrt(steps))) ** 2))
        segment = _least_noise(lambda noise: replace(shape, noise_multiplier=noise), excess, certified, guess)
    elif steps is None:
        segment = _most_steps(Segment(noise_multiplier, sample_rate), excess, certified)  # pyright: ignore
    else:
        segment = _largest_rate(Segment(noise_multiplier, 1.0, steps), excess, certified)
    bound = dpsgd(log_baseline=log_kappa, schedule=[segment], person=person, rtol=width)
    return Calibration(missing[0], segment.noise_multiplier, segment.sample_rate, segment.steps, bound)  # pyright: ignore


def noise_for_epsilon(
    epsilon: float,
    *,
    delta: float,
    sample_rate: float = 1.0,
    steps: int = 1,
    enough: bool = True,
    guess: float | None = None,
    certify: bool = True,
) -> float:
    """The smallest noise multiplier for which DP-SGD is certified (ε, δ)-differentially private.

    With `enough=False`, a certified *lower* bound on the smallest one: γ decreases with the noise, so γ at
    that noise is a ceiling for every training that is (ε, δ)-differentially private with these settings. The two
    are about 1e-4 apart.

    A good `guess`, such as the answer for similar settings, saves time and changes nothing else.
    Without `certify` the answer is the estimate for removing a record, the larger of the two in all cases
    seen: within about 1e-6 on either side, or 5e-5 above where the estimate does not converge.

    >>> round(noise_for_epsilon(4.0, delta=1e-5, sample_rate=0.02, steps=1000), 4)
    0.9874
    """
    number("epsilon", epsilon, above=0, hint="epsilon=8")
    number("delta", delta, above=0, below=1, hint="delta=1e-5")
    shape, log_delta = Segment(1.0, sample_rate, steps), math.log(delta)
    if -math.expm1(log_never_sampled((shape,))) < delta:
        return _NOISE_RANGE[0]  # sampled so rarely that no noise is needed

    @cache
    def excess(segment: Segment) -> float:
        segments = normalise(segment)
        estimate, converged = estimate_log_delta(segments, epsilon)
        if not converged:
            estimate = log_delta_near(segments, epsilon, log_delta, removing=True, rtol=_COARSE)
        return estimate - log_delta

    def certified(segment: Segment, slope: float) -> float:
        if not enough:
            needed = delta_lower(segment, epsilon)
            return log_delta - math.log(needed) if needed > 0 else math.inf
        segments = normalise(segment)
        if is_full_batch(segments):
            return math.log(delta_upper(segment, epsilon)) - log_delta
        rtol = min(max(_NOISE_WIDTH * slope, 1e-4), 5e-3)
        over = log_delta_near(segments, epsilon, log_delta, removing=True, rtol=rtol)
        for width in (_ROUGH, rtol):  # the other direction usually needs far less noise
            if over <= log_delta - _ROUNDING:
                other = log_delta_near(segments, epsilon, log_delta, removing=False, rtol=width)
                if other <= log_delta - _ROUNDING:
                    break
                over = max(over, other) if width == rtol else over
        return over - log_delta + _ROUNDING

    return _least_noise(
        lambda noise: replace(shape, noise_multiplier=noise),
        excess,
        certified if certify else None,
        guess or _nearer(excess, shape, _renyi_noise(shape, epsilon, log_delta)),
        step=0.02 if guess else 0.005,
        nudge=_NUDGE if enough else -_NUDGE,
        precision=_DECIDED if certify else _PRECISION,
    ).noise_multiplier


def _nearer(excess: Callable[[Segment], float], shape: Segment, guess: float) -> float:
    """A better guess, by a few secants of log δ over log σ."""
    log, slope = math.log(guess), _USUAL_SLOPE
    value = excess(replace(shape, noise_multiplier=guess))
    for _ in range(_SECANTS):
        move = min(max(-value / slope, -0.5), 0.5)
        if abs(value) < _NEAR or not math.isfinite(value):
            break
        before, value = value, excess(replace(shape, noise_multiplier=math.exp(log + move)))
        log += move
        slope = min((value - before) / move, -1.0)
    return math.exp(log)


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
    smallest, largest = (math.log(end) for end in _NOISE_RANGE)
    while excess(low) <= 0 and low > smallest:
        low, high = max(low - 0.5, smallest), low
    while excess(high) > 0 and high < largest:
        low, high = high, min(high + 0.5, largest)
    for _ in range(5):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return math.exp(high)


def _least_noise(
    at: Callable[[float], Segment],
    excess: Callable[[Segment], float],
    certified: Callable[..., float] | None,
    guess: float,
    step: float = 0.2,
    nudge: float = _NUDGE,
    precision: float = _PRECISION,
) -> Segment:
    """Search in log σ, then step up, or down, until the certificate holds."""

    def run(log: float) -> Segment:
        return at(math.exp(log))

    @cache
    def value(log: float) -> float:
        return excess(run(log))

    smallest, largest = (math.log(end) for end in _NOISE_RANGE)
    low = high = min(max(math.log(guess), smallest), largest)
    while value(low) <= 0 and low > smallest:
        low, high, step = max(low - step, smallest), low, 2 * step
    while value(high) > 0 and high < largest:
        low, high, step = high, min(high + step, largest), 2 * step
    if value(high) > 0:
        raise InputError(
            "No noise within range meets the limit.",
            needs=f"a limit that a noise multiplier of at most {_NOISE_RANGE[1]:g} can meet",
            got="a limit too close to what a guess achieves",
            hint="a higher limit, fewer steps or a lower sampling rate",
        )
    if value(low) <= 0:
        return run(low)  # the smallest noise considered is enough
    found = root(value, low, high, precision=precision)
    return run(found if certified is None else _until_certain(run, value, certified, found, nudge))


def _until_certain(
    at: Callable[[float], Segment],
    value: Callable[[float], float],
    certified: Callable[..., float],
    start: float,
    nudge: float,
) -> float:
    """Step from the estimate's root to a setting that is certified, by the slope of the estimate."""
    slope = abs(value(start + nudge) - value(start)) / abs(nudge)
    over = max(_WIDTH, _NOISE_WIDTH * slope)  # the usual excess of a certificate over the estimate
    for attempt in range(_ATTEMPTS):
        step = 1.2 * over / slope if slope else 0.0
        start += math.copysign(min(max(step, _PRECISION * 2**attempt), 0.5), nudge)
        over = certified(at(start), slope)
        if over <= 0:
            return start
    raise InputError(
        "The answer cannot be certified.",
        needs="a limit further above the baseline",
        got="certificates that stay above the limit",
        hint="a higher limit",
    )


def _most_steps(
    shape: Segment, excess: Callable[[Segment], float], certified: Callable[..., float]
) -> Segment:
    if certified(shape) > 0:
        raise InputError(
            "Not even one step meets the limit.",
            needs="more noise, a lower sampling rate or a higher limit",
            got=f"noise multiplier {shape.noise_multiplier:g} at sampling rate {shape.sample_rate:g}",
            hint="leave out the noise instead of the steps, and solve for it",
        )
    low, high = 1, 2  # the limit holds at `low`
    while high < MOST_STEPS and excess(replace(shape, steps=high)) <= 0:
        low, high = high, min(2 * high, MOST_STEPS)
    if high == MOST_STEPS and certified(replace(shape, steps=MOST_STEPS)) <= 0:
        return replace(shape, steps=MOST_STEPS)
    low += bisect_left(range(low + 1, high), True, key=lambda steps: excess(replace(shape, steps=steps)) > 0)
    back = 1
    while certified(replace(shape, steps=low)) > 0:  # one step meets the limit, so this ends
        low, back = max(1, low - back), 2 * back
    return replace(shape, steps=low)


def _largest_rate(
    shape: Segment, excess: Callable[[Segment], float], certified: Callable[..., float]
) -> Segment:
    if certified(shape) <= 0:
        return shape
    low = 0.5
    while low > _LEAST_RATE and excess(replace(shape, sample_rate=low)) > 0:
        low /= 4
    if low <= _LEAST_RATE:
        raise InputError(
            "No sampling rate within range meets the limit.",
            needs=f"a limit that a sampling rate of at least {_LEAST_RATE:g} can meet",
            got=f"noise multiplier {shape.noise_multiplier:g} over {shape.steps} steps",
            hint="more noise, fewer steps or a higher limit",
        )

    def at(log: float) -> Segment:
        return replace(shape, sample_rate=min(1.0, math.exp(log)))

    def value(log: float) -> float:
        return excess(at(log))

    top = math.log(min(1.0, 4 * low))
    if value(top) > 0:
        top = root(value, math.log(low), top, precision=_PRECISION)
    return at(_until_certain(at, value, certified, top, -_NUDGE))
