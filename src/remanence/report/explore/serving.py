"""Start the page on a free port of this machine, and open it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from remanence.core.checks import extra
from remanence.core.exceptions import InputError

ADDRESS = "127.0.0.1"


_PATIENCE = 5.0  # seconds in which a connection says what it wants, or is closed


def _patient() -> Any:
    """uvicorn's protocol, with an end to waiting: connections that say nothing would shut everyone else out."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.waiting_since = self.loop.time()
            self.look()

        def look(self) -> None:
            if self.transport.is_closing():
                return
            if self.cycle is not None and not self.cycle.response_complete:
                self.waiting_since = self.loop.time()
            elif self.loop.time() - self.waiting_since > _PATIENCE:
                self.transport.close()
                return
            self.loop.call_later(_PATIENCE / 5, self.look)

    return Patient


def serve(*, port: int = 0, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address once it answers."""
    for package in ("starlette", "uvicorn"):
        extra(package, "explore", "a small web server", ", or --export page.html, which needs none")
    import uvicorn

    from remanence.report.explore.server import application

    # The port is known before the application is made, because it checks the Host header against it.
    config = uvicorn.Config(
        "remanence", host=ADDRESS, port=port, log_level="critical", lifespan="off", ws="none",
        limit_concurrency=200, server_header=False, timeout_graceful_shutdown=1, http=_patient(),
    )  # fmt: skip
    try:
        bound = config.bind_socket()
    except SystemExit:
        raise InputError(
            "The port is taken.", needs="a free port", got=str(port), hint="leave --port out for a free one"
        ) from None
    port = bound.getsockname()[1]
    config.app = application(port)

    class Announced(uvicorn.Server):
        """Says where it is once it listens, so that no browser comes too early."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready(f"http://{ADDRESS}:{port}/")

    with contextlib.suppress(KeyboardInterrupt):  # how a person ends it
        Announced(config).run(sockets=[bound])
