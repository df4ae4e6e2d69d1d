"""Ceilings for one record or a person, and the ways in which records are assigned to batches.

Every way of batching is reduced to pairs of laws that the engine knows. γ(κ) = sup{μ(E): ν(E) ≤ κ} bounds
reconstruction for *any* law ν that does not depend on the target (averaged over targets, an attack on a release
from ν succeeds as often as a guess), so each batching may choose a convenient reference, and with two
pairs the smaller ceiling holds.

In all of them the other records' gradients and places are given to the adversary, and a step that moves the sum by a
vector of length at most s is a post-processing of one that moves a number by s: multiply by the direction, and add
independent noise in its orthogonal complement. So adaptive directions cost nothing.

**poisson**: each record independently with probability q. A binomial mixture (`Segment`).

**people**: each person independently with probability q, all their records summed and clipped together (DP-FedAvg).
The pair of one record.

**shuffled**: E = ⌈T / ⌊N/B⌋⌉ passes over the data, each record in at most one batch of each pass, in whatever order,
with an incomplete last batch dropped or not. Reference: the same passes with the person's gradients left out of their
batches. The order is given away. In a pass, k records move batches by lengths whose sum is at most k, so by at most k
in the Euclidean norm: one Gaussian mechanism of μ = k·√E/σ, and γ = Φ(Φ⁻¹(κ) + k·√E/σ), with equality if all are in
one batch of a known order. No amplification.

**fixed**: each step draws a batch of a fixed size from all records without replacement. Two references.
(1) Training without the target. Draw a batch without it, and with probability q put it in the place of one of its
records: given all other draws, N(0, σ²) against (1−q)·N(0, σ²) + q·N(c, σ²) with |c| ≤ 2, because one gradient
comes and another one goes. A `Segment` of half the noise. (2) The same batches with the target's gradient left out:
at most 1 in every step, μ = √T/σ, and k·√T/σ for k records. The bound says which of the two gave its number.
For k > 1 records in (1), J of them take the places of J others, J hypergeometric: N(0, σ²) against the mean of
N(2J, σ²), as for `Segment`. Whatever the records before it do, each of theirs is in with probability at most
B/(N − k + 1) ≤ q′ = q/(1 − (k − 1)·q), because B ≥ 1. So J is at most a binomial J′ of k and q′ on the same probability
space, and growing J to J′ dominates: a `Segment` of half the noise, the rate q′ and k records, wherever q·k < 1.

**balls-in-bins**: each pass throws every record into one of b = 1/q batches. Reference: the same throws with the
target's gradient left out: N(0, σ²·I_b) against the mean of N(e_t, σ²·I_b) over t = 1 … b, once for each pass
(`engine/allocation.py`, certified from both sides). It is dominated by the shuffle's pair, because revealing t helps.
A person's k records are put back one after the other, each given the places of all others: γ ≤ G(G(… G(κ))), k times,
with G = γ of one record. The better of the two holds.

**Replacement.** Where neighbours differ by one record replaced by another, ν is a training with the other record.
Take it out, put the target in: ν(E) ≤ 1 − G⁻¹(1 − κ) and μ(E) ≤ G(ν(E)) for the training without either, G = γ of
removal. For a Gaussian mechanism this doubles μ, which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from remanence.bounds.engine.allocation import allocation_bracket
from remanence.bounds.engine.bracket import Bracket, ceiling
from remanence.bounds.engine.dpsgd import dpsgd_bracket, dpsgd_brackets
from remanence.bounds.engine.roots import boundary
from remanence.bounds.engine.schedule import MOST_RECORDS, Schedule, Segment, is_full_batch, normalise
from remanence.core.checks import instance, one_of, whole
from remanence.core.exceptions import InputError

Batches = Literal["poisson", "people", "shuffled", "fixed", "balls-in-bins"]

_NOTHING_BUT = (
    "each step releases the sum of clipped gradients plus Gaussian noise, divided by a number that does not "
    "depend on the data"
)
_SEEN = "the adversary sees every step and knows all other records"
_SAMPLING = {
    "poisson": "Poisson sampling: each record enters each batch independently with the sampling rate",
    "people": "each person enters each batch independently with the sampling rate, and all their records are "
    "summed and clipped together",
    "shuffled": "each pass over the data puts each record into at most one batch, in any order, and may drop an "
    "incomplete last batch (drop_last); no amplification is claimed",
    "fixed": "each batch is drawn anew, of a fixed size and without replacement, from all records",
    "balls-in-bins": "each pass throws each record independently into one of its batches",
}
_REMOVED = "the comparison is with the same training without the target (add or remove one record)"
_LEFT_OUT = "the comparison is with the same batches without the target's gradient"
_EITHER = (
    "the comparison is with the same batches without the target's gradient, or with the same training without the "
    "target (add or remove one record), whichever has the lower ceiling at the baseline"
)
_REPLACED = "the comparison is with the same training on another record in the target's place"
_WHOLE_BATCHES = 1e-6  # how near to a whole number the batches of a pass must be
_UP = 1 + 1e-12  # of a rate, upwards
_ROUNDING = 1e-12  # of N/B, far less than two different data sets of any size differ by
_LEAST_INVERTED = 1e-12  # below it, 1 − κ is too close to 1 for a float
_CHAIN_WIDTH = 1e-5  # relative, of the inverse of γ; its error is on the safe side
_THROWN_WIDTH = 1e-3  # the same for balls in bins, which take longer


@dataclass(frozen=True)
class Person:
    """One person: at most how many records they have, how these are batched, and the neighbouring relation.

    >>> Person().whose, Person(records=5).whose
    ('one record', 'a person with at most 5 records')
    """

    records: int = 1
    batches: Batches = "poisson"
    replaced: bool = False  # neighbours replace a person instead of removing them

    def __post_init__(self) -> None:
        whole("records per person", self.records, most=MOST_RECORDS, hint="1: a person is one record")
        one_of("batches", str(self.batches), get_args(Batches))

    @property
    def whose(self) -> str:
        """The ceiling is about this."""
        if self.batches == "people":
            return "a person, however many their records"
        return "one record" if self.records == 1 else f"a person with at most {self.records} records"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the proof."""
        return self.assumptions_of(())

    def assumptions_of(self, brackets: Sequence[Bracket]) -> tuple[str, ...]:
        """The assumptions behind these brackets: with fixed batches, either of two comparisons may give the number."""
        used = {bracket.method for bracket in brackets} & {_REMOVED, _LEFT_OUT}
        if self.replaced:
            reference = _REPLACED
        elif self.batches in ("shuffled", "balls-in-bins") or used == {_LEFT_OUT}:
            reference = _LEFT_OUT
        else:
            reference = _EITHER if len(used) == 2 else _REMOVED
        several = self.records > 1 and self.batches != "people"
        noun = "person" if several or self.batches == "people" else "record"
        return (
            _SAMPLING[self.batches],
            _NOTHING_BUT,
            _SEEN if noun == "record" else _SEEN.replace("records", "people's records"),
            reference.replace("record", noun),
            *((f"no person has more than {self.records} records",) if several else ()),
        )

    @property
    def is_plain(self) -> bool:
        """Whether the engine's own pair applies, without alternatives or chaining."""
        return self.batches in ("poisson", "people") and not self.replaced

    def schedules(self, schedule: Segment | Sequence[Segment]) -> list[Schedule]:
        """Runs that each dominate the training, when one record in the engine's sense is removed."""
        return _WAYS[self.batches](normalise(schedule), self.records)

    def brackets(
        self, schedule: Segment | Sequence[Segment], log_baselines: Sequence[float], *, rtol: float
    ) -> list[Bracket]:
        """The bracket of γ at each baseline."""
        if self.is_plain:
            (run,) = self.schedules(schedule)
            return dpsgd_brackets(run, log_baselines, rtol=rtol)
        return [self._bracket(normalise(schedule), log, rtol) for log in log_baselines]

    def _bracket(self, schedule: Schedule, log_baseline: float, rtol: float) -> Bracket:
        find = replaced if self.replaced else dpsgd_bracket
        options = [find(run, log_baseline, rtol=rtol) for run in self.schedules(schedule)]
        log_lower = (
            options[0].log_lower if self.batches == "shuffled" or is_full_batch(schedule) else -math.inf
        )
        if self.batches == "fixed" and not self.replaced:
            # Explicit tests: the other records' gradients may be 0, and all opposite to the target's.
            log_lower = dpsgd_bracket(schedule, log_baseline, rtol=rtol).log_lower
            if self.records == 1 and options[-1].log_upper < options[0].log_upper:
                log_lower = options[-1].log_lower
        if self.batches == "balls-in-bins" and not is_full_batch(schedule):
            thrown = partial(_thrown, schedule, self.records)
            if self.replaced:
                options.append(chained(partial(thrown, rtol=_THROWN_WIDTH), log_baseline, _THROWN_WIDTH))
            else:
                options.append(thrown(log_baseline, rtol=rtol))
                log_lower = options[-1].log_lower
        best = min(options, key=lambda option: option.log_upper)
        # Of two pairs of fixed batches, the second compares with a training without the target.
        method = _REMOVED if self.batches == "fixed" and best is not options[0] else _LEFT_OUT
        return replace(best, log_lower=log_lower, method=method)


