"""Single-threaded server for many connections: bounded lines in, one reply at a time out, a tick every second."""

import contextlib
import logging
import select
import selectors
import socket
import time
from typing import Callable, Dict, NamedTuple, Optional

from fedge.powerd import line_protocol
from fedge.powerd.mode_records import PowerdRefusal
from fedge.powerd.sockets import Peer, peer_of

logger = logging.getLogger(__name__)

CHUNK = 4096


class ConnectionLimits(NamedTuple):
    """Limits of the server; defaults that bound memory and let no user or slow client block the others.

    Attributes:
        idle_s: Seconds between two complete requests.
        slow_s: Seconds for a client to receive its reply.
    """

    connections: int = 512
    per_user: int = 128
    idle_s: float = 60.0
    slow_s: float = 10.0
    tick_s: float = 1.0


DEFAULT_LIMITS = ConnectionLimits()


class Connection:
    """One client: at most one request waits to be read and one reply to be sent."""

    def __init__(self, link: socket.socket, peer: Peer, now_s: float) -> None:
        self.link, self.peer = link, peer
        self.lines = line_protocol.LineBuffer()
        self.unsent = b""
        self.ends = False
        """No more is read; the connection is closed when everything is sent."""
        self.since_s = now_s

    def is_hung_up(self) -> bool:
        """Return whether the client has closed both directions; after closing only one it still reads replies."""
        poll = select.poll()
        poll.register(self.link, 0)  # POLLHUP is reported without being requested
        return bool(poll.poll(0))

    def is_overdue(self, now_s: float, limits: ConnectionLimits) -> bool:
        """Return whether this client's time limit has passed.

        A client that reads its replies is never closed for the time in which the server was busy with others.
        """
        waits = self.unsent or self.lines.has_line()
        if waits and self.has_room():
            return False
        return now_s - self.since_s > (limits.slow_s if waits else limits.idle_s)

    def has_room(self) -> bool:
        """Return whether the kernel would take a reply: it takes the last one whole, and no other until it is read."""
        poll = select.poll()
        poll.register(self.link, select.POLLOUT)
        return bool(poll.poll(0))


