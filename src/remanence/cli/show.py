"""`remanence show`: a result that was stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.output import AcceptUnproven, exit_code, show_result


def show(
    run: Annotated[Path, typer.Argument(help="A results folder or its audit.json.")],
    accept_unproven: AcceptUnproven = False,
) -> None:
    """Show a stored result again."""
    from remanence.auditing import AuditResult

    result = AuditResult.load(run)
    show_result(result, run)
    raise typer.Exit(exit_code(result, accept_unproven))
