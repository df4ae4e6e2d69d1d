"""`remanence run`: does a recorded training match its claim, and what do its canaries show?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.playing import Shared, default_folder, finish, policy


def run(
    folder: Annotated[Path, typer.Argument(help="The folder that `record` wrote while training ran.")],
    *,
    accuse_at: Annotated[
        float | None, "The p-value at or below which the training's claim counts as refuted.", "0.001"
    ] = None,
    shared: Shared,
) -> None:
    """Audit a recorded training run: its claim, its canaries, and its proven ceiling.

    docs/opacus.md shows how to record a run.
    """
    from remanence.private.audit_run import LEVEL, audit_run
    from remanence.scale.files import check_writable

    out = shared.out or default_folder(folder.name)
    check_writable(out)
    level = LEVEL if accuse_at is None else accuse_at
    result = audit_run(folder, policy=policy(shared.max_success), seed=shared.seed, level=level)
    finish(result, out, shared)
