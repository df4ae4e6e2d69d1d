"""Every attack by its name: the catalogue fills itself from the classes."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import walk_packages

from remanence import attacks
from remanence.attacks.attack import Attack
from remanence.exceptions import InputError
from remanence.scale.user_code import call_factory


@cache
def catalogue() -> dict[str, type[Attack]]:
    """The attacks that come with this package: the classes under `remanence.attacks` that have an `info` of their own.

    >>> catalogue()["closed-form"].info.sees
    'weights'
    """
    modules = (import_module(found.name) for found in walk_packages(attacks.__path__, f"{attacks.__name__}."))
    classes = (each for module in modules for each in vars(module).values() if isinstance(each, type))
    return {each.info.name: each for each in classes if issubclass(each, Attack) and "info" in vars(each)}


def load_attack(name: str) -> Attack:
    """The attack of this name, with its default settings; or the one that `path/to/file.py:Class` makes.

    Packages add theirs by an entry point of the group `remanence.attacks`.

    >>> load_attack("closed-form")
    ClosedForm()
    """
    path, colon, factory = name.rpartition(":")
    if name in catalogue():
        return catalogue()[name]()
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
    if not isinstance(found, Attack):
        raise InputError(
            f"{name} is no attack.",
            needs="a class that derives from remanence.Attack and needs no arguments",
            got=type(found).__name__,
            hint="docs/how-to/new-attack.md shows one",
        )
    return found
