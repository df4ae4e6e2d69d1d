"""Checks of settings: each returns the value, or raises an error that says what was needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from typing import Any, TypeGuard, TypeVar

from remanence.core.exceptions import InputError, MisfitError, RemanenceError

T = TypeVar("T")


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Whether it is a whole number of at least `least`."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def whole(
    name: str, value: object, *, least: int = 1, most: int | None = None, hint: str | None = None
) -> int:
    """A whole number from `least` to `most`.

    >>> whole("trials", 200)
    200
    >>> whole("trials", 0)
    Traceback (most recent call last):
    remanence.core.exceptions.InputError: trials cannot be used.
      needs: a whole number of at least 1
      got:   0
      try:   trials=1
    """
    if not is_whole(value, least) or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        raise _refusal(name, f"a whole number {wanted}", value, hint or f"{name}={least}")
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
    remanence.core.exceptions.InputError: sample_rate cannot be used.
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
        nearest = get_close_matches(str(value), list(map(str, allowed)), 1) or [str(allowed[0])]
        raise _refusal(name, f"one of {', '.join(map(str, allowed))}", value, nearest[0])
    return value


def instance(name: str, value: object, kind: type[T] | tuple[type[T], ...], needs: str, hint: str) -> T:
    """A value of this type.

    >>> instance("probes", 3, str, "a text", "'three'")
    Traceback (most recent call last):
    remanence.core.exceptions.InputError: probes cannot be used.
      needs: a text
      got:   int
      try:   'three'
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} cannot be used.", needs=needs, got=type(value).__name__, hint=hint)
    return value


def exactly_one(given: Mapping[str, object], hint: str) -> str:
    """The name of the only option that was given; refuse none or several.

    >>> exactly_one({"--texts": "a.jsonl", "--canaries": None}, "--texts train.jsonl")
    '--texts'
    >>> exactly_one({"--texts": None, "--canaries": None}, "--texts train.jsonl")
    Traceback (most recent call last):
    remanence.core.exceptions.InputError: Exactly one of --texts and --canaries must be given.
      needs: --texts or --canaries
      got:   none of them
      try:   --texts train.jsonl
    """
    there = [name for name, value in given.items() if value is not None]
    if len(there) != 1:
        *first, last = given
        raise InputError(
            f"Exactly one of {', '.join(first)} and {last} must be given.",
            needs=f"{', '.join(first)} or {last}",
            got=" and ".join(there) or "none of them",
            hint=hint,
        )
    return there[0]


def goes_with(name: str, value: object, other: str, there: object, hint: str) -> None:
    """Refuse a setting that is given without another one that it requires.

    >>> goes_with("--by", "sex", "--attribute", None, "--attribute smoker --by sex")
    Traceback (most recent call last):
    remanence.core.exceptions.InputError: --by needs --attribute.
      needs: --attribute with --by
      got:   --by alone
      try:   --attribute smoker --by sex
    """
    if value is not None and there is None:
        needs = f"{other} with {name}"
        raise InputError(f"{name} needs {other}.", needs=needs, got=f"{name} alone", hint=hint)


def same_columns(given: Iterable[Any], wanted: Iterable[Any], hint: str) -> None:
    """Refuse a table with missing or additional columns."""
    there, needed = [str(name) for name in given], [str(name) for name in wanted]
    missing = [name for name in needed if name not in there]
    unknown = [name for name in there if name not in needed]
    if missing or unknown:
        raise MisfitError(
            "The table has other columns.",
            needs=", ".join(needed)[:300],
            got=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"[:300],
            hint=hint,
        )


def shaped(name: str, values: Any, shape: tuple[int, ...], hint: str) -> None:
    """Refuse an array or a tensor of another shape.

    >>> import numpy as np
    >>> shaped("labels", np.zeros(3), (3,), "one label per row")
    """
    if tuple(values.shape) != tuple(shape):
        raise InputError(
            f"The {name} do not fit.",
            needs=f"shape {tuple(shape)}",
            got=f"shape {tuple(values.shape)}",
            hint=hint,
        )


def extra(module: str, extra: str, needs: str) -> Any:
    """Import a module of an optional dependency, or say which extra installs it."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(
            f"{module.split('.')[0]} is not installed.",
            needs=needs,
            got="an environment without it",
            hint=f"pip install '.[{extra}]' in a clone of the repository",
        ) from None


@contextmanager
def refusing(
    kinds: type[Exception] | tuple[type[Exception], ...], summary: str, *, needs: str, got: object, hint: str
) -> Iterator[None]:
    """Turn errors of these types, raised inside, into an `InputError` about `got` with their first line."""
    try:
        yield
    except RemanenceError:
        raise
    except kinds as error:
        raise InputError(summary, needs=needs, got=f"{got}: {brief(error)}", hint=hint) from None


def brief(error: BaseException) -> str:
    """An error's message, on one line.

    >>> brief(ValueError("no\\nyes")), brief(KeyError())
    ('no', 'KeyError')
    """
    told = getattr(error, "strerror", None) or str(error)
    return next(iter(told.splitlines()), type(error).__name__)[:200]


def _refusal(name: str, needs: str, value: object, hint: str) -> InputError:
    return InputError(f"{name} cannot be used.", needs=needs, got=repr(value), hint=hint)
