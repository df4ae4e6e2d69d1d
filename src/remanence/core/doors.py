"""The kinds of release that can be audited. Each is a folder that the rest of the house does not know.

A door is found by an entry point of the group `remanence.doors`, so that one from another package works too.
Everything in it is named as `module:attribute` and loaded when it is first needed, so that the command line starts
quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, final


@final
@dataclass(frozen=True)
class Door:
    """One kind of release: its command, its attacks, its built-in targets, and its words for views of a result."""

    name: str
    commands: tuple[str, ...] = ()  # functions that the command line lists
    attacks: tuple[str, ...] = ()  # classes that derive from Attack
    targets: tuple[str, ...] = ()  # functions without arguments that return a game
    findings: Mapping[str, str] = field(
        default_factory=dict
    )  # classes of findings by their kinds in audit.json
    sections: str = ""  # a function from a result to sections of the annex
    caveats: str = ""  # a module whose constants are caveats
    moved: Mapping[str, str] = field(
        default_factory=dict
    )  # old commands, old options of `audit`: how to say it now


@cache
def doors() -> tuple[Door, ...]:
    """All doors that are installed, by the names of their entry points."""
    found = {entry.name: entry for entry in entry_points(group="remanence.doors")}
    return tuple(found[name].load() for name in sorted(found))


def load(home: str) -> Any:
    """What a `module:attribute` names.

    >>> load("math:tau") > 6
    True
    """
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)
