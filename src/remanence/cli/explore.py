"""`remanence explore`: a page on which noise is dragged and risk is watched."""

from __future__ import annotations

from typing import Annotated

import typer

from remanence.cli.bound import Noise
from remanence.cli.training_options import Batching
from remanence.core.checks import exactly_one, extra


def explore(
    noise: Noise,
    batching: Batching,
    candidates: Annotated[int | None, "Start with a shortlist of N candidates."] = None,
    records_per_person: Annotated[
        int | None, "Start with a person who has at most this many records."
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 is a free one.")] = 0,
    browser: Annotated[bool, "Open the page in a browser."] = True,
) -> None:
    """Open a page on which you drag the noise and watch the risk; needs no model and no data.

    It answers on this machine alone. Give the settings of your training, as to `remanence bound`, to start from them.
    """
    from remanence.report.explore.answers import number

    settings = batching.solved()
    given = {
        **vars(noise),
        "sample_rate": settings.sample_rate,
        "steps": settings.steps,
        "candidates": candidates,
        "records_per_person": records_per_person,
    }
    start = {name: f"{value!r}" for name, value in given.items() if value is not None}
    if noise.noise_multiplier is not None and noise.epsilon is not None:
        both = {"--noise-multiplier": noise.noise_multiplier, "--epsilon": noise.epsilon}
        exactly_one(both, "--epsilon with --delta, where the noise is to be solved for")
    for name in start:
        number(start, name)  # refuses what the page cannot show
    for package in ("starlette", "uvicorn"):
        extra(package, "explore", "a small web server")
    from remanence.cli.interruption import let_go
    from remanence.report.explore.server import serve

    let_go()  # to the server, which ends when it is told to

    def ready(address: str) -> None:
        address += "#" + "&".join(f"{name}={value}" for name, value in start.items()) if start else ""
        typer.echo(f"Page: {address} (Ctrl+C ends it)")
        if settings.derives:
            typer.echo(settings.echoed())
        if browser:
            typer.launch(address)

    serve(port=port, ready=ready)
