"""Every attack by its name. The catalogue fills itself from the classes, and reads without loading them (and torch)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from remanence import references
from remanence.checks import instance
from remanence.exceptions import InputError
from remanence.references import Reference
from remanence.scale.user_code import call_factory

if TYPE_CHECKING:
    from remanence.attacks.attack import Attack


@dataclass(frozen=True)
class AttackInfo:
    """The facts that `remanence attacks` prints and a report cites."""

    name: str
    summary: str
    needs: str
    sees: str
    reference: Reference
    on_request: bool = False  # so slow that an audit runs it only when it is named
    home: str = ""  # module:class; the catalogue knows it


@cache
def catalogue() -> dict[str, AttackInfo]:
    """The attacks that come with this package: every class under `remanence.attacks` that has an `info`.

    >>> catalogue()["closed-form"].home
    'remanence.attacks.glm.closed_form:ClosedForm'
    """
    return {info.name: info for info in _written()}


def _written() -> Iterator[AttackInfo]:
    """What the classes say of themselves, from their source: importing them would take seconds."""
    room = Path(__file__).parent
    terms = {**vars(references), AttackInfo.__name__: AttackInfo}
    for path in sorted(room.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module = ".".join(("remanence.attacks", *path.relative_to(room).with_suffix("").parts))
        nodes = ast.parse(text).body if "info: ClassVar[AttackInfo] = " in text else ()
        for owner in (node for node in nodes if isinstance(node, ast.ClassDef)):
            for line in owner.body:
                if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "info" and line.value:
                    info = eval(ast.unparse(line.value), terms)  # noqa: S307 - our own source
                    yield replace(info, home=f"{module}:{owner.name}")


def load_attack(name: str) -> Attack:
    """The attack of this name, with its default settings; or the one that `path/to/file.py:Class` makes.

    Packages add theirs by an entry point of the group `remanence.attacks`.

    >>> load_attack("closed-form")
    ClosedForm()
    """
    from remanence.attacks.attack import Attack  # loads torch, which the list can do without

    if name in catalogue():
        module, _, class_name = catalogue()[name].home.partition(":")
        return getattr(import_module(module), class_name)()
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
    return found
