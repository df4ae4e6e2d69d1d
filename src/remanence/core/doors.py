"""The kinds of release that can be audited. Each is a folder that no other module imports.

Doors are discovered through entry points in the group `remanence.doors`, so other packages can add their own.
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
    """One kind of release: its commands, attacks, built-in targets and parts of the report."""

    name: str
    commands: tuple[str, ...] = ()  # functions that become commands
    attacks: tuple[str, ...] = ()  # classes that derive from Attack
    targets: tuple[str, ...] = ()  # functions without arguments that return a game
    findings: Mapping[str, str] = field(default_factory=dict)  # classes by their kind in audit.json
    sections: str = ""  # a function from a result to sections of the annex
    caveats: str = ""  # a module whose constants are caveats
    hashed: Mapping[str, str] = field(default_factory=dict)  # names in audit.json, and what is hashed
    files: Mapping[str, str] = field(default_factory=dict)  # endings, or names within a folder, and commands
    moved: Mapping[str, str] = field(default_factory=dict)  # retired commands and options, and replacements


@cache
def doors() -> tuple[Door, ...]:
    """All installed doors, sorted by the names of their entry points."""
    found = {entry.name: entry for entry in entry_points(group="remanence.doors")}
    return tuple(found[name].load() for name in sorted(found))


def load(home: str) -> Any:
    """The object named by `module:attribute`.

    >>> load("math:tau") > 6
    True
    """
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)
