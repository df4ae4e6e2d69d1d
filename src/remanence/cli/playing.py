"""What commands that play share: options, where units run and are kept, how a game is played and its result shown."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import click
import typer

from remanence.cli.grouped import options
from remanence.cli.interruption import ending_with
from remanence.core.exceptions import InputError
from remanence.core.plain_text import plain

if TYPE_CHECKING:
    from rich.console import Console

    from remanence.auditing import AuditResult
    from remanence.core.attack import Attack
    from remanence.protocol import AnyGame
    from remanence.results.verdict import Policy
    from remanence.scale.executors import Executor


Json = dict[str, Any]
Device = Literal["auto", "cpu", "cuda"]
OnDevice = Annotated[Device, "Where to compute."]
AsJson = Annotated[bool, "--json", "Print audit.json and nothing else."]
AcceptUnproven = Annotated[
    bool, "--accept-unproven", "Exit with 0 if nothing is found and nothing is proven."
]


def interrupted(place: str | Path) -> str:
    """The progress of a run that is being stopped."""
    from remanence.scale.journal import read_status

    try:
        found = read_status(place)
    except InputError:
        return "No unit was finished, so nothing is kept."
    return (
        f"{found.done} of {found.done + found.left} units are done and kept, {found.left} are left: "
        f"the same command with --resume {shlex.quote(str(place))} goes on."
    )


@options("The limit, and where results go")
class Judged:
    """What every audit takes."""

    max_success: Annotated[
        float | None,
        "Your limit: the largest success that you accept.",
        "0.1, or a tenth above what a guess achieves",
    ] = None
    out: Annotated[Path | None, "Folder for the results.", "remanence-runs/<target>"] = None
    seed: Annotated[int, "The same seed gives the same result."] = 0
    accept_unproven: AcceptUnproven = False
    as_json: AsJson = False


@options("The limit, and where results go")
class Shared(Judged):
    """The same for an audit that is played in units, which a run folder keeps."""

    resume: Annotated[
        str | None, "Continue the run in this folder: its own command again, refused if anything differs."
    ] = None
    device: OnDevice = "auto"


@options("Past one process")
class Scale:
    """Who carries out the units."""

    executor: Annotated[
        Literal["in-process", "processes", "ray"],
        "Where units run: this process, several processes, or a Ray cluster.",
    ] = "in-process"
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many units at a time.", show_default="as many as cores")
    ] = None
    address: Annotated[str, "The Ray cluster: local, auto, or its host:port."] = "local"
    gpus_per_unit: Annotated[
        float | None,
        typer.Option(min=0.0, help="Ray: the share of a GPU that a unit takes.", show_default="1 on a GPU"),
    ] = None
    unit_trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Trials in a unit. Results depend on it, as on the seed.",
            show_default="as many as fit into memory",
        ),
    ] = None

    def players(self, device: str) -> Executor:
        """The executor; Ray is loaded only when it is asked for."""
        from remanence.scale.executors import InProcess
        from remanence.scale.processes import Processes

        name, workers, gpus = self.executor, self.workers, self.gpus_per_unit
        if name != "ray" and (self.address != "local" or gpus is not None):
            raise InputError(
                "Only Ray has a cluster.",
                needs="--executor ray",
                got=f"--executor {name}",
                hint="drop --address and --gpus-per-unit",
            )
        if name == "ray":
            from remanence.scale.ray import Ray

            # A unit that asks for no GPU sees none.
            return Ray(self.address, workers, float(device != "cpu") if gpus is None else gpus)
        if name == "processes":
            return Processes() if workers is None else Processes(workers)
        if workers not in (None, 1):
            raise InputError(
                "One process is one worker.",
                needs="--executor processes with several workers",
                got=f"--workers {workers}",
                hint="--executor processes",
            )
        return InProcess()


def manifest_settings(game: AnyGame, options: Json) -> Json:
    """What a run is, so that another one is never continued in its place."""
    from remanence.scale.fingerprints import sources, versions

    path = Path(options["target"].rpartition(":")[0])
    return {
        "options": options,
        "data": game.fingerprints(),
        "code": {**(sources(path) if path.is_file() else {}), **versions()},
    }


def _check_same_run(place: Path, settings: Json) -> None:
    """Refuse to continue where the audit would not be the one that was begun."""
    from remanence.scale.journal import Journal

    def known(held: Json) -> Json:
        """All of it by name; a file that was moved is the same target, if what is in it is the same."""
        path, colon, factory = held["options"].get("target", "").rpartition(":")
        target = f"{Path(path).name}{colon}{factory}"
        return {**held["options"], **held["code"], "data": held["data"], "target": target}

    then = known({"options": {}, "code": {}, "data": {}, **Journal(place).manifest()["settings"]})
    now = known(settings)
    free = {"max_success", "accept_unproven"}  # no unit depends on these
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    differing = [name for name in differing if name not in free]
    if differing:
        raise InputError(
            "The audit differs from the one in this folder.",
            needs="the same target, data, code and settings",
            got="; ".join(
                f"{n}: then {str(then.get(n))[:40]}, now {str(now.get(n))[:40]}" for n in differing
            ),
            hint="leave --resume out to start from the beginning, or undo the change",
        )


def policy(max_success: float | None) -> Policy | None:
    """The user's limit; None leaves the default to the game."""
    from remanence.results.verdict import Policy

    return None if max_success is None else Policy(max_success)


