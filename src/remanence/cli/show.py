"""`remanence show`: a result that was stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.output import AcceptUnproven, exit_code, show_result


def show(
    run: Annotated[Path, typer.Argument(help="A results folder or its audit.json.")],
    accept_unproven: AcceptUnproven = False,
    as_json: Annotated[bool, "--json", "Print audit.json and nothing else."] = False,
) -> None:
    """Show a stored result again."""
    from remanence.auditing import AuditResult
    from remanence.results.storage import DOCUMENT

    result = AuditResult.load(run)
    if as_json:
        path = run / DOCUMENT if run.is_dir() else run
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
    else:
        show_result(result, run)
    raise typer.Exit(exit_code(result, accept_unproven))
