"""The decision: what was found and what is proven, held against what people tolerate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from remanence.core.checks import number
from remanence.core.rates import SuccessRate


class Verdict(StrEnum):
    """What an audit concludes."""

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
        """One sentence for a person."""
        return _MEANINGS[self]


_MEANINGS = {
    Verdict.PROTECTED: "A proof caps every attack at or below the limit, under this threat model.",
    Verdict.UNPROVEN: "No attack certainly beats the limit, its control and a guess. No proof rules one out.",
    Verdict.EXPOSED: "An attack succeeds more often than the limit allows, or a record is proven to be in the release.",
    Verdict.CONTRADICTED: "The evidence contradicts the claim: the training is not what it claims to be.",
}


@dataclass(frozen=True)
class Policy:
    """What the owner of the data tolerates: the largest acceptable success of an attack.

    `set_by` says whose limit it is: the user's, or a default that nobody chose.
    """

    max_success: float = 0.1  # the largest success that is accepted
    set_by: str = "user"  # whose limit it is: "user", or "default" where nobody chose one

    @property
    def whose(self) -> str:
        """Before the word limit."""
        return "your" if self.set_by == "user" else "the default"

    def __post_init__(self) -> None:
        number(
            "max_success",
            self.max_success,
            above=0,
            below=1,
            hint="strictly between 0 and 1: 0.1 is one record in ten",
        )


class Measured(Protocol):
    """What an attack achieved, as far as a verdict depends on it."""

    @property
    def main(self) -> SuccessRate:
        """How often it met the target."""
        ...

    @property
    def control(self) -> SuccessRate:
        """How often it met what it was not shown."""
        ...

    @property
    def tells(self) -> bool:
        """Whether it certainly does better than its control and a guess."""
        ...

    @property
    def about_the_release(self) -> bool:
        """Whether the rates are about what was handed in, as far as can be told."""
        ...

    @property
    def proven(self) -> int | None:
        """How many records the game recomputed the release from."""
        ...

    @property
    def telling_parts(self) -> Sequence[Any]:
        """The columns of a table that certainly come back more often than without the release."""
        ...

    @property
    def came_back(self) -> float:
        """The share of a head's classes, where one was handed in, of which a picture came back by its own test."""
        ...

    @property
    def rejects_the_claim(self) -> bool:
        """Whether a test of what the training claims to be failed."""
        ...


MeasuredT = TypeVar("MeasuredT", bound=Measured)


class Ceiling(Protocol):
    """What no attack exceeds."""

    @property
    def success(self) -> Any:
        """The largest success."""
        ...

    @property
    def on_average(self) -> bool:
        """Whether it holds over records at random, and not for each."""
        ...


def decide(evidence: Iterable[Measured], bounds: Iterable[Ceiling], policy: Policy) -> Verdict:
    """Weigh what was measured and what is proven against the policy.

    A bound is contradicted by any attack that certainly beats it. EXPOSED needs a record that was proven to be in the
    release, or an attack above the limit, its control and a guess, on whole records, on one column of them, on this
    head or on heads made like it. A failed
    attack never yields PROTECTED: only a bound can, one that holds for every record, and only where nothing that was
    measured, the control included, is certainly above it or above the limit. A bound that holds on average over records
    proves nothing about these.
    """
    found = list(evidence)
    ceiling = lowest(bounds)
    certain = max((entry.main.lower for entry in found), default=0.0)
    if any(contradicts(entry, ceiling) for entry in found):
        return Verdict.CONTRADICTED
    if any(exposes(entry, policy) for entry in found) or this_head_exposes(found, policy):
        return Verdict.EXPOSED
    seen = max([certain, *(entry.control.lower for entry in found)])
    if max(ceiling, seen) <= policy.max_success and seen <= ceiling:
        return Verdict.PROTECTED
    return Verdict.UNPROVEN


def lowest(bounds: Iterable[Ceiling]) -> float:
    """The lowest ceiling that holds for every record; one that holds on average proves nothing about these."""
    return min((float(bound.success) for bound in bounds if not bound.on_average), default=1.0)


def contradicts(entry: Measured, ceiling: float) -> bool:
    """Whether an attack certainly beats what is proven, or a test of the claim failed."""
    return entry.main.lower > ceiling or entry.rejects_the_claim


def exposes(entry: Measured, policy: Policy) -> bool:
    """Whether an attack makes the release EXPOSED: a proven record, whole records above the limit, or one column."""
    columns = any(part.main.lower > policy.max_success for part in entry.telling_parts)
    above = entry.tells and entry.about_the_release and entry.main.lower > policy.max_success
    return bool(entry.proven) or columns or above


def this_head_exposes(evidence: Iterable[Measured], policy: Policy) -> bool:
    """Whether too many pictures come back out of the very head that was handed in.

    It is judged by the attack that does best on heads made like it: that one was chosen without looking at this head.
    """
    best = max(evidence, key=lambda entry: (entry.main.lower, entry.main.rate), default=None)
    return best is not None and best.came_back > policy.max_success


def decisive(evidence: Iterable[MeasuredT], bounds: Iterable[Ceiling], policy: Policy) -> MeasuredT:
    """The attack that the verdict rests on, so that every view tells about the same one.

    A high rate alone does not make it: where a control is as high, another attack decides.
    """
    found = list(evidence)
    ceiling, by_head = lowest(bounds), this_head_exposes(found, policy)

    def weight(entry: MeasuredT) -> tuple[float, ...]:
        tells = entry.tells and not by_head  # this head is judged by the highest rate alone
        columns = sum(part.main.lower for part in entry.telling_parts)
        decides = contradicts(entry, ceiling), exposes(entry, policy), tells
        return *decides, entry.main.lower, entry.main.rate, columns

    return max(found, key=weight)
