"""γ, the success that no attack can exceed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from remanence.core.checks import exactly_one
from remanence.core.exceptions import InputError
from remanence.core.references import Reference

NOT_MET = "NOT MET: "  # before an assumption that is known not to hold, of a bound that is 1 therefore

Values = Any  # a float, or an array where several baselines were given


class Ends(NamedTuple):
    """What is known of γ at one baseline, in logarithms."""

    log_success: float
    log_complement: float | None = None
    log_lower: float | None = None
    log_estimate: float | None = None
    converged: bool = True


@dataclass(frozen=True)
class Bound:
    """A proven ceiling on the success of any attack in one game, and what the proof assumes.

    Logarithms throughout, because baselines of 10^-2000 are meant. `log_success` is never below
    log γ. Where the other side is known, `log_lower` is the success of a test that exists, and
    `log_estimate` lies between them. `log_complement` is never above log(1 − γ). Numbers are
    floats, or arrays where several baselines were given.
    """

    name: str  # what it is called in a report
    log_success: Values  # log γ, rounded up
    assumptions: tuple[str, ...]  # what the proof needs
    reference: Reference  # where the proof is
    log_baseline: Values = None  # log κ, which it was computed for
    log_complement: Values = None  # log(1 − γ), rounded down
    log_lower: Values = None  # the success of a test that exists
    log_estimate: Values = None  # between the two
    converged: Values = True  # whether the bracket is as narrow as was asked for
    on_average: bool = False  # over records at random: given ones may be easier, which contradicts nothing
    whose: str = "one record"  # who it is about: a record, a person, people
    recipe: dict[str, Any] | None = field(default=None, compare=False, repr=False)  # for `bounds.recompute`

    @property
    def success(self) -> Values:
        """The ceiling as a share, rounded up."""
        return _plain(np.minimum(1.0, np.nextafter(np.exp(self.log_success), 2.0)))

    @property
    def lower(self) -> Values:
        """The success of a test that exists, rounded down; None where no such test is known."""
        if self.log_lower is None:
            return None
        return _plain(np.maximum(0.0, np.nextafter(np.exp(self.log_lower), -1.0)))

    @property
    def baseline(self) -> Values:
        """κ as a share."""
        return None if self.log_baseline is None else _plain(np.exp(self.log_baseline))

    @property
    def advantage(self) -> Values:
        """(γ − κ) / (1 − κ), what the release adds to a guess (Hayes et al. 2023, Equation 4)."""
        return None if self.log_baseline is None else (self.success - self.baseline) / (1 - self.baseline)


@dataclass(frozen=True)
class Baselines:
    """One κ or several, as natural logarithms."""

    logs: tuple[float, ...]
    single: bool

    def bound(
        self, name: str, ends: Sequence[Ends], assumptions: tuple[str, ...], reference: Reference
    ) -> Bound:
        """Put what is known at each baseline into one bound; no ceiling is below its baseline or above 1.

        γ rises with κ, so that what holds at a larger κ holds at a smaller one, and ceilings rise by construction.
        """
        columns = [
            Ends(min(0.0, max(end.log_success, log)), *end[1:])
            for end, log in zip(ends, self.logs, strict=True)
        ]
        rising = sorted(range(len(columns)), key=lambda index: self.logs[index])
        for smaller, larger in reversed(list(pairwise(rising))):
            columns[smaller] = _no_higher(columns[smaller], columns[larger])
        for smaller, larger in pairwise(rising):
            columns[larger] = _no_lower(columns[larger], columns[smaller])

        def column(end_name: str) -> Values:
            values = [getattr(end, end_name) for end in columns]
            if values[0] is None:
                return None
            return values[0] if self.single else np.array(values)

        return Bound(
            name=name,
            assumptions=assumptions,
            reference=reference,
            log_baseline=self.logs[0] if self.single else np.array(self.logs),
            **{name: column(name) for name in Ends._fields},
        )


def _no_higher(one: Ends, other: Ends) -> Ends:
    """What is known at one baseline, with what is known from above at a larger one."""
    complements = [log for log in (one.log_complement, other.log_complement) if log is not None]
    upper = min(one.log_success, other.log_success)
    return one._replace(
        log_success=upper,
        log_complement=max(complements) if len(complements) == 2 else one.log_complement,
        log_lower=None if one.log_lower is None else min(one.log_lower, upper),
        log_estimate=None if one.log_estimate is None else min(one.log_estimate, upper),
    )


def _no_lower(one: Ends, other: Ends) -> Ends:
    """What is known at one baseline, with the test of a smaller one."""
    if one.log_lower is None or other.log_lower is None:
        return one
    lower = min(max(one.log_lower, other.log_lower), one.log_success)
    estimate = None if one.log_estimate is None else max(one.log_estimate, lower)
    return one._replace(log_lower=lower, log_estimate=estimate)


def _plain(values: Values) -> Values:
    return values.item() if np.ndim(values) == 0 else values


def read_baselines(baseline: Values, log_baseline: Values) -> Baselines:
    """Baselines from shares or from natural logarithms.

    >>> read_baselines(0.1, None)
    Baselines(logs=(-2.3025850929940455,), single=True)
    """
    exactly_one({"baseline": baseline, "log_baseline": log_baseline}, "baseline=0.1: ten candidates")
    logarithms = log_baseline is not None
    given = np.asarray(log_baseline if logarithms else baseline, dtype=np.float64)
    for value in np.atleast_1d(given).ravel().tolist():
        if not (-math.inf < value < 0 if logarithms else 0 < value < 1):
            raise InputError(
                "The baseline cannot be used.",
                needs="a share above 0 and below 1: how often a guess without the release succeeds",
                got=f"{value:g}" + (" as a logarithm" if logarithms else ""),
                hint="1 / (number of candidates); for less than 1e-300, its logarithm",
            )
    logs = given if logarithms else np.log(given)
    return Baselines(tuple(np.atleast_1d(logs).ravel().tolist()), given.ndim == 0)


def require(value: float, name: str, needs: str, allowed: bool, hint: str) -> None:
    """Refuse a number that no bound can be computed for."""
    if not (allowed and not math.isnan(value)):
        raise InputError(f"The {name} cannot be used.", needs=needs, got=f"{value!r}", hint=hint)
