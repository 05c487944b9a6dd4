"""The dashboard's web applications: read-only pages of one run and of a folder of runs, with their data as JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, Request
from pydantic import TypeAdapter
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedge.errors import FedgeError
from server.dashboard.http_server import ViewFeed, ViewSource
from server.dashboard.run_source import RunSource
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

        # The path below the application's own mount: what precedes it names a run (RunPages).
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


COMPARISON_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A report is one file with its scripts in it; its template escapes every text."""


class RunFolders(Protocol):
    """Source of the index of runs; called by one thread at a time."""

    def find(self) -> Mapping[str, Path]:
        """Return the folder of every run by its name."""
        ...

    def list_rows(self) -> Sequence[Mapping[str, Any]]:
        """Return one row per run for JSON, the newest first."""
        ...

    def render_comparison(self, folders: Sequence[Path]) -> str:
        """Return the page that compares runs; a ``FedgeError`` says why it cannot."""
        ...


class RunPages:
    """ASGI application with a page per run, ``NAME/``; a run is read once its page is opened."""

    def __init__(self, find: Callable[[], Mapping[str, Path]], access: Access) -> None:
        self._find, self._access = find, access
        self._apps: dict[str, ASGIApp] = {}
        self._feeds: list[ViewFeed] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "")
        name, slash, _ = str(scope["path"]).removeprefix(root).lstrip("/").partition("/")
        app: ASGIApp | None = self._apps.get(name) or await asyncio.to_thread(self._open_run, name)
        if app is None:
            app = JSONResponse({"problem": "no run of that name"}, 404)
        elif not slash:
            app = RedirectResponse(f"{root}/{name}/")
        await app({**scope, "root_path": f"{root}/{name}"}, receive, send)

    def _open_run(self, name: str) -> ASGIApp | None:
        folder = self._find().get(name)
        if folder is None:
            return None
        feed = ViewFeed(RunSource(folder))
        self._feeds.append(feed)
        return self._apps.setdefault(name, build_dashboard_app(feed, self._access))

    def close(self) -> None:
        """End the streams of all pages; may be called from a signal handler."""
        for feed in self._feeds:
            feed.close()


def build_index_app(folders: RunFolders, access: Access) -> tuple[FastAPI, RunPages]:
    """Build the application, and the pages whose streams are to be closed at its end."""
    app, pages, turn = build_guarded_app("runs", access), RunPages(folders.find, access), asyncio.Lock()

    async def list_rows() -> Response:
        async with turn:
            return JSONResponse({"runs": list(await asyncio.to_thread(folders.list_rows))})

    async def compare(request: Request) -> Response:
        async with turn:
            known = await asyncio.to_thread(folders.find)
            chosen = [known[name] for name in request.query_params.getlist("run") if name in known]
            try:
                page = await asyncio.to_thread(folders.render_comparison, chosen)
            except FedgeError as error:
                return JSONResponse({"problem": str(error)}, 409)
            except Exception as error:  # noqa: BLE001  edge of the process: the page goes on
                logger.warning("a comparison was not made: %s", error)
                return JSONResponse({"problem": "this cannot be compared now"}, 503)
        return HTMLResponse(page, headers={"content-security-policy": COMPARISON_POLICY})

    app.get("/api/runs")(list_rows)
    app.get("/api/compare")(compare)
    app.mount("/runs", pages)
    return app, pages
