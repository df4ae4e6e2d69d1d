"""`remanence sweep`: a training at every combination of some of its settings."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import Annotated

import typer

from remanence.cli.interruption import told
from remanence.cli.output import compute_device, console, default_folder
from remanence.cli.output import policy as limit
from remanence.cli.run_folder import Play, Scale, interrupted, named_target, tell_reuse
from remanence.core.plain_text import plain


def sweep(
    target: Annotated[
        str | None,
        typer.Argument(help="A built-in name (see `remanence targets`) or path/to/file.py:factory."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        "--set",
        "A setting of the training and its values, as in noise_multiplier=0.5,1,2; repeatable. Also of the "
        "prior, known_data=N or candidates=N, and epsilon of transfer-learned heads.",
    ] = None,
    *,
    play: Play,
    scale: Scale,
    as_json: Annotated[bool, "--json", "Print sweep.json and nothing else."] = False,
) -> None:
    """Audit a training at every combination of some of its settings: one table, one picture.

    Writes sweep.json, sweep.md and sweep.svg, and an audit.json for each point. The exit code is 0 whatever the
    verdicts are.
    """
    from remanence.cli.loading import load_game
    from remanence.report import sweep as views
    from remanence.results.storage import dumps
    from remanence.scale.files import check_writable, write_files
    from remanence.sweeping import parse_axes
    from remanence.sweeping import sweep as run_sweep

    target = named_target(target, scale.resume, "sweep")
    axes, policy, attacks = parse_axes(settings or []), limit(play.max_success), play.attacks()
    folder = play.out or default_folder(target).with_name(f"{default_folder(target).name}-sweep")
    check_writable(folder)
    with contextlib.redirect_stdout(sys.stderr):  # a factory may print; our own output stays clean
        game, device = load_game(target), compute_device(play.device)
        options = {
            "command": "sweep",
            "target": target,
            "settings": settings,
            **play.stored(),
            "device": device,
        }
        run = scale.begin(game, options, folder)
        with told(lambda: interrupted("sweep", target, scale.place(folder))), run:
            points = run_sweep(
                game, axes, attacks, policy=policy, trials=play.trials, seed=play.seed, device=device, run=run
            )
            points = [replace(p, result=replace(p.result, target=target)) for p in points]
            for point in points:
                point.result.save(folder / point.name)
            title = f"{target}: {' × '.join(axes)}"
            document = dumps(views.document(points, {"target": target, "seed": play.seed, "settings": axes}))
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
