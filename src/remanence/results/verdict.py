"""The decision: what was found and what is proven, held against what people tolerate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from remanence.exceptions import InputError
from remanence.scoring.rates import SuccessRate


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
    Verdict.PROTECTED: "A proof caps every attack at or below your limit, under this threat model.",
    Verdict.UNPROVEN: "No attack is certain to go above your limit and its control, and no proof rules one out.",
    Verdict.EXPOSED: "An attack recovers records more often than your limit allows.",
    Verdict.CONTRADICTED: "An attack did better than the claim allows: the training is not what it claims to be.",
}


@dataclass(frozen=True)
class Policy:
    """What the owner of the data tolerates: the largest acceptable success of an attack."""

    max_success: float = 0.1

    def __post_init__(self) -> None:
        if not (isinstance(self.max_success, int | float) and 0 < self.max_success < 1):
            raise InputError(
                "The policy cannot be used.",
                needs="a largest acceptable success strictly between 0 and 1",
                got=f"max_success = {self.max_success!r}",
                hint="0.1 tolerates one record in ten",
            )


def decide(
    attacks: Iterable[SuccessRate],
    bound: float | None,
    policy: Policy,
    *,
    rejected: bool = False,
    on_average: bool = False,
) -> Verdict:
    """Weigh the strongest of the attacks that tell anything and the tightest bound against the policy.

    A failed attack never yields PROTECTED: only a bound can. `rejected` says that a test of the claim itself,
    which the bound rests on, failed. A bound that holds `on_average` over records is not contradicted by some of them.

    >>> decide([SuccessRate(0, 1000)], None, Policy(0.1))
    <Verdict.UNPROVEN: 'UNPROVEN'>
    >>> decide([SuccessRate(0, 1000)], 0.05, Policy(0.1))
    <Verdict.PROTECTED: 'PROTECTED'>
    """
    certain = max((rate.lower for rate in attacks), default=0.0)
    if rejected or (bound is not None and certain > bound and not on_average):
        return Verdict.CONTRADICTED
    if certain > policy.max_success:
        return Verdict.EXPOSED
    if bound is not None and bound <= policy.max_success:
        return Verdict.PROTECTED
    return Verdict.UNPROVEN
