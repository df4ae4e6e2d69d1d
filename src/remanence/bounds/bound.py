"""γ, the success that no attack can exceed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from remanence.bounds.engine.bracket import Bracket
from remanence.core.checks import exactly_one
from remanence.core.exceptions import InputError
from remanence.core.references import Reference

NOT_MET = "NOT MET: "  # prefix of an assumption known not to hold; the bound is then 1

Values = Any  # a float, or an array for several baselines


@dataclass(frozen=True)
class Bound:
    """A proven ceiling on the success of any attack in one game, and the assumptions of the proof.

    Logarithms throughout, to allow for baselines of 10^-2000. `log_success` is never below
    log γ, and `log_complement` never above log(1 − γ). If a lower bound is known, `log_lower` is
    the success of an explicit test. Numbers are floats, or arrays for several baselines.
    """

    name: str  # its name in a report
    log_success: Values  # log γ, rounded up
    assumptions: tuple[str, ...]  # of the proof
    reference: Reference  # where the proof is
    log_baseline: Values = None  # the log κ that it was computed for
    log_complement: Values = None  # log(1 − γ), rounded down
    log_lower: Values = None  # the success of an explicit test
    converged: Values = True  # whether the bracket is as narrow as requested
    on_average: bool = False  # over random records: particular ones may be easier without contradiction
    whose: str = "one record"  # who it is about: a record, a person, people
    recipe: dict[str, Any] | None = field(default=None, compare=False, repr=False)  # for `bounds.recompute`

    @property
    def success(self) -> Values:
        """The ceiling as a share, rounded up."""
        return _plain(np.minimum(1.0, np.nextafter(np.exp(self.log_success), 2.0)))

    @property
    def lower(self) -> Values:
        """The success of an explicit test, rounded down; None if no such test is known."""
        if self.log_lower is None:
            return None
        return _plain(np.maximum(0.0, np.nextafter(np.exp(self.log_lower), -1.0)))

    @property
    def baseline(self) -> Values:
        """κ as a share."""
        return None if self.log_baseline is None else _plain(np.exp(self.log_baseline))

    @property
    def advantage(self) -> Values:
        """(γ − κ) / (1 − κ), the advantage over a guess (Hayes et al. 2023, Equation 4)."""
        return None if self.log_baseline is None else (self.success - self.baseline) / (1 - self.baseline)


@dataclass(frozen=True)
class Baselines:
    """One κ or several, as natural logarithms."""

    logs: tuple[float, ...]
    single: bool

    def bound(
        self, name: str, brackets: Sequence[Bracket], assumptions: tuple[str, ...], reference: Reference
    ) -> Bound:
        """Combine the brackets of all baselines into one bound; no ceiling is below its baseline or above 1.

        γ increases with κ, so a ceiling at a larger κ holds at a smaller one, and ceilings increase by construction.
        """
        columns = [
            replace(bracket, log_upper=min(0.0, max(bracket.log_upper, log)))
            for bracket, log in zip(brackets, self.logs, strict=True)
        ]
        rising = sorted(range(len(columns)), key=lambda index: self.logs[index])
        for smaller, larger in reversed(list(pairwise(rising))):
            columns[smaller] = _no_higher(columns[smaller], columns[larger])
        for smaller, larger in pairwise(rising):
            columns[larger] = _no_lower(columns[larger], columns[smaller])

        def column(of: str) -> Values:
            values = [getattr(bracket, of) for bracket in columns]
            if None in values or max(values) == -math.inf:
                return None
            return values[0] if self.single else np.array(values)

        return Bound(
            name=name,
            log_success=column("log_upper"),
            assumptions=assumptions,
            reference=reference,
            log_baseline=self.logs[0] if self.single else np.array(self.logs),
            log_complement=column("log_complement_lower"),
            log_lower=column("log_lower"),
            converged=column("converged"),
        )


def _no_higher(one: Bracket, other: Bracket) -> Bracket:
    """The bracket at one baseline, tightened by the upper bound at a larger one."""
    upper = min(one.log_upper, other.log_upper)
    return replace(
        one,
        log_upper=upper,
        log_complement_lower=max(one.log_complement_lower, other.log_complement_lower),
        log_lower=min(one.log_lower, upper),
    )


def _no_lower(one: Bracket, other: Bracket) -> Bracket:
    """The bracket at one baseline, tightened by the explicit test at a smaller one."""
    return replace(one, log_lower=min(max(one.log_lower, other.log_lower), one.log_upper))


def _plain(values: Values) -> Values:
    return values.item() if np.ndim(values) == 0 else values


def read_baselines(baseline: Values, log_baseline: Values) -> Baselines:
    """Baselines from shares or from natural logarithms.

    >>> read_baselines(0.1, None)
    Baselines(logs=(-2.3025850929940455,), single=True)
    """
    exactly_one({"baseline": baseline, "log_baseline": log_baseline}, "baseline=0.1: ten candidates")
    logarithms = log_baseline is not None
    given = numbers("baseline", log_baseline if logarithms else baseline, "baseline=0.1: ten candidates")
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


def numbers(name: str, values: object, hint: str) -> npt.NDArray[np.float64]:
    """A number, or a non-empty list or array of numbers."""
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        found = np.array([])
    if found.size == 0 or found.dtype.kind not in "fiu":
        raise InputError(
            f"The {name} cannot be used.", needs="a number, or several", got=f"{values!r:.80}", hint=hint
        )
    return found.astype(np.float64)
