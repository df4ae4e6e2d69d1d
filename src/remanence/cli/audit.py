"""`remanence audit`: attack a model, and hold the result against a limit."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli.grouped import grouped
from remanence.cli.interruption import told
from remanence.cli.output import (
    AcceptUnproven,
    Json,
    as_called,
    compute_device,
    default_folder,
    exit_code,
    show_report,
    show_result,
)
from remanence.cli.output import policy as limit
from remanence.cli.run_folder import Play, Scale, interrupted, named_target, tell_reuse
from remanence.cli.tables import TableOptions, load_table_game, show_table
from remanence.cli.text import refuse_model
from remanence.exceptions import InputError

if TYPE_CHECKING:
    from remanence.auditing import AuditResult
    from remanence.results.verdict import Policy


def _from_settings(context: typer.Context, target: str | None) -> str | None:
    """The target, or the one that an audit.toml names; its other settings become the defaults."""
    if target is None or not target.endswith(".toml"):
        return target
    from remanence.cli.settings_file import read_settings

    settings = read_settings(Path(target))
    context.default_map = {**settings, **(context.default_map or {})}
    return settings["target"]


@grouped
def audit(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A built-in name (see `remanence targets`), path/to/file.py:factory, a fitted model's .skops file "
            "with --data and --label, a recorded run's folder, or an audit.toml with a target and options.",
            callback=_from_settings,
            is_eager=True,
            show_default=False,
        ),
    ] = None,
    *,
    play: Play,
    scale: Scale,
    table: TableOptions,
    show_reconstructions: Annotated[
        bool,
        typer.Option(
            "--show-reconstructions",
            help="Keep some targets and reconstructions, in a file for your eyes only. They are training data.",
        ),
    ] = False,
    accuse_at: Annotated[
        float, typer.Option(help="Of a recorded run: the p-value at which its claim counts as refuted.")
    ] = 0.001,
    accept_unproven: AcceptUnproven = False,
    as_json: Json = False,
) -> None:
    """Attack a model and compare the result with your limit.

    Writes audit.json for machines and report.html for people. Finished work is kept: an audit that was
    killed goes on with `remanence audit TARGET --resume FOLDER`.
    """
    from remanence.auditing import audit as run_audit
    from remanence.cli.loading import load_game
    from remanence.report.writing import write_report
    from remanence.scale.files import check_writable
    from remanence.scale.ranks import joined, rank, started_by_torchrun
    from remanence.targets import TARGETS

    target = named_target(target, scale.resume, "audit")
    refuse_model(target)
    policy, attacks, folder = limit(play.max_success), play.attacks(), play.out or default_folder(target)
    check_writable(folder)
    keep = show_reconstructions or target in TARGETS
    game = None
    if Path(target).is_dir():
        played_already = play.attack or play.trials or show_reconstructions
        result = as_called(
            _audit_recorded(Path(target), policy, play.seed, accuse_at, options=played_already)
        )
        path, report = result.save(folder, gallery=keep), write_report(result, folder, gallery=keep)
    else:
        # A factory may print; our own output stays clean.
        with contextlib.redirect_stdout(sys.stderr), joined(compute_device(play.device)) as place:
            game = load_table_game(target, table) if table.data else load_game(target)
            place = "cpu" if table.data else place
            if rank() > 0:  # learns with the others; the first one plays and writes
                run_audit(game, attacks, policy=policy, trials=1, seed=play.seed, device=place)
                raise typer.Exit
            options = {
                "command": "audit",
                "target": target,
                **play.stored(),
                "device": place.split(":")[0],
                "show_reconstructions": show_reconstructions,
                "accept_unproven": accept_unproven,
                **table.stored(),
            }
            run = scale.begin(game, options, folder, galleries=keep)
            with told(lambda: interrupted("audit", target, scale.place(folder))), run:
                result = run_audit(
                    game,
                    attacks,
                    policy=policy,
                    trials=play.trials,
                    seed=play.seed,
                    device=place,
                    target=target,
                    run=run,
                )
                result = as_called(result)
                path, report = result.save(folder, gallery=keep), write_report(result, folder, gallery=keep)
            tell_reuse(run)
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
    else:
        show_result(result, path)
        if table.data:
            show_table(result, game, folder, table, rows=show_reconstructions)
        show_report(report)
    # torchrun takes any other number for a crash of the rank; `remanence show` tells the verdict in its own.
    raise typer.Exit(0 if started_by_torchrun() else exit_code(result, accept_unproven))


def _audit_recorded(folder: Path, policy: Policy, seed: int, level: float, *, options: object) -> AuditResult:
    from remanence.games.recorded_runs.audit_run import audit_run

    if options:
        raise InputError(
            "A recorded run has been played already.",
            needs="a folder, a limit and a seed",
            got="--attack, --trials or --show-reconstructions",
            hint="leave them out; the canaries were chosen when the run was recorded",
        )
    return audit_run(folder, policy=policy, seed=seed, level=level)