class LineServer:
    """Serves many connections in one thread."""

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[bytes, int], bytes],
        why_not: Callable[[Peer], Optional[str]],
        tick: Callable[[], None],
        limits: ConnectionLimits = DEFAULT_LIMITS,
    ) -> None:
        """Prepare the server.

        ``answer`` converts a request line and a uid into a reply, ``why_not`` says why a peer is refused, and ``tick``
        is called every ``tick_s`` seconds.
        """
        self._listener, self._answer, self._why_not, self._tick = listener, answer, why_not, tick
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._open: Dict[int, Connection] = {}
        self._next_tick_s = time.monotonic()

    def serve(self, stopped: Callable[[], bool], wakeup: Optional[socket.socket] = None) -> None:
        """Serve until ``stopped`` is true, then close every connection.

        A byte at ``wakeup`` wakes the server at once.
        """
        self._selector.register(self._listener, selectors.EVENT_READ)
        if wakeup is not None:
            self._selector.register(wakeup, selectors.EVENT_READ)
        try:
            while not stopped():
                for key, _ in self._selector.select(max(0.0, self._next_tick_s - time.monotonic())):
                    self._dispatch(key.fileobj, wakeup)
                    self._tick_if_due()
                    if stopped():
                        break
                self._tick_if_due()
        finally:
            for connection in list(self._open.values()):
                self._close(connection)
            self._selector.close()

    def _tick_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_tick_s:
            return
        self._tick()
        self._next_tick_s = time.monotonic() + self._limits.tick_s
        for connection in [one for one in self._open.values() if one.is_overdue(now_s, self._limits)]:
            self._close(connection)

    def _dispatch(self, source: object, wakeup: Optional[socket.socket]) -> None:
        if source is self._listener:
            self._accept()
        elif wakeup is not None and source is wakeup:
            wakeup.recv(CHUNK)
        elif isinstance(source, socket.socket):
            connection = self._open.get(source.fileno())
            if connection is not None:
                self._step_connection(connection)

    def _accept(self) -> None:
        try:
            link = self._listener.accept()[0]
        except OSError as error:
            logger.debug("a connection was lost before it began: %s", error)
            return
        link.setblocking(False)
        try:
            peer = peer_of(link)
        except OSError:
            link.close()
            return
        too_many = self._overload_reason(peer.uid)
        if too_many is not None:
            _refuse_connection(link, PowerdRefusal("failed", too_many))
            return
        self._open[link.fileno()] = Connection(link, peer, time.monotonic())
        self._selector.register(link, selectors.EVENT_READ)

    def _overload_reason(self, uid: int) -> Optional[str]:
        """Return why one more connection of this user is refused; None if it is accepted.

        A limit per user keeps one user from shutting out the others.
        """
        own = sum(connection.peer.uid == uid for connection in self._open.values())
        if own >= self._limits.per_user:
            return f"{own} connections of uid {uid} are open, which is the most for one user; close some"
        if len(self._open) >= self._limits.connections:
            return f"{len(self._open)} connections are open, which is the most; close some, or try again later"
        return None

    def _step_connection(self, connection: Connection) -> None:
        """Send to or read from one client, then answer at most one request, so that all clients have their turn."""
        try:
            if connection.is_hung_up():
                self._discard_requests(connection)
                return
            if connection.unsent:
                self._send(connection)
            elif not connection.ends and not connection.lines.has_line():
                self._read(connection)
            if not connection.unsent:
                self._answer_next(connection)
        except OSError:
            self._close(connection)
            return
        waits = connection.unsent or connection.lines.has_line()
        if connection.ends and not waits:
            self._close(connection)
            return
        self._selector.modify(connection.link, selectors.EVENT_WRITE if waits else selectors.EVENT_READ)

    def _discard_requests(self, connection: Connection) -> None:
        """Discard the requests of a client that has disconnected, since nobody would receive the outcome."""
        with contextlib.suppress(OSError):  # the end of a connection that is gone may be an error
            self._read(connection)
        waiting = connection.lines.drain()
        if waiting:
            logger.info("uid %d is gone; %d bytes of requests are not carried out", connection.peer.uid, waiting)
        self._close(connection)

    def _read(self, connection: Connection) -> None:
        try:
            chunk = connection.link.recv(CHUNK)
        except BlockingIOError:
            return
        connection.lines.feed(chunk)
        connection.ends = not chunk

    def _answer_next(self, connection: Connection) -> None:
        try:
            line = self._next_line(connection)
            if line is None:
                return
        except PowerdRefusal as refused:
            logger.info("uid %d was turned away: %s", connection.peer.uid, refused.text)
            connection.unsent, connection.ends = line_protocol.encode_refusal(refused), True
            connection.lines.drain()
        else:
            connection.unsent = self._answer(line, connection.peer.uid)
        connection.since_s = time.monotonic()
        self._send(connection)

    def _next_line(self, connection: Connection) -> Optional[bytes]:
        line = connection.lines.pop_line()
        if line is None:
            if connection.ends and connection.lines.drain():
                raise PowerdRefusal("bad-request", "the request has no line end; send one JSON object and a line end")
            return None
        why = self._why_not(connection.peer)
        if why is not None:
            raise PowerdRefusal("not-allowed", why)
        return line

    def _send(self, connection: Connection) -> None:
        try:
            sent = connection.link.send(connection.unsent)
        except BlockingIOError:
            return
        connection.unsent = connection.unsent[sent:]

    def _close(self, connection: Connection) -> None:
        self._open.pop(connection.link.fileno(), None)
        self._selector.unregister(connection.link)
        connection.link.close()


def _refuse_connection(link: socket.socket, refused: PowerdRefusal) -> None:
    try:
        link.send(line_protocol.encode_refusal(refused))
    except OSError:
        logger.debug("a client that was turned away is gone already")
    finally:
        link.close()
