"""The command line: every command answers a question, and loads only what it needs for that."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from remanence.cli.audit import attacks, audit, demo, status, targets
from remanence.cli.bound import bound, calibrate, explore, frontier
from remanence.cli.grouped import grouped
from remanence.cli.interruption import interruptible, outlive_the_reader
from remanence.cli.results import compare, report, show, verify
from remanence.core.doors import doors, load
from remanence.core.exceptions import InputError, RemanenceError

# What took the place of the commands and the options of old.
_REPLACEMENTS = {
    "a loop over settings; docs/scale.md shows one": "sweep",
    "docs/how-to, which has a file to copy": "init",
    "--out FOLDER, which keeps finished units; --resume FOLDER continues": "audit --journal",
    "--noise-multiplier": "bound --noise",
    "remanence bound without it: the certified ceiling is the tightest": "bound --method",
    "remanence run RECORDING, or --noise-multiplier, --sample-rate and --steps": "bound --opacus",
    "--baseline P, the share of the most common value": "bound --attribute",
    "log_baseline=... of remanence.bounds in Python, for baselines such as 10^-2000": (
        "bound --log10-baseline, calibrate --log10-baseline"
    ),
    "--records-per-person N, the most records of one person": (
        "bound --data, bound --person, bound --by, bound --people"
    ),
    "remanence.bounds.final_weights in Python": (
        "bound --release, bound --learning-rate, bound --smoothness, bound --strong-convexity"
    ),
    "remanence frontier --json, for any drawing program; remanence explore draws": (
        "explore --export, frontier --out"
    ),
    "the sliders of the page; its address keeps the settings": (
        "explore --noise-multiplier, explore --epsilon, explore --delta, explore --sample-rate, explore --steps, "
        "explore --dataset-size, explore --batch-size, explore --epochs, explore --candidates, "
        "explore --records-per-person"
    ),
    "audit.json itself; docs/scale.md shows how to sign it": "report --format in-toto",
    "--format model-card, whose YAML keys hold the same numbers": (
        "report --format cyclonedx, report --format eval-results"
    ),
    "ssh-keygen -Y sign -f KEY -n remanence-audit RUN/audit.json; docs/scale.md": "verify --sign",
    "ssh-keygen -Y verify; docs/scale.md has the line": "verify --signed-by",
}
_MOVED = {old: now for now, spellings in _REPLACEMENTS.items() for old in spellings.split(", ")}


class Commands(TyperGroup):
    """The commands. An audit.toml becomes the arguments that it holds, and old spellings name the new ones."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments of the command line."""
        if args[:1] == ["audit"] and len(args) > 1 and args[1].endswith(".toml"):
            from remanence.cli.settings_file import arguments_from

            given, about = arguments_from(Path(args[1]), self, ctx)
            ctx.obj, args = {"about": about}, [*given, *args[2:]]
        words = [word for each in args[1:] for word in (each.split("=", 1) if each[:2] == "--" else [each])]
        typed = [*args[:1], *(f"{args[0]} {word}" for word in words)]
        typed += [f"{args[0]} {option} {value}" for option, value in pairwise(words)]
        moved = _MOVED | {name: now for door in doors() for name, now in door.moved.items()}
        if args[:1] == ["audit"]:
            moved = self._of_doors(ctx, moved) | moved
        if found := next((each for each in typed if each in moved), None):
            raise InputError(
                f"`remanence {found}` is an old spelling.",
                needs="the command or the option that took its place",
                got=f"remanence {' '.join(args)}"[:200],
                hint=moved[found],
            )
        return super().parse_args(ctx, args)

    def _of_doors(self, ctx: click.Context, moved: dict[str, str]) -> dict[str, str]:
        """What took the place of options of `audit`: those of doors' commands, and what such a command had before."""
        homes = [home.rpartition(":")[2] for door in doors() for home in door.commands]
        now, before = dict[str, list[str]](), dict[str, list[str]]()
        for name in homes:
            for option in _options(self.get_command(ctx, name)):
                now.setdefault(f"audit {option}", []).append(f"remanence {name} {option}")
        for old, place in moved.items():
            name, _, option = old.partition(" ")
            if name in homes and option:
                before.setdefault(f"audit {option}", []).append(place)
        own = {f"audit {option}" for option in _options(self.get_command(ctx, "audit"))}
        return {option: " or ".join(places) for option, places in (before | now).items() if option not in own}


def _options(command: click.Command | None) -> list[str]:
    """The options of a command, as they are typed."""
    given = [] if command is None else command.params
    return [option for each in given for option in each.opts if option.startswith("--")]


app = typer.Typer(
    name="remanence",
    cls=Commands,
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

    Attacks measure the least that can be recovered, and bounds prove the most. Audit what is yours.
    Nothing leaves this machine.

    Exit codes: 0 within the limit that you set, 1 EXPOSED or CONTRADICTED, 2 wrong usage or input,
    3 UNPROVEN, 129, 130 or 143 interrupted, 70 a mistake in remanence itself.
    """


PANELS = {
    "Audit": (audit, demo, status),
    "Bounds": (bound, calibrate, frontier, explore),
    "Results": (show, report, compare, verify),
    "Lists": (attacks, targets),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(grouped(command))
    if panel == "Audit":  # one command for each kind of release
        for home in (each for door in doors() for each in door.commands):
            app.command(rich_help_panel=panel)(grouped(load(home)))
for elsewhere in entry_points(group="remanence.commands"):  # from packages beside this one
    elsewhere.load()(app)


def main() -> None:
    """Run the command line; a user's mistake ends with a sentence and exit code 2, not a traceback."""
    # Many small matrices: a second thread costs more than it brings (28 times the time on a busy machine).
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    outlive_the_reader()
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
        typer.echo("This is a mistake in remanence, not in your input. Please report it.", err=True)
        sys.exit(70)  # not 1, which says EXPOSED


_OUT_OF_MEMORY = (
    "OutOfMemoryError: The GPU has too little memory left.\n  needs: a GPU that no other program uses\n  got:   {}\n"
    "  try:   smaller units with --unit-trials, or --device cpu"
)
