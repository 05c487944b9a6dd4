"""The feed of many readers, the sockets, connections that say nothing, and a page that is really served."""

import asyncio
import http.client
import json
import select
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from contracts.board_runs import begin, play
from contracts.processes import wait_for
from contracts.served_page import served_page

from fedge.errors import BadInput
from server.dashboard import http_server
from server.dashboard.http_server import ViewFeed, bind_socket
from server.dashboard.run_source import RunSource
from server.dashboard.security import build_access
from server.dashboard.views import BoardHistory, BoardView, FleetView, RoundView, Summary
from server.dashboard.web_app import build_dashboard_app


class Scripted:
    """A source whose view is set by the test; counts how often it is looked at."""

    def __init__(self) -> None:
        self.now, self.looks = FleetView(boards=(BoardView("nano-1"), BoardView("nano-2"))), 0

    def view(self) -> FleetView:
        self.looks += 1
        return self.now

    def history(self, board: str) -> BoardHistory | None:
        return None

    def round(self, number: int) -> RoundView | None:
        return None


def told(message: bytes) -> tuple[str, Any]:
    head, data = message.decode().rstrip("\n").split("\n")
    return head.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def read(stream: AsyncIterator[bytes]) -> tuple[str, Any]:
    return told(await asyncio.wait_for(anext(stream), 10))


def test_a_reader_hears_everything_once_and_then_only_what_changed():
    async def story() -> None:
        source = Scripted()
        feed = ViewFeed(source, period_s=0.01)
        stream = feed.events()
        name, whole = await read(stream)
        assert (name, len(whole["boards"])) == ("snapshot", 2)
        source.now = FleetView(boards=(BoardView("nano-1", power_w=5.0), BoardView("nano-2")))
        name, part = await read(stream)
        assert (name, [board["name"] for board in part["boards"]], part["summary"]) == ("changes", ["nano-1"], None)
        source.now = FleetView(boards=source.now.boards, summary=Summary(round=1))
        name, part = await read(stream)
        assert (name, part["boards"], part["summary"]["round"]) == ("changes", [], 1)
        await stream.aclose()

    asyncio.run(story())


def test_many_readers_share_one_look_and_without_readers_nobody_looks():
    async def story() -> None:
        source = Scripted()
        feed = ViewFeed(source, period_s=0.02)
        streams = [feed.events() for _ in range(20)]
        for stream in streams:
            assert (await read(stream))[0] == "snapshot"
        before = source.looks
        source.now = FleetView(boards=(BoardView("nano-1", power_w=5.0), BoardView("nano-2")))
        assert {(await read(stream))[0] for stream in streams} == {"changes"}
        assert source.looks - before <= 5
        for stream in streams:
            await stream.aclose()
        producer = feed._producer
        assert producer is not None
        await asyncio.wait_for(producer, 10)

    asyncio.run(story())


