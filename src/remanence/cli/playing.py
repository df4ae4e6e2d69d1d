"""How a command plays a game: the run, the result, the report, what is printed, and the exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from remanence.cli.interruption import told
from remanence.cli.output import (
    as_called,
    compute_device,
    default_folder,
    exit_code,
    policy,
    show_report,
    show_result,
)
from remanence.cli.run_folder import Scale, Shared, interrupted, tell_reuse

if TYPE_CHECKING:
    from remanence.auditing import AuditResult
    from remanence.core.attack import Attack
    from remanence.protocol import AnyGame


def play(
    load: Callable[[str], AnyGame],
    shared: Shared,
    *,
    command: str,
    target: str,
    name: str | None = None,
    stored: Mapping[str, Any] | None = None,
    again: str | None = None,
    attacks: Sequence[Attack] | None = None,
    trials: int | None = None,
    scale: Scale | None = None,
    keep: bool = False,
    show: Callable[[AuditResult, Any, Path], None] | None = None,
) -> NoReturn:
    """Audit the game that `load` makes for a device, and end with the verdict's exit code.

    `stored` is what the run folder keeps of the command's own options, and `again` what has to be named again to go on.
    `keep` stores reconstructions, which are data. `show` prints what the door has to say beside the verdict.
    """
    from remanence.auditing import audit
    from remanence.report.writing import write_report
    from remanence.scale.files import check_writable

    scale, folder = scale or Scale(), shared.out or default_folder(name or target)
    check_writable(folder)
    # A factory may print; our own output stays clean.
    with contextlib.redirect_stdout(sys.stderr):
        place = compute_device(shared.device)
        game = load(place)
        options = {"command": command, "target": target, **(stored or {}), **shared.stored(), "device": place}
        run = scale.begin(game, options, folder, resume=shared.resume, galleries=keep)
        with told(lambda: interrupted(command, target, scale.place(folder), again)), run:
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
            result = as_called(result)
            path, report = result.save(folder, gallery=keep), write_report(result, folder, gallery=keep)
        tell_reuse(run)
    end(result, path, report, shared, show=None if show is None else lambda: show(result, game, folder))


def finish(
    result: AuditResult,
    folder: Path,
    shared: Shared,
    *,
    first: Callable[[], None] | None = None,
    show: Callable[[], None] | None = None,
) -> NoReturn:
    """Write an audit that has been played and its report, print both, and end with the verdict's exit code."""
    from remanence.report.writing import write_report

    result = as_called(result)
    path, report = result.save(folder), write_report(result, folder)
    end(result, path, report, shared, first=first, show=show)


def end(
    result: AuditResult,
    path: Path,
    report: Path,
    shared: Shared,
    *,
    first: Callable[[], None] | None = None,
    show: Callable[[], None] | None = None,
) -> NoReturn:
    """Print a stored result, with what comes before and after it, and exit."""
    if shared.as_json:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
    else:
        if first is not None:
            first()
        show_result(result, path)
        if show is not None:
            show()
        show_report(report)
    raise typer.Exit(exit_code(result, shared.accept_unproven))
