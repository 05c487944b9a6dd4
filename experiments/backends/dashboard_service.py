"""Starts the dashboard: for a run folder, as a relay of another dashboard, or as the service of a real fleet."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.backends.run_list import find_run_folders, list_runs
from fedge.errors import BadInput
from fedge.network_addresses import is_loopback
from server.dashboard.http_server import ViewFeed, ViewSource, bind_socket, serve
from server.dashboard.prometheus_metrics import make_exposition
from server.dashboard.relay_source import RelaySource
from server.dashboard.run_source import FleetSource, RunSource
from server.dashboard.security import Access, build_access, generate_token, read_or_create_token
from server.dashboard.telemetry_ingest import RetentionLimits, ingest_app, open_ingest
from server.dashboard.web_app import build_dashboard_app, build_index_app

DEFAULT_PORT = 8400
SOCKET_MODE = 0o660
"""Permissions of the telemetry socket: the proxy's group may connect, others may not."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the dashboard listens.

    Attributes:
        port: TCP port; None takes the first free one.
        token_file: File with the access token, created if missing; None needs no token on loopback and generates one
            otherwise.
        names: Additional host names under which a proxy serves the page.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    token_file: Path | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetDashboard:
    """Settings of the dashboard service of a real fleet.

    Attributes:
        ingest: Unix socket that accepts the boards' telemetry.
    """

    store: Path
    runs: Path | None
    ingest: Path
    store_bytes: int
    """Size of the store, in bytes, beyond which the oldest samples are deleted."""
    store_age_s: float
    """Age of samples, in seconds, beyond which they are deleted."""


def show_run(folder: Path, place: ListenAddress, told: Callable[[str], None]) -> None:
    """Serve a run folder until interrupted; ``told`` is called with the page's address once it can be opened."""
    _serve_source(RunSource(folder), place, told)


def show_runs(folder: Path, place: ListenAddress, told: Callable[[str], None]) -> None:
    """Serve an index of the runs in a folder, with every run's page, until interrupted; ``told`` as in ``show_run``."""
    access, listening, url = _open_address(place)
    app, pages = build_index_app(ListedFolders(folder), access)
    told(url)
    serve(app, listening, pages.close)


@dataclass(frozen=True, slots=True)
class ListedFolders:
    """The runs in a folder."""

    folder: Path

    def find(self) -> dict[str, Path]:
        return {path.name: path for path in find_run_folders(self.folder)}

    def list_rows(self) -> list[dict[str, Any]]:
        return [{**asdict(one), "folder": str(one.folder)} for one in list_runs(self.folder)]

    def render_comparison(self, folders: Sequence[Path]) -> str:
        from experiments.report.run.run_page import render_report

        return render_report(folders)


def show_relay(
    url: str, token: str | None, place: ListenAddress, told: Callable[[str], None], note: Callable[[str], None]
) -> None:
    """Serve the contents of another dashboard until interrupted.

    ``told`` is called with the page's address once it can be opened, ``note`` with the reason if the other dashboard
    cannot be read yet.
    """
    source = RelaySource(url, token)
    problem = source.view().problem
    if problem:
        note(f"{problem}; the page goes on trying")
    _serve_source(source, place, told)


def serve_fleet(
    service: FleetDashboard,
    place: ListenAddress,
    told: Callable[[str], None],
    now_s: Callable[[], float] = time.time,
) -> None:
    """Serve the dashboard of a real fleet and accept its telemetry until interrupted; ``now_s`` returns unix time."""
    ingest = open_ingest(service.store, RetentionLimits(service.store_bytes, service.store_age_s), now_s)
    try:
        with _private_umask():
            listening = _listen_unix(service.ingest)
        source = FleetSource(ingest, service.store, service.runs, now_s)
        _serve_source(source, place, told, (ingest_app(ingest), listening))
    finally:
        ingest.close()
        service.ingest.unlink(missing_ok=True)


def _serve_source(
    source: ViewSource,
    place: ListenAddress,
    announce: Callable[[str], None],
    beside: tuple[object, socket.socket] | None = None,
) -> None:
    access, listening, url = _open_address(place)
    feed = ViewFeed(source)
    app = build_dashboard_app(feed, access, make_exposition())
    announce(url)
    serve(app, listening, feed.close, beside)


def _open_address(place: ListenAddress) -> tuple[Access, socket.socket, str]:
    """Listen at an address, and return who has access and the page's URL."""
    token = (
        read_or_create_token(place.token_file)
        if place.token_file
        else None
        if is_loopback(place.host)
        else generate_token()
    )
    listening = bind_socket(place.host, place.port, DEFAULT_PORT)
    port = listening.getsockname()[1]
    # A token from a file is not printed, because others may be able to read the output.
    shown = f"#token={token}" if token and not place.token_file else ""
    url = f"http://{_browsable_host(place.host)}:{port}/{shown}"
    return build_access(place.host, port, token, place.names), listening, url


def _browsable_host(host: str) -> str:
    """Return a host name for the page's URL; wildcard addresses cannot be opened."""
    if host in {"0.0.0.0", "::"}:  # noqa: S104  compared, not bound
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _listen_unix(path: Path) -> socket.socket:
    """Return a listening Unix socket, replacing a stale one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_socket():
            path.unlink()
        opened = socket.socket(socket.AF_UNIX)
        opened.bind(str(path))
        path.chmod(SOCKET_MODE)
        opened.listen(128)
    except OSError as error:
        raise BadInput("ingest", str(path), f"a path for a unix socket ({error.strerror or error})") from error
    return opened


@contextlib.contextmanager
def _private_umask() -> Iterator[None]:
    before = os.umask(0o117)
    try:
        yield
    finally:
        os.umask(before)
