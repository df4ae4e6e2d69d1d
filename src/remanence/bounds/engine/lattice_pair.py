"""A run on a lattice, read at a baseline: what its dominating pair allows, and what a test on it achieves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from remanence.bounds.engine.closed_forms import log_complement
from remanence.bounds.engine.law import Law
from remanence.bounds.engine.rounding import UNIT
from remanence.bounds.engine.two_sided import TwoSided

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

    def bracket(self, log_baseline: float) -> tuple[TwoSided, float]:
        """The bracket, and how much of its width is slack for numerical errors instead of spacing."""
        log_upper, comp_lower, slack = self._dominated(log_baseline)
        log_lower, comp_upper, test_slack = self._tested(log_baseline)
        return TwoSided(log_lower, log_upper, comp_lower, comp_upper), max(slack, test_slack)

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
    """What rounding can do to a sum of the exponents that untilt a probability."""
    exponents = abs(law.log_total) + (1 + abs(law.tilt)) * abs(law.loss_at(index)) + abs(log_baseline)
    return _PAD * UNIT * (1 + exponents)


def _share_of(log_value: float, law: Law, index: int, side: float) -> float:
    """A probability in units of the law's scale at one point, rounded up (side 1) or down (−1)."""
    pad = side * _pad(law, index, log_value)
    return math.exp(min(log_value - law.log_scale(index) + pad, _LARGEST))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
