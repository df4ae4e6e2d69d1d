"""Certified brackets of γ, and (ε, δ), from DP-SGD's settings alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from remanence.bounds.engine import hockey_stick
from remanence.bounds.engine.bracket import Bracket
from remanence.bounds.engine.closed_forms import (
    gaussian_log_delta_ends,
    gaussian_success,
    log_complement,
    shift_of,
    single_step_success,
    success_slack,
)
from remanence.bounds.engine.cumulant import affordable
from remanence.bounds.engine.lattice import certain_ends, lattice_bracket, lattice_brackets
from remanence.bounds.engine.roots import root
from remanence.bounds.engine.rounding import UNIT, exponent_slack, rounded_up
from remanence.bounds.engine.schedule import (
    Schedule,
    Segment,
    is_full_batch,
    log_never_sampled,
    log_sampled,
    normalise,
    total_steps,
)
from remanence.core.checks import number

_MIXTURE_SLACK = 1e-13  # many times the measured error of a sum of a few normal tails
_REVEALING_NOISE = 3e-3  # below it a lattice of losses takes minutes
_ATOMIC_NOISE = 0.15  # below it one step reveals with certainty whether it used the target


def dpsgd_bracket(
    schedule: Segment | Sequence[Segment], log_baseline: float, *, rtol: float = 1e-4
) -> Bracket:
    """The reconstruction success no attack on DP-SGD can exceed, certified from both sides.

    γ = sup{μ(E): ν(E) ≤ κ} with ν the transcript's law without the target and μ with it
    (Hayes et al. 2023, Theorem 2 and Corollary 4).

    >>> run = Segment(0.987386, sample_rate=0.02, steps=1000)
    >>> bracket = dpsgd_bracket(run, math.log(0.1))
    >>> round(math.exp(bracket.log_upper), 4), bracket.method, bracket.converged
    (0.3274, 'lattice', True)
    """
    number("rtol", rtol, least=1e-9, below=1, hint="1e-4")
    return _bracket(normalise(schedule), log_baseline, rtol)


@lru_cache(maxsize=256)  # calibration and reports ask for the same bracket again
def _bracket(segments: Schedule, log_baseline: float, rtol: float) -> Bracket:
    exact = _closed_form(segments, log_baseline)
    if exact is not None:
        return exact
    atomic = _atomic(segments, log_baseline)
    if atomic is not None and (atomic.excess(rtol) <= 1 or not affordable(segments, 1.0)):
        return _assemble(segments, log_baseline, atomic, "whether it was sampled", rtol)
    ends, pair = lattice_bracket(segments, log_baseline, rtol=rtol)
    method = "lattice" if pair.order in (0.0, 1.0) else "tilted lattice"
    return _assemble(segments, log_baseline, ends if atomic is None else ends.meets(atomic), method, rtol)


def dpsgd_brackets(
    schedule: Segment | Sequence[Segment], log_baselines: Sequence[float], *, rtol: float = 1e-4
) -> list[Bracket]:
    """The brackets of many baselines of one run, for much less than one lattice each.

    >>> run = Segment(0.987386, sample_rate=0.02, steps=1000)
    >>> [round(math.exp(b.log_upper), 3) for b in dpsgd_brackets(run, [math.log(0.01), math.log(0.1)])]
    [0.071, 0.327]
    """
    segments = normalise(schedule)
    number("rtol", rtol, least=1e-9, below=1, hint="1e-4")
    if len(log_baselines) == 1 or min(segment.noise_multiplier for segment in segments) < _ATOMIC_NOISE:
        return [_bracket(segments, float(log_baseline), rtol) for log_baseline in log_baselines]
    exact = [_closed_form(segments, log_baseline) for log_baseline in log_baselines]
    left = [index for index, found in enumerate(exact) if found is None]
    found = lattice_brackets(segments, [log_baselines[index] for index in left], rtol=rtol)
    results = dict(zip(left, found, strict=True))
    return [
        bracket or _assemble(segments, log_baselines[index], results[index], "lattice", rtol)
        for index, bracket in enumerate(exact)
    ]


def _closed_form(segments: Schedule, log_baseline: float) -> Bracket | None:
    if log_baseline == 0:
        return Bracket(0.0, 0.0, -math.inf, -math.inf, "closed form")
    if is_full_batch(segments):
        shift = shift_of(segments)
        found = gaussian_success(log_baseline, shift=shift)
    elif total_steps(segments) == 1:
        shift = segments[0].records / segments[0].noise_multiplier  # of no part is it larger
        found = single_step_success(log_baseline, segment=segments[0])
    else:
        return None
    estimate, complement = (min(float(log), 0.0) for log in found)
    slack, other = success_slack(log_baseline, shift=shift)
    if total_steps(segments) == 1 and not is_full_batch(segments):
        # A mean is off by no more than its worst part; the parts with smaller shifts are better conditioned.
        slack = other = max(slack, other, _MIXTURE_SLACK * (1 + abs(log_baseline)))
    return Bracket(
        max(estimate - slack, log_baseline),
        max(min(estimate + slack, 0.0), log_baseline),
        complement - other,
        min(complement + other, 0.0),
        "closed form",
    )


def _atomic(segments: Schedule, log_baseline: float) -> Bracket | None:
    """With so little noise the only secret is whether the target was ever sampled; None for more noise.

    It was not with probability a = Π (1 − q)^(k·T), and then the transcript is as without it: γ ≤ a·κ + 1 − a.
    The test that looks for any step above one half meets this up to T·Φ(−1/2σ) false alarms and
    Φ(−1/2σ) misses, and spends the rest of κ at random.
    """
    if min(segment.noise_multiplier for segment in segments) >= _ATOMIC_NOISE:
        return None
    slip = float(log_ndtr(-0.5 / max(segment.noise_multiplier for segment in segments)))
    false_alarms = math.log(total_steps(segments)) + slip
    ends = certain_ends(segments, log_baseline)
    if false_alarms >= log_baseline:
        return ends
    absent = log_never_sampled(segments)
    rest = log_baseline + float(log_complement(false_alarms - log_baseline))
    lower = float(np.logaddexp(absent + rest, log_complement(absent) + log_complement(slip)))
    lower -= exponent_slack(lower, absent, log_baseline)
    missed = float(np.logaddexp(absent + log_complement(rest), log_complement(absent) + slip))
    missed += exponent_slack(missed, absent, log_baseline)
    return ends.meets(Bracket(lower, 0.0, -math.inf, min(missed, 0.0)))


def _assemble(segments: Schedule, log_baseline: float, ends: Bracket, method: str, rtol: float) -> Bracket:
    """The bracket within the limits of any: κ ≤ γ ≤ 1."""
    lower, upper = max(ends.log_lower, log_baseline), max(min(ends.log_upper, 0.0), log_baseline)
    if lower > upper + exponent_slack(lower, upper):
        raise ArithmeticError(
            f"the two sides of a certified bracket crossed: {segments}, log κ = {log_baseline}"
        )
    return Bracket(
        min(lower, upper),
        upper,
        min(ends.log_complement_lower, ends.log_complement_upper),
        ends.log_complement_upper,
        method,
        converged=ends.excess(rtol) <= 1,
    )


def delta_upper(schedule: Segment | Sequence[Segment], epsilon: float) -> float:
    """A certified δ for which the run is (ε, δ)-differentially private, adding or removing the target.

    >>> round(delta_upper(Segment(0.987386, sample_rate=0.02, steps=1000), 4.0) * 1e5, 3)
    1.0
    """
    segments = normalise(schedule)
    number("epsilon", epsilon, least=0, hint="8")
    if is_full_batch(segments) or _reveals(segments):
        log_delta = gaussian_log_delta_ends(epsilon, shift=shift_of(_sampling_told(segments)))[1]
        log_delta = min(log_delta, log_sampled(segments))
    else:
        log_delta = hockey_stick.log_delta_upper(segments, epsilon)
    return rounded_up(math.exp(log_delta))


def delta_lower(schedule: Segment | Sequence[Segment], epsilon: float) -> float:
    """A certified δ that the run needs at this ε: with a smaller one it is not (ε, δ)-differentially private.

    >>> round(delta_lower(Segment(0.987386, sample_rate=0.02, steps=1000), 4.0) * 1e5, 3)
    1.0
    """
    segments = normalise(schedule)
    number("epsilon", epsilon, least=0, hint="8")
    if is_full_batch(segments):
        log_delta = gaussian_log_delta_ends(epsilon, shift=shift_of(segments))[0]
    elif not _reveals(segments):
        log_delta = hockey_stick.log_delta_ends(segments, epsilon, rtol=5e-5)[0]
    else:
        return 0.0
    return max(math.nextafter(math.exp(log_delta) * (1 - 4 * UNIT), -1.0), 0.0)


def epsilon_upper(schedule: Segment | Sequence[Segment], delta: float) -> float:
    """A certified ε for which the run is (ε, δ)-differentially private, adding or removing the target.

    >>> round(epsilon_upper(Segment(0.987386, sample_rate=0.02, steps=1000), 1e-5), 3)
    4.0
    """
    segments = normalise(schedule)
    number("delta", delta, above=0, below=1, hint="1e-5")
    log_delta = math.log(delta) - exponent_slack(math.log(delta))
    if is_full_batch(segments) or _reveals(segments):
        return _gaussian_epsilon(shift_of(_sampling_told(segments)), log_delta)
    return hockey_stick.epsilon_upper(segments, log_delta)


def _reveals(segments: Schedule) -> bool:
    """Whether there is so little noise that every step says what it sampled, and no lattice can hold its loss."""
    return min(segment.noise_multiplier for segment in segments) < _REVEALING_NOISE


def _sampling_told(segments: Schedule) -> Schedule:
    """Full batches, which dominate the run: each step says what it samples, and samples all."""
    return normalise([replace(segment, sample_rate=1.0) for segment in segments])


def _gaussian_epsilon(shift: float, log_delta: float) -> float:
    def excess(epsilon: float) -> float:
        return gaussian_log_delta_ends(epsilon, shift=shift)[1] - log_delta

    if excess(0.0) <= 0:
        return 0.0
    most = shift**2 / 2 + shift * math.sqrt(-2 * log_delta) + 1e-12  # P(S > ε) alone is below δ there
    found = root(excess, 0.0, most, precision=1e-300)
    while excess(found) > 0:
        found *= 1 + 1e-14
    return found
