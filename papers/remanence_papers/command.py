"""`remanence reproduce`: papers' figures and tables, run again."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.playing import Device, compute_device, console


class Scale(StrEnum):
    """How much of a paper to run again."""

    SMALL = "small"
    PAPER = "paper"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Results")(reproduce)


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Figures or tables, or stored NAME.json files to draw again. Without any they are listed.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="small: minutes, on embedded data. paper: the paper's own, on a GPU.")
    ] = Scale.SMALL,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the data of the paper's scale.", show_default=False)
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials per point.", show_default="the scale's")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 0,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("remanence-runs/reproductions"),
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every page, or those named, with all its seeds; what is in the folder and fresh is left alone.",
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time, with --all.")] = 1,
) -> None:
    """Run papers' figures or tables again, beside the values that the paper prints.

    Writes NAME.json, a page NAME.md and, where matplotlib is installed, NAME.svg.
    """
    from remanence.scale.files import check_writable
    from remanence_papers import registry, views
    from remanence_papers.reproduction import Settings

    if not names and not every:
        console().print(views.listing(registry.REPRODUCTIONS.values()))
        return
    check_writable(out)
    settings = Settings(scale.value, data, seed=seed, trials=trials)
    if every:
        from remanence_papers.printing import print_pages

        settings = replace(settings, device=compute_device(device))
        chosen = [registry.find(name) for name in names or registry.REPRODUCTIONS]
        if print_pages(chosen, settings, out, jobs=jobs, say=typer.echo):
            raise typer.Exit(1)
        return
    assert names is not None
    stored = {name: views.load(Path(name)) for name in names if name.endswith(".json")}
    entries = {name: registry.find(name) for name in names if name not in stored}
    if entries:
        settings = replace(settings, device=compute_device(device))
    for name in names:
        document = stored[name] if name in stored else registry.run(entries[name], settings)
        console().print(views.terminal(document))
        for path in views.save(document, out):
            typer.echo(path)
    if not views.can_draw():
        typer.echo("No picture: matplotlib is not installed (pip install matplotlib).", err=True)
