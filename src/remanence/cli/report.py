"""`remanence report`: a stored result for people, CI and auditors."""

from __future__ import annotations

from dataclasses import replace
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
    DOSSIER_HTML = "dossier-html"
    IN_TOTO = "in-toto"
    CYCLONEDX = "cyclonedx"
    EVAL_RESULTS = "eval-results"


Run = Annotated[Path, typer.Argument(help="A results folder or its audit.json.")]


def report(
    run: Run,
    form: Annotated[
        Format, "--format", "For people, a review, CI, a model card, an auditor, or another tool."
    ] = Format.HTML,
    out: Annotated[
        Path | None, "File to write.", "report.html beside audit.json; other formats are printed"
    ] = None,
    open_it: Annotated[bool, "--open", "Open the HTML report in a browser."] = False,
    title: Annotated[str | None, "What the page calls the audited model."] = None,
    owner: Annotated[str | None, "Who answers for the release."] = None,
    purpose: Annotated[str | None, "What the model is for."] = None,
    data_description: Annotated[str | None, "What the data are, and how many people they are about."] = None,
) -> None:
    """Turn a stored result into a report: HTML for people, other formats for machines.

    The exit code is 0 whatever the verdict is; `audit` and `show` carry the verdict in theirs. No report
    contains training data. --title, --owner, --purpose and --data-description fill in this report only:
    to keep them with the result, write them under [about] in audit.toml.
    """
    from remanence.auditing import AuditResult
    from remanence.report.formats import FORMATS
    from remanence.report.writing import write_report
    from remanence.scale.files import write_files

    if open_it and form is not Format.HTML:
        raise InputError(
            "Only a page can be opened.", needs="--format html", got=f"--format {form}", hint="drop --open"
        )
    said = {"title": title, "owner": owner, "purpose": purpose, "data": data_description}
    result = AuditResult.load(run)
    result = replace(result, about={**result.about, **{name: text for name, text in said.items() if text}})
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
