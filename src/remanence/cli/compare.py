"""`remanence compare`: what changed between two results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    before: Annotated[Path, typer.Argument(help="The earlier result.")],
    after: Annotated[Path, typer.Argument(help="The later one.")],
) -> None:
    """Say what changed between two results, as a Markdown table.

    The exit code is 1 if the verdict, an attack (its interval lies above the earlier one) or the ceiling
    got worse.
    """
    from remanence.auditing import AuditResult
    from remanence.report.comparison import compare as hold_against

    found = hold_against(AuditResult.load(before), AuditResult.load(after))
    typer.echo(found.markdown(), nl=False)
    raise typer.Exit(1 if found.worse else 0)
