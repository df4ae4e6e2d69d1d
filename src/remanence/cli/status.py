"""`remanence status`: how far a run has come."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.output import console
from remanence.cli.run_folder import continuation
from remanence.core.plain_text import plain

if TYPE_CHECKING:
    from remanence.scale.journal import RunStatus


def status(
    run: Annotated[str, typer.Argument(help="A run folder or its URL.")],
    as_json: Annotated[bool, "--json", "Print it for a machine."] = False,
) -> None:
    """Show what a run has done and what is left, also after a kill."""
    from remanence.scale.journal import read_status

    found = read_status(run)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "done": found.done, "left": found.left}, indent=2))
        return
    _show(found)


def _show(found: RunStatus) -> None:
    from rich.table import Table

    out = console()
    table = Table("work", title=plain(found.place), title_justify="left")
    for heading in ("done", "of"):
        table.add_column(heading, justify="right")
    for work in found.works:
        table.add_row(plain(work.name), str(work.done), str(work.units))
    out.print(table)
    lines = [f"Units: {found.done} done, {found.left} left."]
    if found.finished:
        lines.append(f"Finished {plain(found.finished)}.")
    elif found.at_work:
        lines.append("A process is at work on it.")
    else:
        options = found.settings.get("options", {})
        again = "--backbone BACKBONE" if "head" in options else "" if "model" in options else None
        target = options.get("target", "TARGET")
        command = continuation(options.get("command", "audit"), target, found.place, again)
        nobody = "If nobody is at work on it, " if found.at_work is None else "Nobody is at work on it. "
        lines.append(f"{nobody}`{plain(command)}` continues.")
    out.print("\n".join(lines), highlight=False, soft_wrap=True)
