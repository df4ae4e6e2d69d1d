"""Where an audit's units run and where they are kept: options that commands share; status and sweep."""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remanence.cli.interruption import told
from remanence.cli.output import Device, MaxSuccess, Out, compute_device, console, default_folder
from remanence.cli.output import policy as limit
from remanence.exceptions import InputError
from remanence.plain_text import plain

if TYPE_CHECKING:
    from remanence.protocol import AnyGame
    from remanence.scale.run import Executor, Run
    from remanence.scale.status import RunStatus

Json = dict[str, Any]


class ExecutorName(StrEnum):
    """Who carries out the units."""

    IN_PROCESS = "in-process"
    PROCESSES = "processes"
    RAY = "ray"


_PANEL = "Past one process"
ExecutorOption = Annotated[
    ExecutorName,
    typer.Option(
        "--executor",
        rich_help_panel=_PANEL,
        help="Where units run: this process, several processes, or a Ray cluster.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, rich_help_panel=_PANEL, help="How many units at a time.", show_default="as many as cores"
    ),
]
Address = Annotated[
    str,
    typer.Option(rich_help_panel=_PANEL, help="The Ray cluster: local, auto, or its host:port."),
]
GpusPerUnit = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        rich_help_panel=_PANEL,
        help="Ray: the share of a GPU that a unit takes.",
        show_default="1 on a GPU",
    ),
]
UnitTrials = Annotated[
    int | None,
    typer.Option(
        min=1,
        rich_help_panel=_PANEL,
        help="Trials in a unit. Results depend on it, as on the seed.",
        show_default="as many as fit into memory",
    ),
]
JournalPlace = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_PANEL,
        help="Where finished units are kept: a folder that all workers share, or s3://bucket/run.",
        show_default="the results folder",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(status)
    app.command()(sweep)


def restore_options(context: typer.Context, place: str | None) -> str | None:
    """The options of the run that is continued become the defaults of this command."""
    if place is not None:
        from remanence.scale.journal import existing

        _, manifest = existing(place)
        options = manifest["settings"].get("options")
        if not options or options.get("command") != context.info_name:
            raise InputError(
                "Another command began this run.",
                needs=f"a folder of `remanence {context.info_name}`",
                got=f"{place}: {(options or {}).get('command', 'a run of the library')}",
                hint="the command that began it",
            )
        known = {name: value for name, value in options.items() if name not in ("command", "target")}
        # A folder may have been moved: results go where they went, into the folder or beside it.
        own = {} if "://" in place or known.get("out") is not None else {"out": place}
        context.default_map = {**(context.default_map or {}), **known, **own, "journal": place}
    return place


def named_target(target: str | None, resume: str | None, command: str) -> str:
    """What to audit, as the user says it. A folder may come from anybody: no file that it names is run unasked."""
    from remanence.targets import TARGETS

    if target is not None:
        return target
    if resume is None:
        raise InputError(
            "There is nothing to audit.",
            needs="a target",
            got="none",
            hint=f"remanence {command} TARGET; `remanence targets` lists the built-in ones",
        )
    from remanence.scale.journal import existing

    stored = existing(resume)[1]["settings"]["options"].get("target", "")
    if stored not in TARGETS:
        raise InputError(
            "This run used code of your own, which is not run just because a folder names it.",
            needs="the target, named again",
            got=f"{resume}, begun with {stored or 'no target'}",
            hint=continuation(command, stored, resume),
        )
    return stored


def continuation(command: str, target: str, place: str | Path) -> str:
    """The command that goes on with a run."""
    from remanence.targets import TARGETS

    named = [] if target in TARGETS else [shlex.quote(target)]
    return " ".join(["remanence", command, *named, "--resume", shlex.quote(str(place))])


def interrupted(command: str, target: str, place: str | Path) -> str:
    """What is done and what is left of a run that is being ended."""
    from remanence.scale.status import read_status

    try:
        found = read_status(place)
    except InputError:
        return "Nothing was finished, and nothing is kept."
    total = sum(work.units for work in found.works)
    return (
        f"{found.done} of {total} units are done and kept, {total - found.done} are left: "
        f"`{continuation(command, target, place)}` goes on."
    )


