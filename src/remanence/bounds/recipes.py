"""How a bound was computed, in plain JSON, so that a stored ceiling can be recomputed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from remanence.bounds.bound import Bound
from remanence.bounds.engine.schedule import Segment
from remanence.bounds.person import Person
from remanence.core.exceptions import InputError

P = ParamSpec("P")

_MOST_NUMBERS = 10_000  # in one argument; longer ones are not stored
_KNOWN: dict[str, Callable[..., Bound]] = {}


def recomputable(function: Callable[P, Bound]) -> Callable[P, Bound]:
    """Attach to the bounds that a function returns the recipe of their computation."""
    signature = inspect.signature(function)
    _KNOWN[function.__name__] = function

    @wraps(function)
    def bounded(*args: P.args, **kwargs: P.kwargs) -> Bound:
        given = signature.bind(*args, **kwargs).arguments
        bound = function(*args, **kwargs)
        arguments = {
            name: _plain(value)
            for name, value in given.items()
            if value is not None and value is not signature.parameters[name].default
        }
        recipe = None
        if _count(arguments) <= _MOST_NUMBERS:
            recipe = {"function": function.__name__, "arguments": arguments}
        return replace(bound, recipe=recipe)

    return bounded


def recompute(recipe: Mapping[str, Any]) -> Bound:
    """Recompute the bound that a recipe describes. A recipe may come from a file, and is not trusted.

    A stored ceiling may state more assumptions than the recomputed one, never fewer.

    >>> from remanence import bounds
    >>> stored = bounds.dpsgd(1 / 100, noise_multiplier=1.1, sample_rate=0.01, steps=1000)
    >>> stored.recipe
    {'function': 'dpsgd', 'arguments': {'baseline': 0.01, 'noise_multiplier': 1.1, 'sample_rate': 0.01, 'steps': 1000}}
    >>> recompute(stored.recipe).log_success == stored.log_success
    True
    """
    try:
        function, arguments = _KNOWN[recipe["function"]], recipe["arguments"]
        read = {name: reader(arguments[name]) for name, reader in _READERS.items() if name in arguments}
        bound = function(**{**arguments, **read})
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(
            "The recipe of a bound cannot be followed.",
            needs=f"one of the functions {', '.join(sorted(_KNOWN))}, with its arguments",
            got=f"{str(recipe)[:200]} ({type(error).__name__}: {str(error)[:100]})",
            hint="the recipe of a Bound, as it was stored",
        ) from None
    return replace(bound, recipe={"function": recipe["function"], "arguments": dict(arguments)})


def _plain(value: Any) -> Any:
    """A value in JSON's types."""
    if is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in fields(value) if field.init and field.name != "cap")
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value


def _count(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if parts is None else sum(map(_count, parts))


def _schedule(value: Any) -> Segment | list[Segment]:
    return Segment(**value) if isinstance(value, dict) else [Segment(**each) for each in value]


_READERS: dict[str, Callable[[Any], Any]] = {"schedule": _schedule, "person": lambda value: Person(**value)}
