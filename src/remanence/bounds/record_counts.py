"""How many records people have, where that is known better than "at most so many"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from remanence.bounds.engine.bracket import Bracket
from remanence.bounds.engine.rounding import exponent_slack
from remanence.bounds.engine.schedule import MOST_RECORDS
from remanence.core.checks import is_number, is_whole
from remanence.core.exceptions import InputError

_LEVELS = 24  # different counts that are computed; more of them are rounded up to so many
_EXAMPLE = "5, 'exactly 5', or '1:900,2:80,5:20' (900 people with one record, …)"
_SHARES_OFF = 1e-9  # by how much shares may differ from a sum of 1


@dataclass(frozen=True)
class RecordCounts:
    """Shares of people by how many records they have: the ceiling of a person at random, who has so many.

    Somebody who knows how many records the target has succeeds with at most Σ_k p_k·γ_k(κ), and somebody who does not
    know it has less to go by. κ is what a guess achieves whatever the number of records. All people with the same
    number are "exactly so many".

    >>> RecordCounts.of({1: 900, 5: 100}).shares
    ((1, 0.9), (5, 0.1))
    >>> RecordCounts.exactly(5).whose, RecordCounts.of({1: 900, 5: 100}).whose
    ('a person with exactly 5 records', 'a random person with 1 to 5 records')
    """

    shares: tuple[tuple[int, float], ...]  # (records, share of the people), by rising numbers of records

    def __post_init__(self) -> None:
        paired = isinstance(self.shares, tuple) and all(
            isinstance(each, tuple) and len(each) == 2 for each in self.shares
        )
        counts = [count for count, _ in self.shares] if paired else []
        whole = all(is_whole(count, 1) and count <= MOST_RECORDS for count in counts)
        positive = paired and all(is_number(share, 0) and share <= 1 for _, share in self.shares)
        adds_up = positive and abs(math.fsum(share for _, share in self.shares) - 1) < _SHARES_OFF
        if not (counts and whole and adds_up and counts == sorted(set(counts))):
            raise InputError(
                "The numbers of records per person cannot be used.",
                needs=f"whole numbers of records from 1 to {MOST_RECORDS:,}, each with so many people, not all 0",
                got=f"{self.shares!r:.100}",
                hint=_EXAMPLE,
            )

    @classmethod
    def of(cls, people: Mapping[int, float]) -> RecordCounts:
        """From how many people have so many records, as numbers or as shares."""
        if not isinstance(people, Mapping) or not all(
            is_number(number, -1e-300) for number in people.values()
        ):
            return cls((people,))  # pyright: ignore[reportArgumentType]  # refused there
        total = math.fsum(people.values())
        kept = [(count, number / total) for count, number in people.items() if number > 0]
        return cls(tuple(sorted(kept)))

    @classmethod
    def exactly(cls, records: int) -> RecordCounts:
        """Everybody has so many."""
        return cls(((records, 1.0),))

    @property
    def most(self) -> int:
        """The largest number of records of one person."""
        return self.shares[-1][0]

    @property
    def differs(self) -> bool:
        """Whether people differ, so that the ceiling is an average over them."""
        return len(self.shares) > 1

    @property
    def whose(self) -> str:
        """The ceiling is about this."""
        if self.differs:
            return f"a random person with {self.shares[0][0]} to {self.most} records"
        return f"a person with exactly {self.most} record{'s' if self.most > 1 else ''}"

    @property
    def assumption(self) -> str:
        """What the proof needs of the numbers."""
        if self.differs:
            return (
                "on average over people: the target is one of them at random, who has so many records with the "
                "given shares, and a guess succeeds no more often for people with more records"
            )
        return f"every person has exactly {self.most} records"

    def levels(self) -> tuple[tuple[int, float], ...]:
        """The shares with at most a few numbers of records, rounded up: more records dominate fewer."""
        if len(self.shares) <= _LEVELS:
            return self.shares
        steps = np.unique(np.ceil(np.geomspace(self.shares[0][0], self.most, _LEVELS) - 1e-9).astype(int))
        steps[-1] = self.most
        found: dict[int, float] = {}
        for count, share in self.shares:
            level = int(steps[np.searchsorted(steps, count)])
            found[level] = found.get(level, 0.0) + share
        return tuple(sorted(found.items()))


def averaged(parts: list[tuple[float, Bracket]]) -> Bracket:
    """What is known of Σ share·γ from what is known of each γ, rounded outwards."""

    def mean(logs: list[float], side: int) -> float:
        terms = [math.log(share) + log for (share, _), log in zip(parts, logs, strict=True)]
        if -math.inf in terms and side < 0:
            return -math.inf
        slack = exponent_slack(*(term for term in terms if math.isfinite(term))) + _SHARES_OFF
        return min(float(np.logaddexp.reduce(terms)) + side * slack, 0.0)

    brackets = [bracket for _, bracket in parts]
    estimates = [bracket.log_estimate for bracket in brackets if bracket.log_estimate is not None]
    return Bracket(
        mean([bracket.log_lower for bracket in brackets], -1),
        mean([bracket.log_upper for bracket in brackets], 1),
        mean([bracket.log_complement_lower for bracket in brackets], -1),
        log_estimate=mean(estimates, 0) if len(estimates) == len(parts) else None,
        method=brackets[0].method,
        converged=all(bracket.converged for bracket in brackets),
    )


def read_record_counts(text: str) -> int | RecordCounts:
    """Records per person as people write them: at most so many, exactly so many, or how many people have how many.

    >>> read_record_counts("5"), read_record_counts("at most 5"), read_record_counts("exactly 5").whose
    (5, 5, 'a person with exactly 5 records')
    >>> read_record_counts("1:900, 2:80, 5:20").shares
    ((1, 0.9), (2, 0.08), (5, 0.02))
    """
    words = text.strip().lower().replace("-", " ").replace("=", " ").split()
    try:
        if ":" in text:
            return _counted([pair.split(":", 1) for pair in text.split(",")])
        if words[:1] == ["exactly"]:
            return RecordCounts.exactly(int(" ".join(words[1:])))
        return int(" ".join(words[2:] if words[:2] == ["at", "most"] else words))
    except (ValueError, OverflowError):
        raise InputError(
            "The number of records per person cannot be read.",
            needs=_EXAMPLE,
            got=f"{text[:60]!r}",
            hint="5: nobody has more than five records",
        ) from None


def _counted(pairs: Sequence[Sequence[str]]) -> RecordCounts:
    people: dict[int, float] = {}
    for count, number in pairs:
        people[int(count)] = people.get(int(count), 0.0) + float(number)
    return RecordCounts.of(people)
