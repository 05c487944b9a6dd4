"""Connections that say nothing, too much, or are too many, against a page that is really served."""

from __future__ import annotations

import http.client
import select
import socket
from collections.abc import Iterator

import pytest
from contracts.processes import wait_for
from contracts.served_page import served_page

from server.dashboard import http_server
from server.dashboard.http_server import ViewFeed
from server.dashboard.views import BoardHistory, FleetView, RoundView

LIMIT_S = 30.0


class EmptySource:
    def view(self) -> FleetView:
        return FleetView()

    def history(self, board: str) -> BoardHistory | None:
        return None

    def round(self, number: int) -> RoundView | None:
        return None


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(http_server, "REQUEST_LIMIT_S", 0.5)
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 10)
    with served_page(ViewFeed(EmptySource())) as number:
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
def test_a_request_that_does_not_arrive_in_time_ends_its_connection(port: int, text: bytes) -> None:
    with connect(port) as link:
        link.sendall(text)
        assert is_closed(link)


def test_a_head_without_end_is_refused_before_it_takes_memory(port: int) -> None:
    with connect(port) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError):
            link.sendall(b"x-endless: " + b"y" * 2**26)  # more than the kernel's buffers take


def test_connections_beyond_the_limit_are_closed_and_the_page_answers_once_those_that_say_nothing_are_gone(
    port: int,
) -> None:
    links = [connect(port) for _ in range(40)]
    wait_for(lambda: is_answering(port), "the page", LIMIT_S)
    assert all(is_closed(link) for link in links)
    for link in links:
        link.close()


def test_one_address_elsewhere_takes_no_place_from_the_others(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_stream_outlives_the_limit_of_a_request(port: int) -> None:
    with connect(port) as link:
        link.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = b""
        while b"\n\n" not in found.partition(b"snapshot")[2]:
            found += link.recv(65536)
        link.settimeout(3 * http_server.REQUEST_LIMIT_S)
        with pytest.raises(TimeoutError):  # open, and nothing changed
            link.recv(1)
