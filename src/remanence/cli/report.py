"""Commands that show what was found, and what noise means: report, compare, explore."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.grouped import grouped
from remanence.cli.training_options import Batching
from remanence.exceptions import InputError


class Format(StrEnum):
    """Kinds of report."""

    HTML = "html"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"
    MODEL_CARD = "model-card"
    DOSSIER = "dossier"


Run = Annotated[Path, typer.Argument(help="A results folder or its audit.json.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(report)
    app.command()(compare)
    app.command()(explore)


def report(
    run: Run,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="For people, a review, CI, a model card, or an auditor.",
        ),
    ] = (Format.HTML),
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write.", show_default="report.html beside audit.json; other formats are printed"
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the HTML report in a browser.")] = False,
) -> None:
    """Turn a stored result into a report: HTML for people, other formats for machines.

    The exit code is 0 whatever the verdict is; `audit` and `show` carry the verdict in theirs. No report
    contains training data.
    """
    from remanence.auditing import AuditResult
    from remanence.exceptions import InputError
    from remanence.report.formats import FORMATS
    from remanence.report.writing import write_report
    from remanence.scale.files import write_files

    if open_it and form is not Format.HTML:
        raise InputError(
            "Only a page can be opened.", needs="--format html", got=f"--format {form}", hint="drop --open"
        )
    result = AuditResult.load(run)
    if form is Format.HTML and out is None:
        out = write_report(result, run if run.is_dir() else run.parent, gallery=result.gallery is not None)
    else:
        text = FORMATS[form](result)
        if out is None:
            typer.echo(text, nl=not text.endswith("\n"))
            return
        write_files(out.parent, {out.name: text.encode()})
    typer.echo(f"Report: {out}")
    if open_it:
        typer.launch(str(out.resolve()))


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


@grouped
def explore(
    batching: Batching,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write one file that needs no server: the same answers, on a grid.", show_default=False
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 is a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open a page on which you drag the noise and watch the risk; needs no model and no data.

    It answers on this machine alone. Give the settings of your training to start from them. A second tab
    shows an audit.json that you drop onto it.
    """
    settings = batching.solved()
    start = {
        name: f"{value!r}"
        for name, value in (("sample_rate", settings.sample_rate), ("steps", settings.steps))
        if value is not None
    }
    if export is not None:
        if start:
            raise InputError(
                "A page without a server has settings of its own.",
                needs="--export alone, or the settings of a training",
                got=f"--export with {', '.join(start)}",
                hint="leave --export out; the page's address keeps its settings",
            )
        from remanence.report.explore.static_page import write_twin

        write_twin(export)
        typer.echo(f"Page: {export}")
        return
    from remanence.cli.interruption import let_go
    from remanence.report.explore.serving import serve

    let_go()  # to the server, which ends when it is told to

    def ready(address: str) -> None:
        address += "#" + "&".join(f"{name}={value}" for name, value in start.items()) if start else ""
        typer.echo(f"Page: {address} (Ctrl+C ends it)")
        if settings.derives:
            typer.echo(settings.echoed())
        if browser:
            typer.launch(address)

    serve(port=port, ready=ready)