def read_person(person: Person | None) -> Person:
    """The given person, or by default one record."""
    return instance("person", Person() if person is None else person, Person, "a Person", "Person(records=5)")


def replaced(run: Schedule, log_baseline: float, *, rtol: float) -> Bracket:
    """γ if the other training has another record in the target's place: one removed, the other added."""
    if is_full_batch(run):
        halved = tuple(replace(segment, noise_multiplier=segment.noise_multiplier / 2) for segment in run)
        return dpsgd_bracket(halved, log_baseline, rtol=rtol)
    safe = tuple(
        Segment(segment.noise_multiplier / (2 * segment.records), 1.0, segment.steps) for segment in run
    )
    told = dpsgd_bracket(safe, log_baseline, rtol=rtol)  # no amplification, and no inverse to find
    other = chained(partial(dpsgd_bracket, run, rtol=rtol), log_baseline, _CHAIN_WIDTH)
    return told if told.log_upper <= other.log_upper else other


def chained(success: Callable[[float], Bracket], log_baseline: float, width: float) -> Bracket:
    """γ of one record removed and another added, G(1 − G⁻¹(1 − κ)), from brackets of G."""

    def allowed(log_size: float) -> bool:
        """Whether G(1 − e^log_size) ≤ 1 − κ is certified."""
        return success(math.log1p(-math.exp(log_size))).log_complement_lower >= log_baseline

    def near(low: float, high: float) -> bool:
        return high - low <= width * min(1.0, -high)

    if log_baseline < math.log(_LEAST_INVERTED) or not allowed(-width):
        return ceiling(0.0)
    found = success(boundary(allowed, log_baseline, -width, near=near))
    return replace(found, log_lower=-math.inf)