Resume = Annotated[
    str | None,
    typer.Option(
        help="Continue the run in this folder; its options are known. Code of your own is named again.",
        callback=restore_options,
        is_eager=True,
        rich_help_panel=_PANEL,
    ),
]


def executor(
    name: ExecutorName, workers: int | None, address: str, gpus: float | None, device: str
) -> Executor:
    """The executor of this name; Ray is loaded only when it is asked for."""
    from remanence.scale.processes import Processes
    from remanence.scale.run import InProcess

    if name is not ExecutorName.RAY and (address != "local" or gpus is not None):
        raise InputError(
            "Only Ray has a cluster.",
            needs="--executor ray",
            got=f"--executor {name}",
            hint="drop --address and --gpus-per-unit",
        )
    if name is ExecutorName.RAY:
        from remanence.integrations.ray import Ray

        # A unit that asks for no GPU sees none.
        return Ray(address, workers, float(device != "cpu") if gpus is None else gpus)
    if name is ExecutorName.IN_PROCESS:
        if workers not in (None, 1):
            raise InputError(
                "One process is one worker.",
                needs="--executor processes with several workers",
                got=f"--workers {workers}",
                hint="--executor processes",
            )
        return InProcess()
    return Processes() if workers is None else Processes(workers)


def begin_run(
    game: AnyGame,
    options: Json,
    players: Executor,
    place: str | Path,
    resume: str | None,
    *,
    galleries: bool = False,
) -> Run:
    """A run in that place: a new one, or the one that was begun there, if it is the same."""
    from remanence.scale.journal import Journal
    from remanence.scale.run import Run

    settings = manifest_settings(game, options)
    if resume is not None:
        _check_same_run(resume, settings)
    return Run(
        players,
        Journal(place),
        options["unit_trials"],
        galleries=galleries,
        settings=settings,
        resume=resume is not None,
    )


def stored_place(folder: Path, journal: str | None) -> str | None:
    """Where results go, as the run keeps it: nothing where that is the run folder, which may be moved."""
    inside = journal is None or ("://" not in journal and Path(journal).absolute() == folder.absolute())
    return None if inside else str(folder)


def tell_reuse(run: Run) -> None:
    """Say what a run had not to play again."""
    if run.reused:
        typer.echo(f"{run.reused} units were there already, {run.played} were played.", err=True)


def manifest_settings(game: AnyGame, options: Json) -> Json:
    """What a run is, so that another one is never continued in its place."""
    from remanence.scale.sources import sources, versions

    path = Path(options["target"].rpartition(":")[0])
    return {
        "options": options,
        "data": game.fingerprints(),
        "code": {**(sources(path) if path.is_file() else {}), **versions()},
    }


def _check_same_run(place: str, settings: Json) -> None:
    """Refuse to continue where the audit would not be the one that was begun."""
    from remanence.scale.journal import existing

    before = {"options": {}, "code": {}, "data": {}, **existing(place)[1]["settings"]}
    then, now = (
        {
            **s["options"],
            **s["code"],
            "data": s["data"],
            "target": _without_place(s["options"].get("target", "")),
        }
        for s in (before, settings)
    )
    free = {"out", "max_success", "accept_unproven"}  # no unit depends on these
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    differing = [name for name in differing if name not in free]
    if differing:
        raise InputError(
            "The audit is not the one that was begun there.",
            needs="the same target, data, code and settings",
            got="; ".join(f"{n}: then {_brief(then.get(n))}, now {_brief(now.get(n))}" for n in differing),
            hint="leave --resume out to play from the beginning, or mend what changed",
        )


def _without_place(target: str) -> str:
    """A file that was moved is the same target, if what is in it is the same."""
    path, colon, factory = target.rpartition(":")
    return f"{Path(path).name}{colon}{factory}"


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def status(
    run: Annotated[str, typer.Argument(help="A run folder or its URL.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it for a machine.")] = False,
) -> None:
    """Show what a run has done and what is left, and for how long; also after a kill."""
    import json
    from dataclasses import asdict

    from remanence.scale.status import read_status

    found = read_status(run)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "done": found.done, "left": found.left}, indent=2))
        return
    _show(found)


