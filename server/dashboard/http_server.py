"""The HTTP server of the dashboard with its limits, and the feed that passes a source's changes on to all readers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedge.errors import BadInput, describe_error
from server.dashboard.views import CHANGES_JSON, VIEW_JSON, BoardHistory, FleetView, RoundView, compare_views


class ViewSource(Protocol):
    """A source of the dashboard's data, called by one thread at a time."""

    def view(self) -> FleetView:
        """Return the current view, cheaply if nothing has changed; an exception becomes ``FleetView.problem``."""
        ...

    def history(self, board: str) -> BoardHistory | None:
        """Return one board's rounds, power and events, or None if the board is unknown."""
        ...

    def round(self, number: int) -> RoundView | None:
        """Return one round's timeline, or None if the round does not exist."""
        ...


PERIOD_S = 0.5
"""Seconds between polls of the source, so that readers get changes at most twice a second."""
HEARTBEAT_S = 10.0
"""Seconds without a change after which a heartbeat is sent; a reader that gets none knows that the connection is
lost.
"""
MAX_BACKLOG = 32
"""Messages queued for a slow reader before it restarts with a snapshot; a default that bounds memory."""
MAX_READERS = 128
"""Number of simultaneous streams; a default that bounds memory and open sockets."""
PORTS_TRIED = 50
T = TypeVar("T")
logger = logging.getLogger(__name__)


