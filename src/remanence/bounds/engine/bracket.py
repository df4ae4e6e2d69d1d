"""What DP-SGD's settings alone say about reconstruction: certified brackets of γ, and (ε, δ)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from remanence.bounds.bound import require
from remanence.bounds.engine.closed_forms import (
    gaussian_log_delta_ends,
    gaussian_success,
    log_complement,
    shift_of,
    single_step_success,
)
from remanence.bounds.engine.contour import estimate_success
from remanence.bounds.engine.hockey_stick import (
    epsilon_upper_both_ways,
    log_delta_lower,
    log_delta_upper_both_ways,
)
from remanence.bounds.engine.lattice import Ends, lattice_bracket, lattice_brackets
from remanence.bounds.engine.roots import root
from remanence.bounds.engine.rounding import UNIT, exponent_slack, rounded_up
from remanence.bounds.engine.schedule import Schedule, Segment, is_full_batch, normalise, total_steps

_CLOSED_FORM_SLACK = (
    1e-13  # relative, in γ and in log γ: many times what scipy's log_ndtr was measured to be off
)


_ATOMIC_NOISE = 0.15


@dataclass(frozen=True)
class Bracket:
    """The success γ that the settings allow at one baseline κ, from both sides, in logarithms.

    `log_upper` is the bound to report: no attack exceeds it. `log_lower` is the success of a test
    that exists, so the bound cannot be improved by more than the difference. `converged` says
    that the bracket is as narrow as asked for and the independent estimate lies inside it.
    """

    log_lower: float
    log_upper: float
    log_estimate: float
    log_complement_lower: float
    log_complement_upper: float
    method: str
    converged: bool


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
    _check(log_baseline, rtol)
    return _bracket(normalise(schedule), log_baseline, rtol)


@lru_cache(maxsize=256)  # calibration and reports ask for the same bracket again
def _bracket(segments: Schedule, log_baseline: float, rtol: float) -> Bracket:
    exact = _closed_form(segments, log_baseline)
    if exact is not None:
        return exact
    atomic = _atomic(segments, log_baseline, rtol)
    if atomic is not None and atomic.converged:
        return atomic
    ends, pair, narrow = lattice_bracket(segments, log_baseline, rtol=rtol)
    method = "lattice" if pair.order in (0.0, 1.0) else "tilted lattice"
    found = _assemble(segments, log_baseline, ends, method, narrow=narrow)
    return found if found.converged or atomic is None else _tighter(found, atomic, rtol)


def dpsgd_brackets(
    schedule: Segment | Sequence[Segment], log_baselines: Sequence[float], *, rtol: float = 1e-4
) -> list[Bracket]:
    """The brackets of many baselines of one run, for much less than one lattice each.

    >>> run = Segment(0.987386, sample_rate=0.02, steps=1000)
    >>> [round(math.exp(b.log_upper), 3) for b in dpsgd_brackets(run, [math.log(0.01), math.log(0.1)])]
    [0.071, 0.327]
    """
    segments = normalise(schedule)
    for log_baseline in log_baselines:
        _check(log_baseline, rtol)
    exact = [_closed_form(segments, log_baseline) for log_baseline in log_baselines]
    open_ones = [index for index, found in enumerate(exact) if found is None]
    if min(segment.noise_multiplier for segment in segments) < _ATOMIC_NOISE:
        return [_bracket(segments, float(log_baseline), rtol) for log_baseline in log_baselines]
    found = lattice_brackets(segments, [log_baselines[index] for index in open_ones], rtol=rtol)
    results = dict(zip(open_ones, found, strict=True))
    return [
        bracket
        or _assemble(segments, log_baselines[index], results[index][0], "lattice", narrow=results[index][1])
        for index, bracket in enumerate(exact)
    ]


def _check(log_baseline: float, rtol: float) -> None:
    finite = -math.inf < log_baseline <= 0
    require(log_baseline, "log_baseline", "a finite number of at most 0", finite, "math.log(0.1)")
    require(rtol, "rtol", "at least 1e-9 and below 1", 1e-9 <= rtol < 1, "1e-4")


def _closed_form(segments: Schedule, log_baseline: float) -> Bracket | None:
    if log_baseline == 0:
        return Bracket(0.0, 0.0, 0.0, -math.inf, -math.inf, "closed form", converged=True)
    if is_full_batch(segments):
        log_success, complement = gaussian_success(log_baseline, shift=shift_of(segments))
    elif total_steps(segments) == 1:
        log_success, complement = single_step_success(log_baseline, segment=segments[0])
    else:
        return None
    estimate, complement = min(float(log_success), 0.0), min(float(complement), 0.0)
    slack = _CLOSED_FORM_SLACK
    lower, upper = _widened(estimate, slack)
    complement_lower, complement_upper = _widened(complement, slack)
    return Bracket(
        max(lower, log_baseline),
        max(upper, log_baseline),
        max(estimate, log_baseline),
        complement_lower,
        complement_upper,
        "closed form",
        converged=True,
    )


def _tighter(one: Bracket, other: Bracket, rtol: float) -> Bracket:
    """What two valid brackets prove together."""
    lower, upper = max(one.log_lower, other.log_lower), min(one.log_upper, other.log_upper)
    return Bracket(
        min(lower, upper),
        upper,
        min(max(one.log_estimate, lower), upper),
        max(one.log_complement_lower, other.log_complement_lower),
        min(one.log_complement_upper, other.log_complement_upper),
        one.method,
        converged=upper - lower <= rtol,
    )


def _atomic(segments: Schedule, log_baseline: float, rtol: float) -> Bracket | None:
    """So little noise that the only secret is whether the target was ever sampled.

    It was not with probability a = Π (1 − q)^T, and then the transcript is as without it: γ ≤ a·κ + 1 − a.
    The test that looks for any step above one half meets this up to T·Φ(−1/2σ) false alarms and
    Φ(−1/2σ) misses. None where the noise is too large for this to say much.
    """
    if min(segment.noise_multiplier for segment in segments) >= _ATOMIC_NOISE:
        return None
    absent = math.fsum(s.steps * s.log_absence for s in segments)
    noise = max(segment.noise_multiplier for segment in segments)
    slip = float(log_ndtr(-0.5 / noise))
    false_alarms = math.log(total_steps(segments)) + slip
    present = float(log_complement(min(absent, -1e-300))) if absent < 0 else -math.inf
    complement = absent + float(log_complement(log_baseline))  # 1 − γ ≥ a·(1 − κ)
    upper = float(log_complement(complement))
    lower = log_baseline
    if false_alarms < log_baseline:
        rest = log_baseline + float(log_complement(false_alarms - log_baseline))
        lower = float(np.logaddexp(absent + rest, present + float(log_complement(slip))))
    slack = 1e-12 * (1 + abs(log_baseline) + abs(min(absent, 0.0)))
    lower, upper = min(max(lower - slack, log_baseline), 0.0), min(upper + slack, 0.0)
    lower = min(lower, upper)
    estimate = max(log_baseline, min(upper, 0.0))
    return Bracket(
        lower,
        upper,
        estimate,
        complement - slack,
        0.0,
        "whether it was sampled",
        converged=upper - lower <= rtol,
    )


def _widened(logarithm: float, slack: float) -> tuple[float, float]:
    # Relative to log γ near γ = 1, where log γ ≈ γ − 1; to γ as well as to log γ elsewhere.
    margin = slack * (abs(logarithm) + min(1.0, abs(logarithm)))
    return logarithm - margin, min(logarithm + margin, 0.0)


def _assemble(segments: Schedule, log_baseline: float, ends: Ends, method: str, *, narrow: bool) -> Bracket:
    lower = max(ends.log_lower, log_baseline)
    upper = max(min(ends.log_upper, 0.0), log_baseline)
    assert lower <= upper + 1e-12 * (1 + abs(upper)), "the two sides of a certified bracket crossed"
    lower = min(lower, upper)
    complement_lower = min(ends.log_complement_lower, ends.log_complement_upper)
    estimate = estimate_success(segments, log_baseline)
    inside = lower <= estimate.log_success <= upper
    if estimate.converged and inside:
        log_estimate = estimate.log_success
    else:
        # The upper side is off by twice as much as the lower, to leading order in the spacing.
        log_estimate = min(max((2 * lower + upper) / 3, lower), upper)
    contradicted = estimate.converged and not inside
    return Bracket(
        lower,
        upper,
        log_estimate,
        complement_lower,
        ends.log_complement_upper,
        method,
        converged=narrow and not contradicted,
    )


def delta_upper(schedule: Segment | Sequence[Segment], epsilon: float) -> float:
    """A certified δ for which the run is (ε, δ)-differentially private, adding or removing the target.

    >>> round(delta_upper(Segment(0.987386, sample_rate=0.02, steps=1000), 4.0) * 1e5, 3)
    1.0
    """
    segments = normalise(schedule)
    require(epsilon, "epsilon", "a finite number of at least 0", 0 <= epsilon < math.inf, "8")
    if is_full_batch(segments):
        log_delta = gaussian_log_delta_ends(epsilon, shift=shift_of(segments))[1]
    else:
        log_delta = log_delta_upper_both_ways(segments, epsilon)
    return rounded_up(math.exp(log_delta))


def delta_lower(schedule: Segment | Sequence[Segment], epsilon: float) -> float:
    """A certified δ that the run needs at this ε: with a smaller one it is not (ε, δ)-differentially private.

    >>> round(delta_lower(Segment(0.987386, sample_rate=0.02, steps=1000), 4.0) * 1e5, 3)
    1.0
    """
    segments = normalise(schedule)
    require(epsilon, "epsilon", "a finite number of at least 0", 0 <= epsilon < math.inf, "8")
    if is_full_batch(segments):
        log_delta = gaussian_log_delta_ends(epsilon, shift=shift_of(segments))[0]
    else:
        log_delta = log_delta_lower(segments, epsilon)
    return max(math.nextafter(math.exp(log_delta) * (1 - 4 * UNIT), -1.0), 0.0)


def epsilon_upper(schedule: Segment | Sequence[Segment], delta: float) -> float:
    """A certified ε for which the run is (ε, δ)-differentially private, adding or removing the target.

    >>> round(epsilon_upper(Segment(0.987386, sample_rate=0.02, steps=1000), 1e-5), 3)
    4.0
    """
    segments = normalise(schedule)
    require(delta, "delta", "a share above 0 and below 1", 0 < delta < 1, "1e-5")
    log_delta = math.log(delta) - exponent_slack(math.log(delta))
    if is_full_batch(segments):
        return _gaussian_epsilon(shift_of(segments), log_delta)
    return epsilon_upper_both_ways(segments, log_delta)


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
