"""Options that several commands share, as one frozen dataclass each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters may be dataclasses: each field is an option, and they arrive together again."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    spelled: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            spelled.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        types = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = parameter.empty if field.default is MISSING else field.default
            spelled.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name]
                )
            )

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        parts = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **parts)

    gathered.__signature__ = inspect.Signature(spelled)  # pyright: ignore[reportAttributeAccessIssue]
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in spelled}
    return gathered
