"""Many people: the most that one training can expose, and attribute inference by group."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from remanence.bounds.baselines import shortlist
from remanence.bounds.bound import Bound
from remanence.bounds.engine.schedule import Segment
from remanence.bounds.one_run import GuessCount, dpsgd_curve
from remanence.bounds.person import Person, read_person
from remanence.bounds.settings import dpsgd
from remanence.core.checks import number, whole
from remanence.core.exceptions import InputError
from remanence.core.references import REMANENCE

MOST_PEOPLE = 10_000
_ROUNDING = 1 + 1e-12
_SHARED = "everyone in the group has the same value, so knowing the group reveals it"


@dataclass(frozen=True)
class Crowd:
    """A ceiling on recovered people: at most `expected` on average, and at most `most` with this confidence."""

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
    """The most of N people that an adversary can recover, each from their own shortlist of n candidates.

    On average at most N·γ(1/n), whatever the dependence between people's outcomes. More than `most` of them with a
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
        """Whether one of the valid (ε, δ) pairs rules it out."""
        count = GuessCount(most + 1, people, people, candidates)
        return any(count.rejects(curve, level) for curve in curves)

    most = bisect_left(range(people), True, key=ruled_out)  # all counts above it are ruled out
    assumptions = (
        *bound.assumptions,
        f"each person is one of {candidates} equally likely candidates, independently of the others",
    )
    return Crowd(
        people, min(people, people * float(bound.success) * _ROUNDING), most, confidence, assumptions
    )


def attribute(
    values: Sequence[Hashable],
    *,
    by: Sequence[Hashable] | None = None,
    schedule: Segment | Sequence[Segment],
    person: Person | None = None,
) -> dict[str, Bound]:
    """The ceiling on guessing a person's hidden value, by group.

    The best guess without the release is the most common value in the person's group, so κ is its share in the group,
    and the ceiling is γ(κ). Everything else that the adversary knows about the person goes into the groups. `values`
    has one entry per person, and so has `by`.

    >>> smokes, sex = [1, 0, 0, 0, 1, 1, 0, 0], ["f"] * 4 + ["m"] * 4
    >>> found = attribute(smokes, by=sex, schedule=Segment(2.0, 0.1, 10))
    >>> {name: (round(bound.baseline, 2), round(bound.success, 2)) for name, bound in found.items()}
    {'f': (0.75, 0.8), 'm': (0.5, 0.56)}
    """
    if not isinstance(values, Collection):
        raise InputError(
            "The values cannot be used.", needs="one for each person", got=f"{values!r:.80}", hint="[0, 1, 1]"
        )
    groups = ["everybody"] * len(values) if by is None else [str(name) for name in by]
    if len(groups) != len(values):
        raise InputError(
            "Values and groups do not fit together.",
            needs="a group for every value",
            got=f"{len(values)} values and {len(groups)} groups",
            hint="by=frame['sex'], values=frame['smoker']",
        )
    found: dict[str, Bound] = {}
    for name in sorted(set(groups)):
        counts = Counter(value for value, group in zip(values, groups, strict=True) if group == name)
        log_baseline = shortlist(list(counts.values()))
        if len(counts) > 1:
            found[name] = dpsgd(log_baseline=log_baseline, schedule=schedule, person=person)
        else:
            found[name] = Bound("what a group shares", 0.0, (_SHARED,), REMANENCE, log_baseline=0.0)
    return found
