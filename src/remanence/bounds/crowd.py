"""Many people at once: how many of them, at most, an adversary recovers from one training."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from remanence.bounds.engine.schedule import Segment
from remanence.bounds.one_run import GuessCount, dpsgd_curve
from remanence.bounds.person import Person, read_person
from remanence.bounds.settings import dpsgd
from remanence.core.checks import number, whole
from remanence.core.exceptions import InputError

MOST_PEOPLE = 10_000
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True)
class Crowd:
    """Of so many people, at most `expected` are recovered on average, and at most `most` with this confidence."""

    people: int
    expected: float
    most: int
    confidence: float
    assumptions: tuple[str, ...]


def crowd(
    people: int,
    *,
    candidates: int,
    schedule: Segment | Sequence[Segment],
    person: Person | None = None,
    confidence: float = 0.95,
) -> Crowd:
    """How many of N people an adversary recovers, each out of their own shortlist of n candidates.

    On average at most N·γ(1/n), however the people's outcomes depend on each other. More than `most` of them with a
    probability of at most 1 − confidence: the theorem behind the audit of one run (`one_run`), with all N guessed.
    Each person's records are drawn independently of the others', all candidates equally likely.

    >>> found = crowd(1000, candidates=100, schedule=Segment(1.1, 0.01, 1000))
    >>> round(found.expected, 1), found.most
    (25.4, 68)
    """
    person = read_person(person)
    whole("people", people, most=MOST_PEOPLE, hint="1000, and scale")
    whole("candidates", candidates, least=2)
    number("confidence", confidence, above=0.5, below=1)
    runs = person.schedules(schedule)
    if person.replaced or person.batches == "balls-in-bins":
        raise InputError(
            "Many people at once are bounded for leaving people out, and for pairs that the engine composes.",
            needs="batches of poisson, people, shuffled or fixed, and no replacement",
            got=f"batches={person.batches}, replaced={person.replaced}",
            hint="batches='shuffled', which holds for balls in bins too",
        )
    bound = dpsgd(1 / candidates, schedule=schedule, person=person)
    curves, level = [dpsgd_curve(run) for run in runs], 1 - confidence

    def ruled_out(most: int) -> bool:
        """Whether one of the pairs, each of which holds, says so."""
        count = GuessCount(most + 1, people, people, candidates)
        return any(count.rejects(curve, level) for curve in curves)

    most = bisect_left(range(people), True, key=ruled_out)  # all counts beyond it are
    assumptions = (
        *bound.assumptions,
        f"each person is one of {candidates} equally likely candidates, independently of the others",
    )
    return Crowd(
        people, min(people, people * float(bound.success) * _ROUNDING), most, confidence, assumptions
    )
