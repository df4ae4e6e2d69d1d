"""Options that several commands share, as one frozen dataclass each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters may be dataclasses: each field is an option, and they arrive together again.

    A field may be such a dataclass itself.
    """
    hints = get_type_hints(command, include_extras=True)
    spelled: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if is_dataclass(hints[name]):
            spelled += _options(hints[name])
        else:
            spelled.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
        parts = {name: _gathered(group, given) for name, group in groups.items()}
        command(**given, **parts)

    gathered.__signature__ = inspect.Signature(spelled)  # pyright: ignore[reportAttributeAccessIssue]
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in spelled}
    return gathered


def _options(group: Any) -> Iterator[inspect.Parameter]:
    """An option for each field, and for each field of those that are groups."""
    types = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind = types[field.name]
        if is_dataclass(kind):
            yield from _options(kind)
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _gathered(group: Any, given: dict[str, Any]) -> Any:
    """The group again, out of what was given for its options, which is taken away."""
    types = get_type_hints(group)
    return group(
        **{
            field.name: _gathered(types[field.name], given)
            if is_dataclass(types[field.name])
            else given.pop(field.name)
            for field in fields(group)
        }
    )
