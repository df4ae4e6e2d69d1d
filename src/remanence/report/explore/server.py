"""The server behind the page: loopback only, made for one person at one machine."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from typing import Any

import uvicorn
from anyio import CancelScope, CapacityLimiter, create_task_group, to_process, to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from remanence.core.exceptions import InputError, RemanenceError
from remanence.core.plain_text import plain
from remanence.report.explore import answers
from remanence.report.explore.answers import QUESTIONS, Question

ADDRESS = "127.0.0.1"
_COMPUTING = 2  # processes at the same time
_WAITING = 200  # connections
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ASSETS = {"/": ("index.html", "text/html"), "/page.css": ("page.css", "text/css"),
           "/page.js": ("page.js", "text/javascript")}  # fmt: skip


def serve(*, port: int = 0, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address once it is taken."""
    config = uvicorn.Config(
        application(), host=ADDRESS, port=port, log_level="critical", lifespan="off", ws="none",
        limit_concurrency=_WAITING, server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    try:
        bound = config.bind_socket()
    except SystemExit:
        raise InputError(
            "The port is taken.", needs="a free port", got=str(port), hint="leave --port out for a free one"
        ) from None
    bound.listen()  # a visitor who comes before the server runs waits
    ready(f"http://{ADDRESS}:{bound.getsockname()[1]}/")
    with contextlib.suppress(KeyboardInterrupt):  # how a person ends it
        uvicorn.Server(config).run(sockets=[bound])


def application() -> Starlette:
    """The page and its questions."""

    async def asset(request: Request) -> Response:
        name, kind = _ASSETS[request.url.path]
        content = (files("remanence.report.explore") / "page" / name).read_bytes()
        return Response(content, media_type=kind, headers={"Content-Security-Policy": _PAGE_POLICY})

    computing, processes = CapacityLimiter(_COMPUTING), CapacityLimiter(_COMPUTING)

    def soon(answer: Callable[[Question], answers.Json]) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return JSONResponse(await to_thread.run_sync(answer, Question.read(request.query_params)))

        return respond

    def later(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            asked = dict(request.query_params)
            found = _refusal(499, "The page no longer waits for this answer.")
            async with create_task_group() as group:
                group.start_soon(_leave_with, request, group.cancel_scope)
                async with computing:
                    # A process that is abandoned while it starts would be orphaned.
                    with CancelScope(shield=True):
                        await to_process.run_sync(int, limiter=processes)
                    asks = partial(to_process.run_sync, cancellable=True, limiter=processes)
                    try:
                        found = JSONResponse(await asks(answers.compute, name, asked))
                    except RemanenceError as error:
                        found = _refused(error)
                group.cancel_scope.cancel()
            return found

        return respond

    routes = [
        *(Route(path, asset) for path in _ASSETS),
        *(Route(f"/api/{name}", soon(answer)) for name, answer in _AT_ONCE.items()),
        *(Route(f"/api/{name}", later(name)) for name in QUESTIONS),
    ]
    handlers: Any = {
        RemanenceError: lambda _, error: _refused(error),
        404: lambda _, __: _refusal(404, "There is no such page."),
        405: lambda _, __: _refusal(405, "The server does not support this method."),
        Exception: lambda _, __: _refusal(500, "This is a mistake in remanence. Please report it."),
    }
    own = [
        Middleware(BaseHTTPMiddleware, dispatch=_only_this_page),
        Middleware(TrustedHostMiddleware, allowed_hosts=[ADDRESS, "localhost"]),
    ]
    return Starlette(routes=routes, exception_handlers=handlers, middleware=own)


# In milliseconds; the others take seconds, and have processes of their own.
_AT_ONCE: dict[str, Callable[[Question], answers.Json]] = {
    "estimate": answers.estimate,
    "noise-curve": answers.noise_curve,
}


def _refused(error: RemanenceError) -> Response:
    details = {name: plain(getattr(error, name)) for name in ("needs", "got", "hint")}
    return _refusal(400, plain(error.summary), **details)


def _refusal(status: int, summary: str, **details: str) -> Response:
    return JSONResponse({"error": summary, **details}, status)


async def _only_this_page(request: Request, answer: RequestResponseEndpoint) -> Response:
    """Refuse other origins, and add the headers."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    # Without an origin: another site's picture whose address is a question, which would cost computing time.
    disguised = request.url.path.startswith("/api/") and site in ("cross-site", "same-site")
    if disguised or (origin is not None and origin != f"http://{request.headers.get('host')}"):
        found = _refusal(403, "This page answers its own address on this machine and nothing else.")
    else:
        found = await answer(request)
    found.headers.update(_HEADERS)
    return found


async def _leave_with(request: Request, scope: CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
