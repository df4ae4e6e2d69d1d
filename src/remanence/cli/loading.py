"""From the name of a target to a game."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from remanence.core.checks import instance
from remanence.core.doors import doors
from remanence.core.exceptions import InputError
from remanence.protocol import AnyGame
from remanence.scale.user_code import call_factory, functions_in
from remanence.targets import TARGETS


def load_game(target: str) -> AnyGame:
    """The built-in game of this name, or what `path/to/file.py:factory` returns."""
    if target in TARGETS:
        return TARGETS[target]()
    path, colon, factory = target.rpartition(":")
    known = [each for door in doors() for each in door.files.items()]  # files and folders with a command
    fits = [command for name, command in known if Path(target).suffix == name or Path(target, name).is_file()]
    if not colon and fits:
        raise InputError(
            "This kind of file has its own command.",
            needs="a built-in name or path/to/file.py:factory",
            got=target,
            hint=f"remanence {fits[0].format(target)}",
        )
    if not colon and Path(target).suffix == ".py":
        there = functions_in(Path(target))
        raise InputError(
            "The function that makes the game is not named.",
            needs="a Python file, a colon, and the name of a function without arguments",
            got=f"{target}, which has the functions {', '.join(there)}"
            if there
            else f"{target}, without functions",
            hint=f"remanence audit {target}:{there[0] if there else 'factory'}",
        )
    if not colon:
        close = get_close_matches(target, TARGETS, 1)
        raise InputError(
            f"There is no target named {target!r}.",
            needs=f"one of {', '.join(TARGETS)}; or path/to/file.py:factory",
            got=target,
            hint=f"remanence audit {close[0]}" if close else "`remanence targets` describes each",
        )
    game = call_factory(Path(path), factory, "a game")
    hint = "return remanence.Game(...); docs/how-to/publish-a-model.md shows one for each kind of release"
    return instance(target, game, AnyGame, "a game: a Game, or another class that derives from AnyGame", hint)
