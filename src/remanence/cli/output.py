"""What commands share: where to compute, where results go, how a result is shown."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from remanence.core.plain_text import plain

if TYPE_CHECKING:
    from rich.console import Console

    from remanence.auditing import AuditResult
    from remanence.results.verdict import Policy


class Device(StrEnum):
    """Where tensors live."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


Out = Annotated[Path | None, "Folder for the results.", "remanence-runs/<target>"]
AsJson = Annotated[bool, "--json", "Print audit.json and nothing else."]
AcceptUnproven = Annotated[
    bool, "--accept-unproven", "Exit with 0 if nothing is found and nothing is proven."
]
MaxSuccess = Annotated[
    float | None,
    "Your limit: the largest success that you accept.",
    "0.1, or a tenth above what a guess achieves",
]


def policy(max_success: float | None) -> Policy | None:
    """The user's limit; None leaves the default to the game."""
    from remanence.results.verdict import Policy

    return None if max_success is None else Policy(max_success)


def default_folder(target: str) -> Path:
    """Where results go if nobody says.

    >>> default_folder("models/mine.py:factory").as_posix()
    'remanence-runs/mine-factory'
    """
    path, _, factory = target.rpartition(":")
    name = f"{Path(path).stem}-{factory}" if path else target
    return Path("remanence-runs") / "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def exit_code(result: AuditResult, accept_unproven: bool) -> int:
    """The verdict as a number; whoever accepts what is unproven gets 0 for it."""
    from remanence.results.verdict import Verdict

    return 0 if accept_unproven and result.verdict is Verdict.UNPROVEN else result.verdict.exit_code


def compute_device(choice: Device) -> str:
    """The device to use; refuses a GPU that is not there."""
    import torch

    from remanence.core.exceptions import InputError

    available = torch.cuda.is_available()
    if choice is Device.CUDA and not available:
        raise InputError(
            "There is no GPU to compute on.",
            needs="a CUDA device and a CUDA build of torch",
            got=f"torch {torch.__version__} without a device",
            hint="--device cpu",
        )
    return "cuda" if available and choice is not Device.CPU else "cpu"


def console() -> Console:
    """As wide as the terminal, and wide enough for a table elsewhere."""
    from rich.console import Console

    terminal = Console(markup=False, emoji=False)  # brackets in a name are no command to change the colour
    return (
        terminal
        if terminal.is_terminal
        else Console(width=max(terminal.width, 120), markup=False, emoji=False)
    )


def show_result(result: AuditResult, path: Path) -> None:
    """Print an audit and where it is stored."""
    from remanence.report.terminal import audit_view

    out = console()
    out.print(audit_view(result, out.width))
    out.print(f"Result: {plain(path)}", highlight=False, soft_wrap=True)


def as_called(result: AuditResult) -> AuditResult:
    """The same result, which also holds the command that made it, so that people can run it again."""
    command = shlex.join(["remanence", *sys.argv[1:]])
    about = (click.get_current_context().obj or {}).get("about", {})
    return replace(result, environment={**result.environment, "command": command}, about=about)


def show_report(page: Path) -> None:
    """Say where the report is, and how to open it."""
    typer.echo(f"Report: {plain(page)}")
    typer.echo(f"Open it: remanence report {plain(shlex.quote(str(page.parent)))} --open")
