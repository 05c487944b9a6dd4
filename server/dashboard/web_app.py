"""The dashboard's web application: read-only, with one page, its files, and its data as JSON and as a stream."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import TypeAdapter
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.dashboard.http_server import ViewFeed, ViewSource
from server.dashboard.security import HEADERS, OPEN_TO_ALL, Access
from server.dashboard.views import HISTORY_JSON, ROUND_JSON, FleetView

logger = logging.getLogger(__name__)
T = TypeVar("T")
STATIC = Path(__file__).parent / "static"
Exposition = Callable[[FleetView], bytes]
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class AccessGuard:
    """ASGI middleware that checks host and token of requests, and adds security headers to responses."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "cache-control": "no-store"}.items():
                    headers.setdefault(name, value)
            await send(message)

        # The path below the application's own mount: what precedes it names a run (run_pages).
        path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
        refusal = self._refusal(Headers(scope=scope), path)
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, headers: Headers, path: str) -> Response | None:
        if not self._access.knows_host(headers.get("host", "")):
            return _problem(421, "this page does not go by that host name: open it by the address that was printed")
        figures = path.startswith("/api/") or path == "/metrics"
        if figures and headers.get("sec-fetch-site") in {"cross-site", "same-site"}:
            return _problem(403, "another site's page asked for this")
        if path in OPEN_TO_ALL or not figures:
            return None
        if self._access.may_read(headers.get("authorization", ""), headers.get("cookie", "")):
            return None
        return _problem(401, "a token is needed", {"www-authenticate": "Bearer"})


def _problem(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"problem": text}, status, headers)


def build_dashboard_app(feed: ViewFeed, access: Access, exposition: Exposition | None = None) -> FastAPI:
    """Build the application; it has ``/metrics`` if there is an ``exposition`` to render it."""
    app = build_guarded_app("board", access)
    _add_figures(app, feed)
    if exposition is not None:

        async def metrics() -> Response:
            return Response(exposition(await feed.view()), media_type=METRICS_TYPE)

        app.get("/metrics")(metrics)
    return app


def build_guarded_app(page: str, access: Access) -> FastAPI:
    """Build an application with a page, its static files and the login, for those who have access.

    ``page`` is ``board`` or ``runs``: the name of its script and of its part of the page.
    """
    html = render_page(page)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(AccessGuard, access=access)

    async def index() -> Response:
        return HTMLResponse(html, headers={"cache-control": "no-cache"})

    app.get("/")(index)
    app.mount("/static", _RevalidatedFiles(directory=STATIC), name="static")
    app.get("/api/login")(_build_login_handler(access))
    return app


def render_page(name: str) -> str:
    """Return a page: the head and the login that all have, and its own part."""
    page = Template((STATIC / "page.html").read_text(encoding="utf-8"))
    return page.substitute(title=f"fedge {name}", name=name, body=(STATIC / f"{name}.html").read_text(encoding="utf-8"))


class _RevalidatedFiles(StaticFiles):
    """Static files that browsers revalidate on every load, so that versions are never mixed."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


def _build_login_handler(access: Access) -> Callable[[Request], Awaitable[Response]]:
    async def log_in(request: Request) -> Response:
        """Exchange the token for a cookie that scripts cannot read."""
        if not access.may_read(request.headers.get("authorization", ""), request.headers.get("cookie", "")):
            return _problem(401, "the token is missing or wrong", {"www-authenticate": "Bearer"})
        response = Response(status_code=204)
        if access.token is not None:
            response.set_cookie(
                access.cookie, access.cookie_value, httponly=True, samesite="strict", secure=access.secure
            )
        return response

    return log_in


def _add_figures(app: FastAPI, feed: ViewFeed) -> None:
    async def view(request: Request) -> Response:
        return _build_etag_response(request, await feed.json())

    async def stream() -> Response:
        if feed.is_full:
            return _problem(503, "too many pages are open: close one")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(feed.events(), media_type="text/event-stream", headers=headers)

    async def board(name: str) -> Response:
        return await _answer_question(feed, lambda source: source.history(name), HISTORY_JSON, "no board of that name")

    async def round_(number: int) -> Response:
        return await _answer_question(feed, lambda source: source.round(number), ROUND_JSON, "no round of that number")

    app.get("/api/view")(view)
    app.get("/api/stream")(stream)
    app.get("/api/boards/{name}")(board)
    app.get("/api/rounds/{number}")(round_)


async def _answer_question(
    feed: ViewFeed, question: Callable[[ViewSource], T | None], form: TypeAdapter[T], absent: str
) -> Response:
    try:
        answer = await feed.ask(question)
    except Exception as error:  # noqa: BLE001  edge of the process: the page goes on
        logger.warning("a question was not answered: %s", error)
        return _problem(503, "this cannot be read now")
    if answer is None:
        return _problem(404, absent)
    return Response(form.dump_json(answer), media_type="application/json")


def _build_etag_response(request: Request, body: bytes) -> Response:
    """Return the body, or status 304 if the reader already has it."""
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    return Response(body, media_type="application/json", headers={"etag": tag, "cache-control": "no-cache"})
