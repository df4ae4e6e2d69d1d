"""Published sums, counts and means over groups: which single values follow from them, with a certificate.

Who knows which people are in which group (ages, regions and the like are often known) has one linear equation for each
published number. A value is determined if every solution within the values' range agrees on it, which two linear
programs for each person decide (after Dinur and Nissim 2003): the smallest and the largest value are the certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, lsq_linear, milp

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.exceptions import InputError, MisfitError
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import DINUR_NISSIM_2003
from remanence.core.releases import Release
from remanence.scale.progress import track
from remanence.tables.group_sums import GroupSums, determined

_UNBOUNDED: Final = 3  # of scipy's answers


@dataclass(frozen=True)
class FromAggregates:
    """Between which numbers each person's value must lie. Where both ends agree it is determined."""

    low: np.ndarray  # (people,)
    high: np.ndarray

    @property
    def determined(self) -> np.ndarray:
        """Whose value follows from what was published."""
        return determined(self.low, self.high)


def read_aggregates(
    members: np.ndarray,
    sums: np.ndarray,
    *,
    low: float = 0.0,
    high: float = 1.0,
    whole: bool = False,
    rounding: np.ndarray | float = 0.0,
) -> FromAggregates:
    """The range of each value, given who is in which group `(groups, people)` and each group's sum.

    A mean is a sum over its group's size. `low` and `high` are what anybody's value may be; `whole` says that values
    are whole numbers, which determines more. `rounding` is how far a printed sum may be off.

    >>> members = np.array([[1, 1, 1], [1, 1, 0]])  # everybody, and everybody but the last
    >>> read_aggregates(members, np.array([2.0, 1.0])).determined
    array([False, False,  True])
    """
    members, sums = np.asarray(members, dtype=np.float64), np.asarray(sums, dtype=np.float64)
    if members.ndim != 2 or sums.shape != members.shape[:1] or not high >= low:
        raise InputError(
            "The sums do not fit the groups.",
            needs="a row of 0 and 1 for each group, one sum for each, and low ≤ high",
            got=f"groups of shape {members.shape}, sums of shape {sums.shape}, from {low} to {high}",
            hint="members[g, p] is 1 where person p is in group g",
        )
    ends = np.stack([sums - rounding, sums + rounding])
    people = range(members.shape[1])
    found = np.array(
        [
            _extreme(members, ends, person, (low, high), whole=whole)
            for person in track(people, total=len(people), what="solving for each person")
        ]
    )
    return FromAggregates(found[:, 0], found[:, 1])


def _extreme(
    members: np.ndarray, ends: np.ndarray, person: int, limits: tuple[float, float], *, whole: bool
) -> tuple[float, float]:
    """The smallest and the largest value of a person that all sums allow; infinite where nothing holds it."""
    goal, found, count = np.zeros(members.shape[1]), [], members.shape[1]
    for sign in (1.0, -1.0):
        goal[person] = sign
        solved: Any = milp(
            goal,
            constraints=LinearConstraint(members, *ends),
            integrality=np.full(count, int(whole)),
            bounds=Bounds(*limits),
        )
        if solved.status == _UNBOUNDED:
            found.append(-sign * np.inf)
            continue
        if not solved.success:
            raise MisfitError(
                "No values within the range have these sums.",
                needs="sums of values that the groups' members can have",
                got=f"{len(members)} sums over {count} people, values from {limits[0]:g} to {limits[1]:g}",
                hint="check who is in which group, and whether the sums are exact or rounded",
            )
        found.append(sign * float(solved.fun))
    return found[0], found[1]


@final
@dataclass(frozen=True)
class LinearPrograms(Attack[Release]):
    """Asks for the smallest and the largest value of each person that all published numbers allow."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "linear-programs",
        "Asks for the smallest and the largest value that all published sums allow; under noise, for the nearest.",
        "sums, means or counts over groups, and who is in which group",
        "the published numbers",
        DINUR_NISSIM_2003,
    )

    def check(self, knowledge: Knowledge) -> GroupSums:
        """Published sums."""
        mechanism = knowledge.mechanism
        if not isinstance(mechanism, GroupSums):
            hint = "remanence audit sums.csv --data people.csv --label salary"
            raise self.refusal(got=mechanism.name, hint=hint)
        return mechanism

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Nothing to do beforehand."""
        mechanism, place = self.check(knowledge), knowledge.place or 0
        return lambda release: Reconstruction(self._found(mechanism, release)[place : place + 1])

    def expose(self, mechanism: GroupSums, data: Records, release: Release) -> Reconstruction:
        """Every person; no person's value is looked at."""
        return Reconstruction(self._found(mechanism, release))

    def _found(self, mechanism: GroupSums, release: Release) -> Records:
        sums = release["sums"][0].numpy()
        if mechanism.low is None or mechanism.high is None:
            values = lsq_linear(mechanism.members, sums, bounds=mechanism.limits).x
            values = np.round(values) if mechanism.bits else values
        else:
            values = np.where(mechanism.told, (mechanism.low + mechanism.high) / 2, np.nan)
        return Records(torch.from_numpy(values[:, None, None]), torch.full((len(values), 1), torch.nan))
