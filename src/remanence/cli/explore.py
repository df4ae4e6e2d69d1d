"""`remanence explore`: a page on which noise is dragged and risk is watched."""

from __future__ import annotations

from typing import Annotated

import typer

from remanence.core.checks import extra


def explore(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 is a free one.")] = 0,
    browser: Annotated[bool, "Open the page in a browser."] = True,
) -> None:
    """Open a page on which you drag the noise and watch the risk; needs no model and no data.

    It answers on this machine alone. The address keeps the settings that you choose.
    """
    for package in ("starlette", "uvicorn"):
        extra(package, "explore", "a small web server")
    from remanence.cli.interruption import let_go
    from remanence.report.explore.server import serve

    let_go()  # to the server, which ends when it is told to

    def ready(address: str) -> None:
        typer.echo(f"Page: {address} (Ctrl+C ends it)")
        if browser:
            typer.launch(address)

    serve(port=port, ready=ready)
