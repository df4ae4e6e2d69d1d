"""The command line: every command answers a question, and loads only what it needs for that."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remanence.cli import audit as cli_runs
from remanence.cli import gradient as cli_gradient
from remanence.cli import head as cli_head
from remanence.cli import init as cli_init
from remanence.cli import report as cli_report
from remanence.cli import tables as cli_tables
from remanence.cli import text as cli_text
from remanence.cli import verify as cli_verify
from remanence.cli.attacks import attacks
from remanence.cli.audit import (
    Address,
    ExecutorName,
    ExecutorOption,
    GpusPerUnit,
    JournalPlace,
    Resume,
    UnitTrials,
    Workers,
)
from remanence.cli.bound import bound
from remanence.cli.calibrate import calibrate
from remanence.cli.demo import demo
from remanence.cli.frontier import frontier
from remanence.cli.interruption import interruptible, told
from remanence.cli.output import (
    AcceptUnproven,
    Device,
    Json,
    MaxSuccess,
    Out,
    as_called,
    compute_device,
    default_folder,
    exit_code,
    show_report,
    show_result,
)
from remanence.cli.output import policy as limit
from remanence.cli.show import show
from remanence.cli.targets import targets
from remanence.exceptions import RemanenceError

if TYPE_CHECKING:
    from remanence.auditing import AuditResult
    from remanence.results.verdict import Policy

app = typer.Typer(
    name="remanence",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("remanence"))
        raise typer.Exit


@app.callback()
def remanence(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How much of your training data can be read back out of what you release?

    Measured from below by attacks, proven from above by bounds. Audit what is yours.
    Nothing leaves this machine.

    Exit codes: 0 within the limit that you set, 1 EXPOSED or CONTRADICTED, 2 wrong usage or input,
    3 UNPROVEN, 129, 130 or 143 interrupted, 70 a mistake in remanence itself.
    """


def _from_settings(context: typer.Context, target: str | None) -> str | None:
    """The target, or the one that an audit.toml names; its other settings become the defaults."""
    if target is None or not target.endswith(".toml"):
        return target
    from remanence.cli.settings_file import read_settings

    settings = read_settings(Path(target))
    context.default_map = {**settings, **(context.default_map or {})}
    return settings["target"]


