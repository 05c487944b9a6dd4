"""A dashboard page that is really served, by a thread of the test's own process."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from server.dashboard import http_server
from server.dashboard.http_server import ViewFeed, bind_socket
from server.dashboard.security import build_access
from server.dashboard.web_app import build_dashboard_app


@contextmanager
def served_page(feed: ViewFeed, token: str | None = None) -> Iterator[int]:
    """Gives the page's port; ends with all its streams."""
    listening = bind_socket("127.0.0.1", 0, 8450)  # a port that no other test takes right after
    port = listening.getsockname()[1]
    page = http_server._SecondaryServer(
        http_server._config(build_dashboard_app(feed, build_access("127.0.0.1", port, token)))
    )
    thread = threading.Thread(target=lambda: asyncio.run(page.serve(sockets=[listening])))
    thread.start()
    try:
        yield port
    finally:
        feed.close()
        page.should_exit = True
        thread.join(15)
