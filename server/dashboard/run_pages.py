"""The dashboard of a folder of runs: an index with one live row per run, every run's own page below it, comparisons."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fedge.errors import FedgeError
from server.dashboard.http_server import ViewFeed
from server.dashboard.run_source import RunSource
from server.dashboard.security import Access
from server.dashboard.web_app import build_dashboard_app, build_guarded_app

logger = logging.getLogger(__name__)
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
