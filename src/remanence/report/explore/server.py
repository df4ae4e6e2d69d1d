"""The server behind the page: loopback only, made for one person at one machine."""

from __future__ import annotations

import secrets
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from anyio import CapacityLimiter, move_on_after, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from remanence.core.exceptions import InputError, RemanenceError
from remanence.core.plain_text import plain
from remanence.report.explore import answers
from remanence.report.explore.answers import Question
from remanence.report.explore.workers import QUESTIONS, AskerLeftError, Workers
from remanence.scale.reading import MOST_TEXT

LARGEST_BODY = MOST_TEXT
_KEPT_REPORTS = 8
_PATIENCE = 10.0  # seconds for a body to arrive
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'self'"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ASSETS = {"/": ("index.html", "text/html"), "/page.css": ("page.css", "text/css"),
           "/page.js": ("page.js", "text/javascript")}  # fmt: skip


def application(port: int) -> ASGIApp:
    """The page, its questions, and the reports that were dropped onto it."""
    reports: OrderedDict[str, str] = OrderedDict()

    async def asset(request: Request) -> Response:
        name, kind = _ASSETS[request.url.path]
        content = (files("remanence.report.explore") / "page" / name).read_bytes()
        return Response(content, media_type=kind, headers={"Content-Security-Policy": _PAGE_POLICY})

    workers, rendering = Workers(), CapacityLimiter(1)

    def soon(answer: Callable[[Question], answers.Json]) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return JSONResponse(await to_thread.run_sync(answer, Question.read(request.query_params)))

        return respond

    def later(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return JSONResponse(await workers.ask(request, name, request.query_params))

        return respond

    async def accept(request: Request) -> Response:
        page = await to_thread.run_sync(_render, await _body(request), limiter=rendering)
        token = secrets.token_urlsafe(16)
        reports[token] = page
        while len(reports) > _KEPT_REPORTS:
            reports.popitem(last=False)
        return JSONResponse({"address": f"/report/{token}"})

    async def show(request: Request) -> Response:
        page = reports.get(request.path_params["token"])
        if page is None:
            return _refusal(404, "There is no such report any more.")
        return HTMLResponse(page, headers={"Content-Security-Policy": _REPORT_POLICY})

    routes = [
        *(Route(path, asset) for path in _ASSETS),
        *(Route(f"/api/{name}", soon(answer)) for name, answer in _AT_ONCE.items()),
        *(Route(f"/api/{name}", later(name)) for name in QUESTIONS),
        Route("/api/report", accept, methods=["POST"]),
        Route("/report/{token}", show),
    ]
    handlers: Any = {
        RemanenceError: lambda _, error: _refusal(
            400, plain(error.summary), needs=plain(error.needs), got=plain(error.got), hint=plain(error.hint)
        ),
        AskerLeftError: lambda _, __: _refusal(499, "Nobody waits for this answer any more."),
        404: lambda _, __: _refusal(404, "There is no such page."),
        405: lambda _, __: _refusal(405, "The page does not do that."),
        Exception: lambda _, __: _refusal(500, "This is a mistake in remanence. Please report it."),
    }
    return _Guard(Starlette(routes=routes, exception_handlers=handlers), port)


_AT_ONCE: dict[str, Callable[[Question], answers.Json]] = {
    "estimate": answers.estimate,
    "noise-curve": answers.noise_curve,
}  # in milliseconds; the others take seconds, and have processes of their own


async def _body(request: Request) -> bytes:
    """The body, as long as it is no longer than a result can be."""
    body = bytearray()
    with move_on_after(_PATIENCE) as waiting:
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_BODY:
                raise InputError(
                    "The file is too large.",
                    needs=f"an audit.json of at most {LARGEST_BODY // 10**6} MB",
                    got="more than that",
                    hint="audit.json itself, not the arrays beside it",
                )
    if waiting.cancelled_caught:
        raise InputError(
            "The file did not arrive.",
            needs=f"as many bytes as were announced, within {_PATIENCE:.0f} seconds",
            got=f"{len(body)} bytes",
            hint="drop the file again",
        )
    return bytes(body)


def _render(body: bytes) -> str:
    """The report of an audit.json that somebody dropped onto the page."""
    from remanence.auditing import AuditResult  # loads torch, which the first tab can do without
    from remanence.report.html import report
    from remanence.results.storage import parse, unreadable

    try:
        return report(AuditResult.from_json(parse(body), {}))
    except RemanenceError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a stranger's file does, the answer is a sentence
        raise unreadable("the file", f"it cannot be shown ({type(error).__name__})") from None


def _refusal(status: int, summary: str, **details: str) -> Response:
    return JSONResponse({"error": summary, **details}, status)


class _Guard:
    """Refuses other hosts and origins, and adds the headers."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        names = {"127.0.0.1", "localhost"}
        self.hosts = {f"{name}:{port}" for name in names} | (names if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        host, origin = headers.get("host", ""), headers.get("origin")
        answer: ASGIApp = self.app
        # Without an origin: another site's picture whose address is a question, which would cost computing time.
        asked_by = headers.get("sec-fetch-site", "none") if scope["path"].startswith("/api/") else "none"
        foreign = (origin is not None and origin != f"http://{host}") or asked_by in (
            "cross-site",
            "same-site",
        )
        if host not in self.hosts or foreign:
            answer = _refusal(403, "This page answers its own address on this machine and nothing else.")
        try:
            await answer(scope, receive, send_guarded)
        except Exception:  # noqa: BLE001 - answered already; the traceback is for this terminal
            traceback.print_exc()