@app.command()
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
    attack: Annotated[
        list[str] | None, typer.Option(help="An attack by name; repeatable. Default: all that can play.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="How many targets to attack.", show_default="the game's own")
    ] = None,
    max_success: MaxSuccess = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO,
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
    out: Out = None,
    as_json: Json = False,
    executor: ExecutorOption = ExecutorName.IN_PROCESS,
    workers: Workers = None,
    address: Address = "local",
    gpus_per_unit: GpusPerUnit = None,
    unit_trials: UnitTrials = None,
    journal: JournalPlace = None,
    resume: Resume = None,
    data: cli_tables.TableFile = None,
    label: cli_tables.LabelColumn = None,
    by: cli_tables.Groups = None,
    known: cli_tables.KnownRows = "all-but-one",
    fixed_totals: cli_tables.FixedTotals = None,
) -> None:
    """Attack a model and hold the result against your limit.

    Writes audit.json for machines and report.html for people. What is finished is kept at once: an audit that was
    killed goes on with `remanence audit TARGET --resume FOLDER`.
    """
    from remanence.attacks.catalogue import load_attack
    from remanence.auditing import audit as run_audit
    from remanence.cli.loading import load_game
    from remanence.report.writing import write_report
    from remanence.scale.files import check_writable
    from remanence.scale.ranks import joined, rank, started_by_torchrun
    from remanence.targets import TARGETS

    target = cli_runs.named_target(target, resume, "audit")
    policy = limit(max_success)
    chosen = [load_attack(name) for name in attack] if attack else None
    folder = out or default_folder(target)
    check_writable(folder)
    keep = show_reconstructions or target in TARGETS
    table = cli_tables.TableOptions(data, label, by, known, fixed_totals) if data else None
    game = None
    if Path(target).is_dir():
        result = _audit_recorded(
            Path(target), policy, seed, accuse_at, options=attack or trials or show_reconstructions
        )
        result = as_called(result)
        path, report = result.save(folder, gallery=keep), write_report(result, folder, gallery=keep)
    else:
        # A factory may print; our own output stays clean.
        with contextlib.redirect_stdout(sys.stderr), joined(compute_device(device)) as place:
            game = cli_tables.load_table_game(target, table) if table else load_game(target)
            place = "cpu" if table else place
            if rank() > 0:  # learns with the others; the first one plays and writes
                run_audit(game, chosen, policy=policy, trials=1, seed=seed, device=place)
                raise typer.Exit
            options = {
                "command": "audit",
                "target": target,
                "attack": attack,
                "trials": trials,
                "max_success": max_success,
                "seed": seed,
                "device": place.split(":")[0],
                "unit_trials": unit_trials,
                "show_reconstructions": show_reconstructions,
                "accept_unproven": accept_unproven,
                "out": cli_runs.stored_place(folder, journal),
                **(table.stored() if table else {}),
            }
            players = cli_runs.executor(executor, workers, address, gpus_per_unit, place)
            run = cli_runs.begin_run(game, options, players, journal or folder, resume, galleries=keep)
            with told(lambda: cli_runs.interrupted("audit", target, journal or folder)), run:
                result = run_audit(
                    game,
                    chosen,
                    policy=policy,
                    trials=trials,
                    seed=seed,
                    device=place,
                    target=target,
                    run=run,
                )
                result = as_called(result)
                path, report = result.save(folder, gallery=keep), write_report(result, folder, gallery=keep)
            cli_runs.tell_reuse(run)
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
    else:
        show_result(result, path)
        if table:
            cli_tables.show_table(result, game, folder, table, rows=show_reconstructions)
        show_report(report)
    # torchrun takes any other number for a crash of the rank; `remanence show` tells the verdict in its own.
    raise typer.Exit(0 if started_by_torchrun() else exit_code(result, accept_unproven))


for command in (show, attacks, targets, demo, bound, calibrate, frontier):
    app.command()(command)
cli_report.register(app)
cli_init.register(app)
cli_gradient.register(app)
cli_text.register(app)
cli_head.register(app)
cli_runs.register(app)
cli_verify.register(app)
for elsewhere in entry_points(group="remanence.commands"):  # from packages beside this one
    elsewhere.load()(app)


def main() -> None:
    """Run the command line; a user's mistake ends with a sentence and exit code 2, not a traceback."""
    # Many small matrices: a second thread costs more than it brings (28 times the time on a busy machine).
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        with interruptible():
            app()
    except RemanenceError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(2)
    except Exception as error:  # noqa: BLE001
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not loaded for its name alone
            typer.echo(_OUT_OF_MEMORY.format(str(error).splitlines()[0]), err=True)
            sys.exit(2)
        traceback.print_exc()
        typer.echo("This is a mistake in remanence, not in what you gave it. Please report it.", err=True)
        sys.exit(70)  # not 1, which says EXPOSED


_OUT_OF_MEMORY = (
    "OutOfMemoryError: The GPU has too little memory left.\n  needs: a GPU that nobody else is using\n  got:   {}\n"
    "  try:   smaller units with --unit-trials, or --device cpu"
)


def _audit_recorded(folder: Path, policy: Policy, seed: int, level: float, *, options: object) -> AuditResult:
    from remanence.exceptions import InputError
    from remanence.games.recorded_runs.audit_run import audit_run

    if options:
        raise InputError(
            "A recorded run has been played already.",
            needs="a folder, a limit and a seed",
            got="--attack, --trials or --show-reconstructions",
            hint="leave them out; the canaries were chosen when the run was recorded",
        )
    return audit_run(folder, policy=policy, seed=seed, level=level)
