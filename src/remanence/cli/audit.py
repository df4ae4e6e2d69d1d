"""`remanence audit`: a built-in target, or a game of your own."""

from __future__ import annotations

from typing import Annotated

import typer

from remanence.cli.grouped import options
from remanence.cli.playing import play
from remanence.cli.run_folder import Scale, Shared, named_target


@options()
class Attacking:
    """Who attacks, how often, and what is kept."""

    attack: Annotated[list[str] | None, "An attack by name; repeatable. Default: all that fit."] = None
    trials: Annotated[int | None, "How many targets to attack.", "the game's own"] = None
    show_reconstructions: Annotated[
        bool, "Keep some targets and reconstructions, in a file for your eyes only. They are training data."
    ] = False


def audit(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A built-in name (see `remanence targets`), path/to/file.py:factory, or an audit.toml with the "
            "options of this or another command."
        ),
    ] = None,
    *,
    attacking: Attacking,
    shared: Shared,
    scale: Scale,
) -> None:
    """Attack a model and compare the result with your limit.

    Writes audit.json for machines and report.html for people. Finished work is kept: an audit that was killed goes on
    with `remanence audit TARGET --resume FOLDER`. Files are audited by a command of their own: `remanence table`,
    `head`, `update`, `text` or `run`.
    """
    from remanence.cli.loading import load_game
    from remanence.core.catalogue import load_attack
    from remanence.targets import TARGETS

    target = named_target(target, shared.resume, "audit")
    attacks = [load_attack(name) for name in attacking.attack] if attacking.attack else None
    play(
        lambda _: load_game(target),
        shared,
        command="audit",
        target=target,
        stored=vars(attacking),
        attacks=attacks,
        trials=attacking.trials,
        scale=scale,
        keep=attacking.show_reconstructions or target in TARGETS,
    )
