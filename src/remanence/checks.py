"""One way to check a setting: the value comes back, or a sentence says what was needed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeGuard, TypeVar

from remanence.exceptions import InputError

T = TypeVar("T")


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Whether it is a whole number of at least so much."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: object, above: float = -math.inf) -> TypeGuard[float]:
    """Whether it is a finite number, and more than so much."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return math.isfinite(value) and float(value) > above


def whole(name: str, value: object, *, least: int = 1, hint: str | None = None) -> int:
    """A whole number of at least so much.

    >>> whole("trials", 200)
    200
    >>> whole("trials", 0)
    Traceback (most recent call last):
    remanence.exceptions.InputError: trials cannot be used.
      needs: a whole number of at least 1
      got:   0
      try:   trials=1
    """
    if not is_whole(value, least):
        raise _refusal(name, f"a whole number of at least {least}", value, hint or f"{name}={least}")
    return int(value)


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    hint: str = "a number in that range",
) -> float:
    """A finite number within limits: `above` and `below` are excluded, `least` and `most` are allowed.

    >>> number("sample_rate", 0.5, above=0, most=1)
    0.5
    >>> number("sample_rate", 0, above=0, most=1)
    Traceback (most recent call last):
    remanence.exceptions.InputError: sample_rate cannot be used.
      needs: a number above 0 and at most 1
      got:   0
      try:   a number in that range
    """
    limits = (("above", above), ("of at least", least), ("below", below), ("at most", most))
    wanted = "a number " + " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
    allowed = (
        is_number(value)
        and (above is None or value > above)
        and (least is None or value >= least)
        and (below is None or value < below)
        and (most is None or value <= most)
    )
    if not is_number(value) or not allowed:
        raise _refusal(name, wanted, value, hint)
    return float(value)


def one_of(name: str, value: T, choices: Iterable[T]) -> T:
    """One of a few values.

    >>> one_of("method", "best", ["best", "worst"])
    'best'
    """
    allowed = list(choices)
    if value not in allowed:
        raise _refusal(name, f"one of {', '.join(map(str, allowed))}", value, f"{name}={allowed[0]}")
    return value


def _refusal(name: str, needs: str, value: object, hint: str) -> InputError:
    return InputError(f"{name} cannot be used.", needs=needs, got=repr(value), hint=hint)
