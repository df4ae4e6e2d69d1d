"""Stored results: `remanence show`, `report`, `compare` and `verify`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from remanence.cli.playing import AcceptUnproven, AsJson, exit_code, manifest_settings, show_result
from remanence.core.exceptions import InputError
from remanence.core.plain_text import plain

if TYPE_CHECKING:
    from remanence.auditing import AuditResult


Run = Annotated[Path, typer.Argument(help="A results folder or its audit.json.")]


def show(run: Run, accept_unproven: AcceptUnproven = False, as_json: AsJson = False) -> None:
    """Show a stored result again."""
    from remanence.auditing import AuditResult
    from remanence.results.storage import located

    result = AuditResult.load(run)
    if as_json:
        typer.echo(located(run).read_text(encoding="utf-8"), nl=False)
    else:
        show_result(result, run)
    raise typer.Exit(exit_code(result, accept_unproven))


Format = Literal["html", "markdown", "junit", "sarif", "model-card", "dossier", "dossier-html"]


def report(
    run: Run,
    form: Annotated[Format, "--format", "For people, a review, CI, a model card, or an auditor."] = "html",
    out: Annotated[
        Path | None, "File to write.", "report.html next to audit.json; other formats are printed"
    ] = None,
    open_it: Annotated[bool, "--open", "Open the HTML report in a browser."] = False,
    title: Annotated[str | None, "What the page calls the audited model."] = None,
    owner: Annotated[str | None, "The person responsible for the release."] = None,
    purpose: Annotated[str | None, "What the model is for."] = None,
    data_description: Annotated[str | None, "A description of the data, with the number of people."] = None,
) -> None:
    """Turn a stored result into a report: HTML for people, other formats for machines.

    The exit code is 0 whatever the verdict is; `audit` and `show` carry the verdict in theirs. No report
    contains training data. --title, --owner, --purpose and --data-description fill in this report only:
    to keep them with the result, write them under [about] in audit.toml.
    """
    from remanence.auditing import AuditResult
    from remanence.report.writing import FORMATS, write_report
    from remanence.results.storage import located
    from remanence.scale.files import write_files

    if open_it and form != "html":
        raise InputError(
            "Only a page can be opened.", needs="--format html", got=f"--format {form}", hint="drop --open"
        )
    said = {"title": title, "owner": owner, "purpose": purpose, "data": data_description}
    result = AuditResult.load(run)
    result = replace(result, about={**result.about, **{name: text for name, text in said.items() if text}})
    if form == "html" and out is None:
        out = write_report(result, located(run).parent, gallery=result.gallery is not None)
    else:
        text = FORMATS[form](result)
        if out is None:
            typer.echo(text, nl=not text.endswith("\n"))
            return
        if out.is_dir():
            name = "report.html" if form == "html" else f"report-{form}"
            raise InputError(
                "The report cannot be written.",
                needs="a file to write",
                got=f"{out}, a folder",
                hint=f"--out {out / name}",
            )
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
    from remanence.report import markdown

    found = markdown.compare(AuditResult.load(before), AuditResult.load(after))
    typer.echo(found.markdown(), nl=False)
    raise typer.Exit(1 if found.worse else 0)


def verify(
    run: Run,
    target: Annotated[
        str | None,
        "The target again: its data are compared with the result's, and one unit of the run folder is "
        "played again, bit for bit.",
    ] = None,
) -> None:
    """Compute a stored result's counts, intervals, ceilings and verdict again, and refuse it if they differ.

    Exit code 0 where all that was asked for holds, whatever the verdict is, and 2 where it does not.
    """
    from remanence.auditing import AuditResult
    from remanence.report import words
    from remanence.results.storage import located
    from remanence.results.verdict import Verdict
    from remanence.results.verification import verified

    result = AuditResult.load(run)
    checked = verified(result)
    if checked.wrong:
        raise InputError(
            "The result contradicts itself.",
            needs="counts, intervals, ceilings and a verdict that follow from one another",
            got="; ".join(checked.wrong[:3]),
            hint="audit again, and do not rely on this result",
        )
    unsure = checked.open if target is None else checked.unknown
    if unsure and result.verdict is Verdict.PROTECTED:
        again = f"remanence verify {shlex.quote(str(run))} --target TARGET"
        raise InputError(
            "PROTECTED was not verified.",
            needs="every ceiling and finding that it rests on, computed again",
            got="; ".join(unsure[:3]),
            hint="verify where that part is installed"
            if checked.unknown
            else f"{again}, whose ceilings are compared with the stored ones",
        )
    if target is None:
        more = words.unchecked(result).replace(" RUN ", f" {shlex.quote(str(run))} ")
    else:
        more = _played_again(located(run).parent, target, result)
    typer.echo(f"Verified: {words.recounted(result, checked)}\n{more}")


def _played_again(folder: Path, target: str, result: AuditResult) -> str:
    """Compare the data of a target with the result's, and the units of the run with what they are now."""
    import shutil
    import tempfile

    from remanence.cli.loading import load_game
    from remanence.core.catalogue import load_attack
    from remanence.game import play
    from remanence.protocol import planned
    from remanence.scale.journal import Journal
    from remanence.scale.run import Run
    from remanence.scale.seeds import Draws

    game, best = load_game(target), result.strongest
    data, stored = game.fingerprints(), result.subject["sha256"]
    if data != stored:
        names = sorted(name for name in data.keys() | stored.keys() if data.get(name) != stored.get(name))
        raise _differs("The result was made from other data.", ", ".join(names))
    proven, told = ([(b.name, float(b.log_success)) for b in held.bounds] for held in (game, result))
    if proven != told:
        raise _differs("The target proves other ceilings.", f"{proven}, stored: {told}"[:300])
    if ":" in best.attack:  # a stored name may not have a file executed
        raise _differs("The attack cannot be played again.", f"{best.attack}, which is not a name")
    options = Journal(folder).manifest()["settings"].get("options", {})
    device, attack = options.get("device", "cpu"), load_attack(best.attack)
    with tempfile.TemporaryDirectory() as place:  # a copy: looking at a result does not change it
        run = Run(
            journal=Journal(shutil.copytree(folder, Path(place) / "run", symlinks=True)),
            unit_trials=options.get("unit_trials"),
            galleries=bool(options.get("show_reconstructions")) or ":" not in target,
            settings=manifest_settings(game, {**options, "target": target}),
            resume=True,
        )
        plan = planned(game.to(device), attack, options.get("trials"), Draws(result.seed, device), run)
        there = Journal(folder).finished()
        # A stored number of trials may be huge, so this ends at the first unit that is missing.
        recorded = next((n for n in range(len(plan)) if plan.key(n) not in there), len(plan))
        if recorded < len(plan):
            got = f"unit {recorded} of {best.attack} is not recorded for this code and these settings"
            raise _differs("The run cannot be replayed.", got)
        with run:
            again = play(
                game, attack, trials=options.get("trials"), seed=result.seed,
                confidence=best.main.confidence, device=device, run=run,
            )  # fmt: skip
    rates = [(each.main, each.control, each.baseline) for each in (again, best)]
    if rates[0] != rates[1]:
        got = "; stored: ".join(", ".join(map(str, each)) for each in rates)
        raise _differs("The units of the run give other rates.", got)
    units = f"Units of {plain(best.attack)}: {recorded} counted again, one of them played again, the same."
    return f"Data: the same. {units}"


def _differs(summary: str, got: str) -> InputError:
    return InputError(
        summary,
        needs="the target, the code and the run folder that the result was made with",
        got=got,
        hint="leave --target out to check only that the result is consistent",
    )
