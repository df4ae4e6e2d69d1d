"""The decision: findings and proven bounds, compared with the owner's policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from remanence.core.checks import number

if TYPE_CHECKING:
    from remanence.bounds.bound import Bound
    from remanence.results.evidence import Evidence
    from remanence.results.findings import Finding


class Verdict(StrEnum):
    """The conclusion of an audit."""

    PROTECTED = "PROTECTED"
    UNPROVEN = "UNPROVEN"
    EXPOSED = "EXPOSED"
    CONTRADICTED = "CONTRADICTED"

    @property
    def exit_code(self) -> int:
        """0 within the policy, 1 exposed or contradicted, 3 undecided (2 is a usage error)."""
        return {Verdict.PROTECTED: 0, Verdict.UNPROVEN: 3}.get(self, 1)

    @property
    def meaning(self) -> str:
        """Its meaning, in one sentence for a reader."""
        return _MEANINGS[self]


_MEANINGS = {
    Verdict.PROTECTED: "A proof caps every attack at or below the limit, under this threat model.",
    Verdict.UNPROVEN: "No attack certainly beats the limit, its control and a guess. No proof rules one out.",
    Verdict.EXPOSED: "An attack succeeds more often than the limit allows, or a record is proven to be in the release.",
    Verdict.CONTRADICTED: "The evidence contradicts the claim: the training is not what it claims to be.",
}


@dataclass(frozen=True)
class Policy:
    """The limit set by the owner of the data: the largest acceptable success of an attack.

    `set_by` says whose limit it is: the user's, or a default.
    """

    max_success: float = 0.1  # the largest acceptable success
    set_by: str = "user"  # whose limit it is: "user", or "default"

    @property
    def whose(self) -> str:
        """The words before "limit" in a sentence."""
        return "your" if self.set_by == "user" else "the default"

    def __post_init__(self) -> None:
        number(
            "max_success",
            self.max_success,
            above=0,
            below=1,
            hint="strictly between 0 and 1: 0.1 is one record in ten",
        )


def decide(evidence: Iterable[Evidence], bounds: Iterable[Bound], policy: Policy) -> Verdict:
    """Compare measurements and proven bounds with the policy.

    A bound is contradicted by any attack that significantly exceeds it. EXPOSED needs one finding that significantly
    exceeds the limit: a record proven to be in the release, or a rate above the limit, its control and a guess. A
    failed attack never yields PROTECTED. Only a bound that holds for every record can, and only if no measured rate,
    the control included, is significantly above that bound or the limit. A bound that holds on average over records
    proves nothing about these.
    """
    found = list(evidence)
    ceiling = lowest(bounds)
    if any(contradicts(entry, ceiling) for entry in found):
        return Verdict.CONTRADICTED
    if any(exposing(entry, found, policy) for entry in found):
        return Verdict.EXPOSED
    seen = max((rate.lower for entry in found for rate in (entry.main, entry.control)), default=0.0)
    if max(ceiling, seen) <= policy.max_success and seen <= ceiling:
        return Verdict.PROTECTED
    return Verdict.UNPROVEN


def lowest(bounds: Iterable[Bound]) -> float:
    """The lowest ceiling that holds for every record; one that holds on average proves nothing about these."""
    return min((float(bound.success) for bound in bounds if not bound.on_average), default=1.0)


def contradicts(entry: Evidence, ceiling: float) -> bool:
    """Whether an attack significantly exceeds the ceiling, or a test rejects the claim."""
    return entry.main.lower > ceiling or entry.rejects_the_claim


def exposing(entry: Evidence, evidence: Sequence[Evidence], policy: Policy) -> list[Finding]:
    """The findings of an attack that break the limit.

    Some count only for the attack with the highest rate, which is selected without looking at them.
    """
    best = max(evidence, key=lambda each: (each.main.lower, each.main.rate))
    counted = [each for each in entry.found if entry is best or not each.of_the_best_attack]
    return [each for each in counted if each.exposes(policy)]


def decisive(
    evidence: Iterable[Evidence], bounds: Iterable[Bound], policy: Policy
) -> tuple[Evidence, Finding]:
    """The attack and the finding that the verdict rests on, so that every view shows the same ones.

    A high rate is not sufficient: if its control is as high, another attack decides.
    """
    found = list(evidence)
    ceiling = lowest(bounds)
    reasons = {id(entry): exposing(entry, found, policy) for entry in found}
    by_best = any(reason.of_the_best_attack for own in reasons.values() for reason in own)

    def weight(entry: Evidence) -> tuple[float, ...]:
        decides = contradicts(entry, ceiling), bool(reasons[id(entry)]), entry.tells and not by_best
        more = sum(each.tells for each in entry.found)
        return *decides, entry.main.lower, entry.main.rate, more

    best = max(found, key=weight)
    whole = next(each for each in best.found if each.kind == "whole-records")
    if best.main.lower > ceiling:
        return best, whole
    refuting = [each for each in best.findings if each.contradicts]
    return best, next(iter(refuting or reasons[id(best)]), whole)
