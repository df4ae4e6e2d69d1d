"""`remanence run`: does a recorded training match its claim, and what do its canaries show?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.playing import Judged, default_folder, finish, policy


def run(
    folder: Annotated[Path, typer.Argument(help="The folder that `record` wrote while training ran.")],
    *,
    shared: Judged,
) -> None:
    """Audit a recorded training run: its claim, its canaries, and its proven ceiling.

    docs/opacus.md shows how to record a run.
    """
    from remanence.private.audit_run import audit_run
    from remanence.scale.files import check_writable

    out = shared.out or default_folder(folder.name)
    check_writable(out)
    result = audit_run(folder, policy=policy(shared.max_success), seed=shared.seed)
    finish(result, out, shared)