def test_a_reader_that_is_slow_starts_anew_with_a_snapshot(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_BACKLOG", 2)

    async def story() -> None:
        source = Scripted()
        feed = ViewFeed(source, period_s=0.0)
        stream = feed.events()
        assert (await read(stream))[0] == "snapshot"
        (waiting,) = feed._readers
        for watts in range(3):
            source.now = FleetView(boards=(BoardView("nano-1", power_w=float(watts)), BoardView("nano-2")))
            await feed.view()
        assert waiting.qsize() == 1
        name, whole = await read(stream)
        assert (name, whole["boards"][0]["power_w"]) == ("snapshot", 2.0)
        await stream.aclose()

    asyncio.run(story())


def test_a_reader_without_news_hears_a_beat_and_a_closed_feed_ends(monkeypatch):
    monkeypatch.setattr(http_server, "HEARTBEAT_S", 0.05)

    async def story() -> None:
        feed = ViewFeed(Scripted(), period_s=0.01)
        stream = feed.events()
        assert (await read(stream))[0] == "snapshot"
        assert (await read(stream))[0] == "beat"
        feed.close()
        async for message in stream:
            assert told(message)[0] == "beat"

    asyncio.run(story())


def test_the_first_free_port_is_taken_unless_one_was_asked_for():
    with bind_socket("127.0.0.1", None, 8450) as first, bind_socket("127.0.0.1", None, 8450) as second:
        port = first.getsockname()[1]
        assert second.getsockname()[1] > port
        with pytest.raises(BadInput, match="--port"):
            bind_socket("127.0.0.1", port, 8450)


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_that_is_not_this_machines_is_refused(host):
    with pytest.raises(BadInput, match="--listen"):
        bind_socket(host, None, 8450)


def test_a_source_that_fails_becomes_a_line_and_the_page_goes_on():
    class Failing(Scripted):
        def view(self) -> FleetView:
            self.looks += 1
            if self.looks == 2:
                raise PermissionError(13, "Permission denied", "/srv/runs")
            return self.now

    async def story() -> None:
        feed = ViewFeed(Failing(), period_s=0.01)
        stream = feed.events()
        assert (await read(stream))[0] == "snapshot"
        assert "Permission denied" in (await read(stream))[1]["problem"]
        assert (await read(stream))[1]["problem"] == ""
        await stream.aclose()

    asyncio.run(story())


def asking(port: int) -> socket.socket:
    """A connection on which the stream was asked for."""
    opened = socket.create_connection(("127.0.0.1", port), 20)
    opened.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return opened


def test_a_reader_that_does_not_read_costs_no_more_than_its_backlog():
    source = Scripted()
    feed = ViewFeed(source, period_s=0.001)
    large = "x" * 100_000

    with served_page(feed) as port, asking(port) as idle, asking(port) as busy, busy.makefile("rb") as reader:
        assert idle.fileno() >= 0
        for number in range(200):
            source.now = FleetView(boards=(BoardView("nano-1", error=f"{number}{large}"), BoardView("nano-2")))
            assert any(f"{number}x".encode() in line for line in iter(reader.readline, b""))
        waiting = [queue.qsize() for queue in feed._readers]
    assert len(waiting) == 2
    assert max(waiting) <= http_server.MAX_BACKLOG
    assert max(waiting) > 0, "who does not read was not asked to wait for"


def test_a_page_that_is_served_streams_and_ends(tmp_path):
    from http.client import HTTPConnection

    tables = begin(tmp_path / "run", 3)
    feed = ViewFeed(RunSource(tmp_path / "run"), period_s=0.05)
    listening = bind_socket("127.0.0.1", None, 8450)
    port = listening.getsockname()[1]
    page = http_server._SignalledServer(
        http_server._config(build_dashboard_app(feed, build_access("127.0.0.1", port, None))), feed.close
    )
    page.capture_signals = http_server._SecondaryServer.capture_signals.__get__(page)
    thread = threading.Thread(target=lambda: asyncio.run(page.serve(sockets=[listening])))
    thread.start()
    try:
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/api/stream")
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.readline() == b"event: snapshot\n"
        play(tables, 3, 1)
        lines = iter(answer.readline, b"")
        # The clients' rows may be read before that of the round.
        changes = (json.loads(next(lines).removeprefix(b"data: ")) for line in lines if line == b"event: changes\n")
        assert any(change["summary"] and change["summary"]["round"] == 1 for change in changes)
    finally:
        page.handle_exit(2, None)
        thread.join(15)
    assert not thread.is_alive()
    # Whether the port answers says nothing: a test beside this one may have it by now.
    assert listening.fileno() == -1


LIMIT_S = 30.0


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(http_server, "REQUEST_LIMIT_S", 0.5)
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 10)
    with served_page(ViewFeed(Scripted())) as number:
        wait_for(lambda: is_answering(number), "the page", LIMIT_S)
        yield number


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), LIMIT_S)


def is_answering(port: int) -> bool:
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        asked.request("GET", "/")
        return asked.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asked.close()


def is_closed(link: socket.socket) -> bool:
    try:
        return link.recv(4096) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "text", [b"", b"GET / HTTP/1.1\r\nHost: x", b"POST /api/login HTTP/1.1\r\nHost: localhost\r\n"]
)
def test_a_request_that_does_not_arrive_in_time_ends_its_connection(port, text):
    with connect(port) as link:
        link.sendall(text)
        assert is_closed(link)


def test_a_head_without_end_is_refused_before_it_takes_memory(port):
    with connect(port) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError):
            link.sendall(b"x-endless: " + b"y" * 2**26)  # more than the kernel's buffers take


def test_rubbish_is_answered_and_not_logged(port, caplog):
    with connect(port) as link:
        link.sendall(b"\x16\x03\x01 rubbish\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 400")
    assert not caplog.records


def test_connections_beyond_the_limit_are_closed_and_the_page_answers_once_those_that_say_nothing_are_gone(port):
    links = [connect(port) for _ in range(40)]
    wait_for(lambda: is_answering(port), "the page", LIMIT_S)
    assert all(is_closed(link) for link in links)
    for link in links:
        link.close()


def test_one_address_elsewhere_takes_no_place_from_the_others(port, monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(http_server, "MAX_PER_ADDRESS", 3)
    links = [socket.create_connection(("127.0.0.1", port), LIMIT_S, ("127.0.0.2", 0)) for _ in range(8)]
    other = socket.create_connection(("127.0.0.1", port), LIMIT_S, ("127.0.0.3", 0))

    wait_for(lambda: len(select.select(links, [], [], 0)[0]) == 5, "those beyond the limit are closed", LIMIT_S)
    assert all(is_closed(link) for link in select.select(links, [], [], 0)[0])
    assert not select.select([other], [], [], 0)[0]
    assert is_answering(port)
    for link in (*links, other):
        link.close()


def test_a_stream_outlives_the_limit_of_a_request(port):
    with connect(port) as link:
        link.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = b""
        while b"\n\n" not in found.partition(b"snapshot")[2]:
            found += link.recv(65536)
        link.settimeout(3 * http_server.REQUEST_LIMIT_S)
        with pytest.raises(TimeoutError):  # open, and nothing changed
            link.recv(1)
