"""From the name of a target to a game."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from remanence.core.checks import instance
from remanence.core.exceptions import InputError
from remanence.protocol import AnyGame
from remanence.scale.user_code import call_factory
from remanence.targets import TARGETS


def load_game(target: str) -> AnyGame:
    """The built-in game of this name, or what `path/to/file.py:factory` returns."""
    if target in TARGETS:
        return TARGETS[target]()
    path, colon, factory = target.rpartition(":")
    if not colon and Path(target).suffix in (".skops", ".pkl", ".pickle", ".joblib"):
        raise InputError(
            "A model file needs the table that it was fitted on.",
            needs="--data with a .csv or .parquet file, and --label with its column",
            got=target,
            hint=f"remanence audit {target} --data train.csv --label outcome",
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
    hint = "return remanence.Game(...) or remanence.tables.sklearn.leave_one_out(...)"
    return instance(target, game, AnyGame, "a Game, a LeaveOneOut or a Membership", hint)
    return game