def default_folder(target: str) -> Path:
    """Where results go by default.

    >>> default_folder("models/mine.py:factory").as_posix()
    'remanence-runs/mine-factory'
    """
    path, _, factory = target.rpartition(":")
    name = f"{Path(path).stem}-{factory}" if path else target
    return Path("remanence-runs") / "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def exit_code(result: AuditResult, accept_unproven: bool) -> int:
    """The verdict as a number; --accept-unproven turns 3 into 0."""
    from remanence.results.verdict import Verdict

    return 0 if accept_unproven and result.verdict is Verdict.UNPROVEN else result.verdict.exit_code


def compute_device(choice: Device) -> str:
    """The device to use; refuses a GPU that is not there."""
    import torch

    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        raise InputError(
            "There is no GPU to compute on.",
            needs="a CUDA device and a CUDA build of torch",
            got=f"torch {torch.__version__} without a device",
            hint="--device cpu",
        )
    return "cuda" if available and choice != "cpu" else "cpu"


def console() -> Console:
    """As wide as the terminal, and wide enough for a table elsewhere."""
    from rich.console import Console

    terminal = Console(markup=False, emoji=False)  # brackets in a name must not be read as markup
    if terminal.is_terminal:
        return terminal
    return Console(width=max(terminal.width, 120), markup=False, emoji=False)


def show_result(result: AuditResult, path: Path) -> None:
    """Print an audit and where it is stored."""
    from remanence.report.terminal import audit_view

    out = console()
    out.print(audit_view(result, out.width))
    out.print(f"Result: {plain(path)}", highlight=False, soft_wrap=True)


def as_called(result: AuditResult, *words: str) -> AuditResult:
    """The same result, which also holds the command that made it, so that people can run it again."""
    command = shlex.join(["remanence", *(words or sys.argv[1:])])
    about = (click.get_current_context().obj or {}).get("about", {})
    return replace(result, environment={**result.environment, "command": command}, about=about)


def play(
    load: Callable[[str], AnyGame],
    shared: Shared,
    *,
    command: str,
    target: str,
    stored: Mapping[str, Any],
    name: str | None = None,
    attacks: Sequence[Attack] | None = None,
    trials: int | None = None,
    scale: Scale | None = None,
    keep: bool = False,
    show: Callable[[AuditResult, Any, Path], None] | None = None,
) -> NoReturn:
    """Audit the game that `load` makes for a device, and end with the verdict's exit code.

    `stored` is what the run folder keeps of the command's own options. `keep` stores reconstructions, which are data.
    `show` prints what the door adds to the verdict.
    """
    from remanence.auditing import audit
    from remanence.scale.files import check_writable
    from remanence.scale.journal import Journal
    from remanence.scale.run import Run

    scale = scale or Scale()
    if shared.resume and shared.out and Path(shared.resume) != Path(shared.out):
        raise InputError(
            "A run goes on in its own folder.",
            needs="--resume without --out, or both with the same folder",
            got=f"--resume {shared.resume} and --out {shared.out}",
            hint=f"--resume {shared.resume}",
        )
    folder = Path(shared.resume or shared.out or default_folder(name or target))
    check_writable(folder)
    # A factory may print; our own output stays clean.
    with contextlib.redirect_stdout(sys.stderr):
        place = compute_device(shared.device)
        game = load(place)
        given = {name: getattr(shared, name) for name in ("max_success", "seed", "accept_unproven")}
        options = {"command": command, "target": target, **stored, **given, "device": place}
        settings = manifest_settings(game, {**options, "unit_trials": scale.unit_trials})
        if shared.resume is not None:
            _check_same_run(folder, settings)
        run = Run(
            scale.players(place),
            Journal(folder),
            scale.unit_trials,
            galleries=keep,
            settings=settings,
            resume=shared.resume is not None,
        )
        with ending_with(lambda: interrupted(folder)), run:
            result = audit(
                game,
                attacks,
                policy=policy(shared.max_success),
                trials=trials,
                seed=shared.seed,
                device=place,
                target=name or target,
                run=run,
            )
            result = _written(result, folder, gallery=keep)
        if run.reused:
            typer.echo(f"Units that were already there: {run.reused}; played: {run.played}.", err=True)
    _end(result, folder, shared, after=None if show is None else lambda: show(result, game, folder))


def finish(
    result: AuditResult, folder: Path, shared: Judged, *, first: Callable[[], None] | None = None
) -> NoReturn:
    """Write an audit that has been played and its report, print both, and end with the verdict's exit code."""
    _end(_written(result, folder), folder, shared, first=first)


def _written(result: AuditResult, folder: Path, *, gallery: bool = False) -> AuditResult:
    """The result as it is stored in this folder, with its report."""
    from remanence.report.writing import write_report

    result = as_called(result)
    result.save(folder, gallery=gallery)
    write_report(result, folder, gallery=gallery)
    return result


def _end(
    result: AuditResult,
    folder: Path,
    shared: Judged,
    *,
    first: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> NoReturn:
    """Print a stored result, with what comes before and after it, and exit."""
    from remanence.report.writing import REPORT
    from remanence.results.storage import DOCUMENT

    if shared.as_json:
        typer.echo((folder / DOCUMENT).read_text(encoding="utf-8"), nl=False)
    else:
        if first is not None:
            first()
        show_result(result, folder / DOCUMENT)
        if after is not None:
            after()
        fill = (
            "" if result.about else " (--title, --owner, --purpose and --data-description fill in the page)"
        )
        typer.echo(f"Report: {plain(folder / REPORT)}")
        typer.echo(f"Open it: remanence report {plain(shlex.quote(str(folder)))} --open{fill}")
    raise typer.Exit(exit_code(result, shared.accept_unproven))
