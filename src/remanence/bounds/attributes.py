"""One hidden attribute of a person: what nobody exceeds in guessing it, for each group of people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence

from remanence.bounds.baselines import shortlist
from remanence.bounds.bound import Bound
from remanence.bounds.engine.schedule import Segment
from remanence.bounds.person import Person
from remanence.bounds.settings import dpsgd
from remanence.core.exceptions import InputError
from remanence.core.references import REMANENCE

_SHARED = "everybody of the group has the same value, which is no secret to whoever knows the group"


def attribute(
    values: Sequence[Hashable],
    *,
    by: Sequence[Hashable] | None = None,
    schedule: Segment | Sequence[Segment],
    person: Person | None = None,
) -> dict[str, Bound]:
    """The ceiling on guessing a person's hidden value, by group.

    The best guess without the release is the commonest value among people like them, so κ is its share in the group,
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