def _thrown(schedule: Schedule, records: int, log_baseline: float, *, rtol: float) -> Bracket:
    """γ of balls in bins, chained over the records."""
    passes, bins = _passes(schedule)
    once = partial(allocation_bracket, schedule[0].noise_multiplier, bins, passes, rtol=rtol)
    found = once(log_baseline)
    for _ in range(records - 1):
        found = replace(once(found.log_upper), log_lower=found.log_lower) if found.log_upper < 0 else found
    return found


def _passes(schedule: Schedule) -> tuple[int, int]:
    """The number of passes over the data and of batches in each; refuses a fractional number of batches."""
    (run, *more) = schedule
    bins = 1 / run.sample_rate
    if more or abs(bins - round(bins)) >= _WHOLE_BATCHES * bins:
        raise InputError(
            "Passes over the data need one noise and batches of equal share.",
            needs="one noise multiplier and a sampling rate of 1 over a whole number",
            got=", ".join(f"{segment.sample_rate:g} for {segment.steps} steps" for segment in schedule),
            hint="sample_rate = 1 / (batches in a pass)",
        )
    return -(-run.steps // round(bins)), round(bins)


def _shuffled(schedule: Schedule, records: int) -> list[Schedule]:
    """With `drop_last` a pass has ⌊N/B⌋ batches, the fewest of any loader, and so the most passes.

    A batch size that changes starts a new pass; a noise that changes does not.
    """
    steps: dict[int, int] = {}
    for segment in schedule:
        batches = math.floor(1 / segment.sample_rate * (1 + _ROUNDING))
        steps[batches] = steps.get(batches, 0) + segment.steps
    passes = sum(-(-count // batches) for batches, count in steps.items())
    least = min(segment.noise_multiplier for segment in schedule)
    return [(Segment(least / records, 1.0, passes),)]


def _fixed(schedule: Schedule, records: int) -> list[Schedule]:
    told = tuple(replace(s, noise_multiplier=s.noise_multiplier / records, sample_rate=1.0) for s in schedule)
    if max(s.sample_rate for s in schedule) * records >= 1:
        return [told]
    put_in = []
    for s in schedule:
        rate = s.sample_rate / (1 - s.sample_rate * (records - 1)) * (_UP if records > 1 else 1)
        put_in.append(replace(s, noise_multiplier=s.noise_multiplier / 2, sample_rate=rate, records=records))
    return [told, normalise(put_in)]


def _poisson(schedule: Schedule, records: int) -> list[Schedule]:
    return [normalise([replace(segment, records=records) for segment in schedule])]


_WAYS: dict[str, Callable[[Schedule, int], list[Schedule]]] = {
    "poisson": _poisson,
    "people": lambda schedule, records: [schedule],  # noqa: ARG005
    "shuffled": _shuffled,
    "fixed": _fixed,
    "balls-in-bins": _shuffled,
}
