"""Options of commands: a help text is enough to make one, and those that belong together are one frozen dataclass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import typer

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def options(panel: str | None = None) -> Callable[[type[T]], type[T]]:
    """A frozen dataclass whose fields are options, in a panel of the help."""

    def made(group: type[T]) -> type[T]:
        group.panel = panel  # pyright: ignore[reportAttributeAccessIssue]
        return dataclass(frozen=True)(group)

    return made


def stored(*groups: Any) -> dict[str, Any]:
    """What was given of these options, as a run folder keeps it."""
    given = {name: value for group in groups for name, value in vars(group).items() if value is not None}
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer takes it: a dataclass among its parameters is an option for each field, a text is its help.

    Options of one dataclass arrive together again.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    spelled: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            spelled += _options(groups[name])
        else:
            spelled.append(_option(name, hints[name], parameter.default, None))

    @functools.wraps(command)
    def gathered(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    gathered.__signature__ = inspect.Signature(spelled)  # pyright: ignore[reportAttributeAccessIssue]
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in spelled}
    return gathered


def _options(group: Any) -> Iterator[inspect.Parameter]:
    """An option for each field."""
    types = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield _option(field.name, types[field.name], default, group.panel)


def _option(name: str, kind: Any, default: Any, panel: str | None) -> inspect.Parameter:
    """One of them. Texts are its names, what it is for, and what is shown as its default, in this order.

    What is off by default has no option to turn it off.
    """
    if get_origin(kind) is Annotated:
        value, *told = get_args(kind)
        option = copy(told[0])  # groups may share an option, each in its own panel
        if isinstance(option, str):
            names = [text for text in told if text.startswith("--") and " " not in text]
            purpose, *shown = told[len(names) :]
            if default is False and not names:
                names = [f"--{name.replace('_', '-')}"]
            option = typer.Option(*names, help=purpose, show_default=shown[0] if shown else True)
        option.rich_help_panel = panel
        kind = Annotated[value, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
