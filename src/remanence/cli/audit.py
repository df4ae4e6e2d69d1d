"""`remanence audit`, `demo` and `status`; and what there is: `attacks` and `targets`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.padding import Padding
from rich.table import Table

from remanence.cli.grouped import options
from remanence.cli.playing import Scale, Shared, as_called, compute_device, console, play
from remanence.core.plain_text import plain


@options()
class Attacking:
    """Who attacks, how often, and what is kept."""

    attack: Annotated[list[str] | None, "An attack by name; repeatable. Default: all that fit."] = None
    trials: Annotated[int | None, "How many targets to attack.", "the game's own"] = None
    show_reconstructions: Annotated[
        bool, "Keep some targets and reconstructions, in a file for your eyes only. They are training data."
    ] = False


def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="A built-in name (see `remanence targets`), path/to/file.py:factory, or an audit.toml with the "
            "options of this or another command."
        ),
    ],
    *,
    attacking: Attacking,
    shared: Shared,
    scale: Scale,
) -> None:
    """Attack a model and compare the result with your limit.

    Writes audit.json for machines and report.html for people. Finished work is kept: an audit that was killed goes on
    with the same command and `--resume FOLDER`. Files are audited by a command of their own: `remanence table`,
    `head`, `update`, `text` or `run`.
    """
    from remanence.cli.loading import load_game
    from remanence.core.catalogue import load_attack
    from remanence.targets import TARGETS

    attacks = [load_attack(name) for name in attacking.attack] if attacking.attack else None
    play(
        lambda _: load_game(target),
        shared,
        command="audit",
        target=target,
        stored=vars(attacking),
        attacks=attacks,
        trials=attacking.trials,
        scale=scale,
        keep=attacking.show_reconstructions or target in TARGETS,
    )


_TRIALS = 60  # of a game that draws its targets: enough for a verdict about one in ten


def demo(out: Annotated[Path, "Folder for the results."] = Path("remanence-runs")) -> None:
    """Audit every built-in target, with few trials, and print a verdict for each."""
    from remanence.auditing import audit
    from remanence.protocol import AnyGame
    from remanence.report.terminal import summary_table
    from remanence.report.writing import write_index, write_report
    from remanence.scale.files import check_writable
    from remanence.targets import TARGETS

    check_writable(out)
    device = compute_device("auto")
    results = {}
    for name, factory in TARGETS.items():
        typer.echo(f"auditing {name} ...", err=True)
        game = factory()
        drawn = _TRIALS if game.default_trials == AnyGame.default_trials else None
        result = audit(game, device=device, target=name, trials=drawn)
        results[name] = as_called(result, "audit", name, *(["--trials", str(drawn)] if drawn else []))
        results[name].save(out / name, gallery=True)
        write_report(results[name], out / name, gallery=True)
    terminal = console()
    terminal.print(summary_table(list(results.values()), terminal.width))
    terminal.print(
        "All data are public sets that scikit-learn carries, or made up. EXPOSED is the expected verdict for most.\n"
        f"Reports: {write_index(results, out).resolve()}",
        highlight=False,
        soft_wrap=True,
    )


def status(
    run: Annotated[str, typer.Argument(help="A run folder.")],
    as_json: Annotated[bool, "--json", "Print it for a machine."] = False,
) -> None:
    """Show how much of a run is done and how much is left, also after a kill."""
    from remanence.scale.journal import read_status

    found = read_status(run)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "done": found.done, "left": found.left}, indent=2))
        return
    lines = [
        plain(found.place),
        *(f"{plain(work.name)}: {work.done} of {work.units}" for work in found.works),
    ]
    lines.append(f"Units: {found.done} done, {found.left} left.")
    if found.finished:
        lines.append(f"Finished {plain(found.finished)}.")
    elif found.at_work:
        lines.append("A process seems to be at work on it.")
    else:
        resume = f"--resume {shlex.quote(plain(found.place))}"
        lines.append(f"No process is at work on it. The same command with {resume} continues.")
    typer.echo("\n".join(lines))


def attacks() -> None:
    """List the attacks: what each needs, what it sees, and which paper it comes from."""
    from remanence.core.catalogue import catalogue

    terminal = console()
    for info in catalogue().values():
        terminal.print(info.name, style="bold", highlight=False)
        told = f"{info.summary} Needs {info.needs}. Sees {info.sees}. ({info.reference.short})"
        terminal.print(Padding(told, (0, 0, 1, 2)), highlight=False)


def targets() -> None:
    """List the built-in targets."""
    from remanence.targets import TARGETS

    table = Table("target", "what it is")
    table.columns[0].no_wrap = True
    for name, factory in TARGETS.items():
        table.add_row(name, (factory.__doc__ or "").strip())
    console().print(table)