class ViewFeed:
    """The source's view for many readers; the source is not polled while there are none. ``now_s`` is monotonic."""

    def __init__(
        self, source: ViewSource, period_s: float = PERIOD_S, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._period_s, self._now_s = source, period_s, now_s
        self._turn = asyncio.Lock()
        self._readers: set[asyncio.Queue[bytes | None]] = set()
        self._producer: asyncio.Task[None] | None = None
        self._view, self._json, self._polled_s = FleetView(), b"", float("-inf")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def is_full(self) -> bool:
        return len(self._readers) >= MAX_READERS

    async def view(self) -> FleetView:
        """Return the view, at most one period old."""
        await self._refresh()
        return self._view

    async def json(self) -> bytes:
        """Return the view as JSON, at most one period old."""
        await self._refresh()
        return self._json

    async def ask(self, question: Callable[[ViewSource], T]) -> T:
        """Query the source, at most one period behind, outside the event loop, one query at a time."""
        await self._refresh()
        async with self._turn:
            return await asyncio.to_thread(question, self._source)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events: a snapshot, then changes, and heartbeats while nothing changes."""
        self._loop = asyncio.get_running_loop()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_BACKLOG)
        await self._refresh()
        # No await between these two, so that the queue has every change since the snapshot.
        snapshot = _format_event("snapshot", self._json)
        self._readers.add(queue)
        self._start()
        try:
            yield snapshot
            while not self._closed:
                try:
                    message = await asyncio.wait_for(queue.get(), HEARTBEAT_S)
                except TimeoutError:
                    message = _format_heartbeat()
                if message is None:
                    return
                yield message
        finally:
            self._readers.discard(queue)

    def close(self) -> None:
        """End every stream; may be called from a signal handler."""
        self._closed = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_streams)

    def _end_streams(self) -> None:
        for queue in self._readers:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    def _start(self) -> None:
        if self._producer is None or self._producer.done():
            self._producer = asyncio.create_task(self._produce())

    async def _produce(self) -> None:
        while self._readers and not self._closed:
            await asyncio.sleep(self._period_s)
            await self._refresh()

    async def _refresh(self) -> None:
        """Poll the source, unless that was just done, and send changes to every reader."""
        async with self._turn:
            if self._now_s() - self._polled_s < 0.9 * self._period_s:
                return
            view, event, whole = await asyncio.to_thread(_poll_source, self._source, self._view, self._json)
            self._view, self._json, self._polled_s = view, whole, self._now_s()
        if event is not None:
            for queue in self._readers:
                self._send(queue, event)

    def _send(self, queue: asyncio.Queue[bytes | None], message: bytes) -> None:
        try:
            queue.put_nowait(message)
        except asyncio.QueueFull:
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(_format_event("snapshot", self._json))


def _poll_source(source: ViewSource, before: FleetView, before_json: bytes) -> tuple[FleetView, bytes | None, bytes]:
    """Return the current view, the event with the changes since ``before`` (None without), and the view as JSON."""
    try:
        after = source.view()
    except Exception as error:  # noqa: BLE001  edge of the process: shown on the page, which goes on
        problem = describe_error(error)
        if problem != before.problem:
            logger.warning("the source cannot be read: %s", problem)
        after = replace(before, problem=problem)
    change = compare_views(before, after)
    if change is None:
        return before, None, before_json or VIEW_JSON.dump_json(before)
    whole = VIEW_JSON.dump_json(after)
    if isinstance(change, FleetView):
        return after, _format_event("snapshot", whole), whole
    return after, _format_event("changes", CHANGES_JSON.dump_json(change, exclude_none=False)), whole


def _format_event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _format_heartbeat() -> bytes:
    return f"event: beat\ndata: {time.time():.3f}\n\n".encode()


MAX_CONNECTIONS = 512
"""Connections in all; half of the files that a process may usually open (1,024), so that the store has the rest."""
MAX_PER_ADDRESS = 64
"""Connections of one address that is not this machine's: a browser has six. A proxy here may have all."""
MAX_HEAD_BYTES = 32 * 2**10
"""Bytes of a request's head."""
REQUEST_LIMIT_S = 10.0
"""Seconds in which a request, with its body, must arrive. Default; the page's requests fit into one packet."""


class LimitedConnection(H11Protocol):
    """A connection of uvicorn that is closed if there are too many, or if a request does not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if self._is_one_too_many():
            self.transport.abort()
        else:
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._renew_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._renew_deadline()

    def _is_one_too_many(self) -> bool:
        address = self.client[0] if self.client else ""
        own = sum(one.client is not None and one.client[0] == address for one in self.connections)
        local = address in ("", "127.0.0.1", "::1")
        return len(self.connections) > MAX_CONNECTIONS or (not local and own > MAX_PER_ADDRESS)

    def _renew_deadline(self) -> None:
        """Let no deadline run while a whole request is answered, and one otherwise."""
        cycle = cast("Any", self.cycle)  # None before the first request
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._clear_deadline()
        elif self._deadline is None:
            self._set_deadline()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_LIMIT_S, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def bind_socket(host: str, port: int | None, default: int) -> socket.socket:
    """Open a listening socket.

    Without ``port`` it is the first free one from ``default``.

    Raises:
        BadInput: The host is not on this machine, or the port is taken or not permitted.
    """
    tried = [port] if port is not None else [*range(default, min(default + PORTS_TRIED, 65_536)), 0]
    for number in tried:
        try:
            return _open_socket(host, number)
        except socket.gaierror as error:
            raise BadInput("--listen", repr(host), "an address or name of this machine") from error
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise BadInput("--listen", repr(host), "an address or name of this machine") from error
            if error.errno not in {errno.EADDRINUSE, errno.EACCES} or number == tried[-1]:
                right = "a port that is free and that you may use (1024 and above)"
                raise BadInput("--port", f"{number} ({error.strerror})", right) from error
    raise AssertionError("the last port either listens or is refused")


def _open_socket(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(128)
    except OSError:
        opened.close()
        raise
    return opened


class _SignalledServer(uvicorn.Server):
    """Ends the streams before shutting down: an open stream would keep the server from ending."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._on_exit()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop the server on SIGINT and SIGTERM, but do not raise them again: the caller closes its resources."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _SecondaryServer(uvicorn.Server):
    """A second server in the same process; it ends with the first, which alone handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: Any, http: type[asyncio.Protocol] | Literal["auto"] = LimitedConnection) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        log_config=None,
        log_level="error",  # a client that sends rubbish writes no log: a warning of each would be 60 bytes
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        lifespan="off",
        ws="none",
    )


def serve(
    app: Any,
    listening: socket.socket,
    end_streams: Callable[[], None],
    beside: tuple[Any, socket.socket] | None = None,
) -> None:
    """Serve ``app``, and ``beside`` (another application with its own socket), until SIGINT or SIGTERM.

    ``end_streams`` is called first, from the signal's handler.
    """
    page = _SignalledServer(_config(app), end_streams)
    try:
        asyncio.run(_serve_both(page, listening, beside))
    except KeyboardInterrupt:
        return


async def _serve_both(
    page: _SignalledServer, listening: socket.socket, beside: tuple[Any, socket.socket] | None
) -> None:
    if beside is None:
        await page.serve(sockets=[listening])
        return
    app, other = beside
    # Its only peer is the proxy, which has limits of its own and sends a thousand messages a second.
    second = _SecondaryServer(_config(app, "auto"))
    running: Awaitable[None] = asyncio.ensure_future(second.serve(sockets=[other]))
    await page.serve(sockets=[listening])
    second.should_exit = True
    await running
