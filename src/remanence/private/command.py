"""`remanence run`: does a recorded training keep what it claims, and what can be told from it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.playing import Shared, default_folder, finish, policy


def run(
    folder: Annotated[Path, typer.Argument(help="The folder that `record` wrote while training ran.")],
    *,
    accuse_at: Annotated[
        float | None, "The p-value at which the claim of a training counts as refuted.", "0.001"
    ] = None,
    shared: Shared,
) -> None:
    """Judge a recorded training run: its claim, its canaries, and what no attack on it can exceed.

    docs/opacus.md shows how to record a run.
    """
    from remanence.private.audit_run import LEVEL, audit_run
    from remanence.scale.files import check_writable

    out = shared.out or default_folder(folder.name)
    check_writable(out)
    level = LEVEL if accuse_at is None else accuse_at
    result = audit_run(folder, policy=policy(shared.max_success), seed=shared.seed, level=level)
    finish(result, out, shared)
