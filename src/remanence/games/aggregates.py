"""Published sums, counts and means over groups: which single values follow from them, with a certificate.

Who knows which people are in which group (ages, regions and the like are often known) has one linear equation for each
published number. A value is determined if every solution within the values' range agrees on it, which two linear
programs for each person decide (after Dinur and Nissim 2003): the smallest and the largest value are the certificate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp

from remanence.bounds.bound import Bound
from remanence.bounds.settings import gaussian
from remanence.checks import number
from remanence.exceptions import InputError, MisfitError

_AGREES = 1e-7


@dataclass(frozen=True)
class FromAggregates:
    """Between which numbers each person's value must lie. Where both ends agree it is determined."""

    low: np.ndarray  # (people,)
    high: np.ndarray

    @property
    def determined(self) -> np.ndarray:
        """Whose value follows from what was published."""
        return self.high - self.low <= _AGREES * np.maximum(1.0, np.abs(self.high))


def read_aggregates(
    members: np.ndarray, sums: np.ndarray, *, low: float = 0.0, high: float = 1.0, whole: bool = False
) -> FromAggregates:
    """The range of each value, given who is in which group `(groups, people)` and each group's sum.

    A mean is a sum over its group's size. `low` and `high` are what anybody's value may be; `whole` says that values
    are whole numbers, which determines more.

    >>> members = np.array([[1, 1, 1], [1, 1, 0]])  # everybody, and everybody but the last
    >>> read_aggregates(members, np.array([2.0, 1.0])).determined
    array([False, False,  True])
    """
    members, sums = np.asarray(members, dtype=np.float64), np.asarray(sums, dtype=np.float64)
    if members.ndim != 2 or sums.shape != members.shape[:1] or not number("high", high) >= number("low", low):
        raise InputError(
            "The sums do not fit the groups.",
            needs="a row of 0 and 1 for each group, one sum for each, and low ≤ high",
            got=f"groups of shape {members.shape}, sums of shape {sums.shape}, from {low} to {high}",
            hint="members[g, p] is 1 where person p is in group g",
        )
    ends = [_extreme(members, sums, person, (low, high), whole) for person in range(members.shape[1])]
    return FromAggregates(np.array([end[0] for end in ends]), np.array([end[1] for end in ends]))


def _extreme(
    members: np.ndarray, sums: np.ndarray, person: int, limits: tuple[float, float], whole: bool
) -> tuple[float, float]:
    goal, found = np.zeros(members.shape[1]), []
    for sign in (1.0, -1.0):
        goal[person] = sign
        if whole:
            solved = milp(
                goal,
                constraints=LinearConstraint(members, sums, sums),  # pyright: ignore[reportArgumentType]
                integrality=np.ones(len(goal)),
                bounds=(np.full(len(goal), limits[0]), np.full(len(goal), limits[1])),  # pyright: ignore
            )
        else:
            solved = linprog(goal, A_eq=members, b_eq=sums, bounds=limits)
        if not solved.success:
            raise MisfitError(
                "No values within the range have these sums.",
                needs="sums of values that the groups' members can have",
                got=f"{len(sums)} sums over {members.shape[1]} people, values from {limits[0]:g} to {limits[1]:g}",
                hint="check who is in which group, and whether the sums are exact or rounded",
            )
        found.append(sign * float(solved.fun))
    return found[0], found[1]


def noisy_aggregates_bound(
    members: np.ndarray, baseline: float, *, noise: float, low: float = 0.0, high: float = 1.0
) -> Bound:
    """What no attack on one person's value exceeds, where every sum carries Gaussian noise of this deviation.

    One person moves the sums by at most (high − low)·√groups, the number of groups that they are in.
    """
    groups = float(np.asarray(members).sum(0).max())
    shift = (high - low) * groups**0.5
    return gaussian(baseline, noise_multiplier=number("noise", noise, above=0) / shift)
