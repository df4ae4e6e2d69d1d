"""Every attack by name, collected from the doors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from remanence.core.checks import instance
from remanence.core.doors import doors, load
from remanence.core.exceptions import InputError
from remanence.core.references import Reference
from remanence.scale.user_code import call_factory

if TYPE_CHECKING:
    from remanence.core.attack import Attack

_OBLIVIOUS = "remanence.core.oblivious:Oblivious"


@dataclass(frozen=True)
class AttackInfo:
    """The facts that `remanence attacks` prints and a report cites."""

    name: str
    summary: str
    needs: str
    sees: str
    reference: Reference
    on_request: bool = False  # so slow that an audit runs it only if named
    home: str = ""  # module:class; filled in by the catalogue


@cache
def catalogue() -> dict[str, AttackInfo]:
    """The attacks of every door, by name.

    >>> catalogue()["closed-form"].home
    'remanence.tables.glm.closed_form:ClosedForm'
    """
    homes = dict.fromkeys((_OBLIVIOUS, *(home for door in doors() for home in door.attacks)))
    found = [replace(load(home).info, home=home) for home in homes]
    return {info.name: info for info in found}


def usual_attacks() -> list[str]:
    """The names of the attacks that an audit runs by default, where they apply."""
    return [name for name, info in catalogue().items() if not info.on_request and info.home != _OBLIVIOUS]


def load_attack(name: str) -> Attack:
    """The attack of this name, or of `path/to/file.py:Class`, with its default settings.

    Packages register theirs through an entry point in the group `remanence.attacks`.

    >>> load_attack("closed-form")
    ClosedForm()
    """
    from remanence.core.attack import Attack

    if name in catalogue():
        return load(catalogue()[name].home)()
    path, colon, factory = name.rpartition(":")
    if colon:
        found = call_factory(Path(path), factory, "an attack")
    else:
        elsewhere = {entry.name: entry for entry in entry_points(group="remanence.attacks")}
        if name not in elsewhere:
            known = [*catalogue(), *elsewhere]
            close = get_close_matches(name, known, 1)
            raise InputError(
                f"There is no attack named {name!r}.",
                needs=f"{', '.join(known)}; or path/to/file.py:Class",
                got=name,
                hint=f"--attack {close[0]}" if close else "`remanence attacks` describes each",
            )
        found = elsewhere[name].load()()
    needs = "a class that derives from remanence.Attack and needs no arguments"
    return instance(name, found, Attack, needs, "docs/how-to/new-attack.md shows one")
