"""The command line: every command answers a question, and loads only what it needs for that."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import entry_points
from typing import Annotated

import typer

from remanence.cli.attacks import attacks
from remanence.cli.audit import audit
from remanence.cli.bound import bound
from remanence.cli.calibrate import calibrate
from remanence.cli.compare import compare
from remanence.cli.demo import demo
from remanence.cli.explore import explore
from remanence.cli.frontier import frontier
from remanence.cli.grouped import grouped
from remanence.cli.interruption import interruptible
from remanence.cli.report import report
from remanence.cli.show import show
from remanence.cli.status import status
from remanence.cli.targets import targets
from remanence.cli.verify import verify
from remanence.core.exceptions import RemanenceError
from remanence.texts.canaries_command import canaries
from remanence.updates.command import gradient

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

    Attacks measure the least that can be recovered, and bounds prove the most. Audit what is yours.
    Nothing leaves this machine.

    Exit codes: 0 within the limit that you set, 1 EXPOSED or CONTRADICTED, 2 wrong usage or input,
    3 UNPROVEN, 129, 130 or 143 interrupted, 70 a mistake in remanence itself.
    """


COMMANDS = (
    audit, show, attacks, targets, demo, bound, calibrate, frontier, report, compare, explore,
    gradient, canaries, status, verify,
)  # fmt: skip
for command in COMMANDS:
    app.command()(grouped(command))
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
        typer.echo("This is a mistake in remanence, not in your input. Please report it.", err=True)
        sys.exit(70)  # not 1, which says EXPOSED


_OUT_OF_MEMORY = (
    "OutOfMemoryError: The GPU has too little memory left.\n  needs: a GPU that nobody else is using\n  got:   {}\n"
    "  try:   smaller units with --unit-trials, or --device cpu"
)
