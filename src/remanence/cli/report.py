"""`remanence report`: a stored result for people, CI and auditors."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from remanence.core.exceptions import InputError


class Format(StrEnum):
    """Kinds of report."""

    HTML = "html"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"
    MODEL_CARD = "model-card"
    DOSSIER = "dossier"


Run = Annotated[Path, typer.Argument(help="A results folder or its audit.json.")]


def report(
    run: Run,
    form: Annotated[
        Format, "--format", "For people, a review, CI, a model card, or an auditor."
    ] = Format.HTML,
    out: Annotated[
        Path | None, "File to write.", "report.html beside audit.json; other formats are printed"
    ] = None,
    open_it: Annotated[bool, "--open", "Open the HTML report in a browser."] = False,
) -> None:
    """Turn a stored result into a report: HTML for people, other formats for machines.

    The exit code is 0 whatever the verdict is; `audit` and `show` carry the verdict in theirs. No report
    contains training data.
    """
    from remanence.auditing import AuditResult
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