def sweep(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A built-in name (see `remanence targets`) or path/to/file.py:factory.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting of the training and its values, as in noise_multiplier=0.5,1,2; repeatable. Also of the "
            "prior, known_data=N or candidates=N, and epsilon of transfer-learned heads.",
            show_default=False,
        ),
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="An attack by name; repeatable. Default: all that fit.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="How many targets to attack at each point.", show_default="the game's own"),
    ] = None,
    max_success: MaxSuccess = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.AUTO,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print sweep.json and nothing else.")] = False,
    executor_name: ExecutorOption = ExecutorName.IN_PROCESS,
    workers: Workers = None,
    address: Address = "local",
    gpus_per_unit: GpusPerUnit = None,
    unit_trials: UnitTrials = None,
    journal: JournalPlace = None,
    resume: Resume = None,
) -> None:
    """Audit a training at every combination of some of its settings: one table, one picture.

    Writes sweep.json, sweep.md and sweep.svg, and an audit.json for each point. The exit code is 0 whatever the
    verdicts are.
    """
    from remanence.attacks.catalogue import load_attack
    from remanence.cli.loading import load_game
    from remanence.report import sweep as views
    from remanence.results.storage import dumps
    from remanence.scale.files import check_writable, write_files
    from remanence.sweeping import parse_axes
    from remanence.sweeping import sweep as run_sweep

    target = named_target(target, resume, "sweep")
    axes, policy = parse_axes(settings or []), limit(max_success)
    attacks = [load_attack(name) for name in attack] if attack else None
    folder = out or default_folder(target).with_name(f"{default_folder(target).name}-sweep")
    check_writable(folder)
    with contextlib.redirect_stdout(sys.stderr):  # a factory may print; our own output stays clean
        game = load_game(target)
        options = {
            "command": "sweep",
            "target": target,
            "settings": settings,
            "attack": attack,
            "trials": trials,
            "max_success": max_success,
            "seed": seed,
            "device": compute_device(device),
            "unit_trials": unit_trials,
            "out": stored_place(folder, journal),
        }
        players = executor(executor_name, workers, address, gpus_per_unit, options["device"])
        run = begin_run(game, options, players, journal or folder, resume)
        with told(lambda: interrupted("sweep", target, journal or folder)), run:
            points = run_sweep(
                game, axes, attacks, policy=policy, trials=trials, seed=seed,
                device=options["device"], run=run,
            )  # fmt: skip
            points = [replace(p, result=replace(p.result, target=target)) for p in points]
            for point in points:
                point.result.save(folder / point.name)
            title = f"{target}: {' × '.join(axes)}"
            document = dumps(views.document(points, {"target": target, "seed": seed, "settings": axes}))
            pages = {
                "sweep.svg": views.svg(points, title),
                "sweep.md": views.markdown(points, title, "sweep.svg"),
                "sweep.json": document,
            }
            write_files(folder, {name: text.encode() for name, text in pages.items()})
    tell_reuse(run)
    if as_json:
        typer.echo(document, nl=False)
        return
    console().print(views.table(points))
    typer.echo(f"Result: {plain(folder / 'sweep.md')}")


def _show(found: RunStatus) -> None:
    from rich.table import Table

    out = console()
    table = Table("work", title=plain(found.place), title_justify="left")
    for heading in ("done", "of"):
        table.add_column(heading, justify="right")
    for work in found.works:
        table.add_row(plain(work.name), str(work.done), str(work.units))
    out.print(table)
    lines = [f"Units: {found.done} done, {found.running} running, {found.left} left."]
    if found.finished:
        lines.append(f"Finished {plain(found.finished)}.")
    elif found.process:
        lines.append(f"Running in process {plain(found.process)}{_about(found.seconds_left)}.")
    else:
        options = found.settings.get("options", {})
        command = continuation(options.get("command", "audit"), options.get("target", "TARGET"), found.place)
        speed = _about(found.seconds_left) and f"; what is known would take{_about(found.seconds_left)[1:]}"
        lines.append(f"Nobody is at work{speed}. `{plain(command)}` continues.")
    out.print("\n".join(lines), highlight=False, soft_wrap=True)


def _about(seconds: float | None) -> str:
    """How long, as a person would say it.

    >>> _about(200.0), _about(None)
    (', about 3 min 20 s', '')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest if not hours else 0, "s")]
    return ", about " + (" ".join(f"{value} {unit}" for value, unit in parts if value) or "a second")
