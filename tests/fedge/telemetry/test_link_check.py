"""A board measures its link by messages to its server, through the proxy that ends TLS; nothing of them is stored."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from contracts.live_server import LiveServer, Proxy, heard, live_server, make_keys

from fedge.devices.board_check import FAILED, PASSED, SKIPPED
from fedge.devices.node_settings import TelemetrySettings
from fedge.telemetry.link_check import LINK_MESSAGE_BYTES, check_link, measure_link
from fedge.telemetry.uplink import open_connection

BOARD = "nano-1"
pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class LinkSetup:
    """Server, proxy and the board's settings for them."""

    server: LiveServer
    proxy: Proxy
    settings: TelemetrySettings


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkSetup]:
    folder = tmp_path_factory.mktemp("link")
    keys = make_keys(folder / "keys", BOARD)
    with live_server(folder) as server:
        proxy = Proxy(keys, server.socket)
        proxy.open()
        settings = TelemetrySettings(
            url=f"https://127.0.0.1:{proxy.port}/telemetry",
            ca=keys / "ca.crt",
            certificate=keys / f"{BOARD}.crt",
            key=keys / f"{BOARD}.key",
        )
        yield LinkSetup(server, proxy, settings)
        proxy.cut()


def test_both_directions_are_measured_with_whole_messages_and_nothing_is_stored(setup: LinkSetup) -> None:
    now_s = itertools.count(0.0, 0.25).__next__
    with closing(open_connection(setup.settings)) as connection:
        down_mbps, up_mbps = measure_link(connection, "/telemetry", now_s)

    assert down_mbps == up_mbps == pytest.approx(2 * 8e-6 * LINK_MESSAGE_BYTES / 1.0), "two messages of two ticks each"
    assert heard(setup.server.socket) == {}


def test_the_finding_is_what_a_fleet_entry_takes(setup: LinkSetup) -> None:
    finding = check_link(setup.settings)
    assert (finding.what, finding.result) == ("link", PASSED)
    assert finding.seen.startswith("link: {down_mbps: ")
    assert "measured" in finding.seen


def test_without_a_server_it_says_what_to_do(setup: LinkSetup) -> None:
    nobody = check_link(setup.settings.model_copy(update={"url": "https://127.0.0.1:9/telemetry"}))

    assert (check_link(None).result, "`fedge fleet up`" in check_link(None).seen) == (SKIPPED, True)
    assert nobody.result == FAILED
    assert "cannot be reached" in nobody.seen
    assert "fedge board --serve" in nobody.seen


def test_a_server_of_another_version_is_no_failure_of_the_board(
    setup: LinkSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedge.telemetry.link_check.LINK_MESSAGE_BYTES", LINK_MESSAGE_BYTES + 1)
    finding = check_link(setup.settings)
    assert finding.result == SKIPPED
    assert "another version" in finding.seen


@dataclass(frozen=True, slots=True)
class AnsweringConnection:
    """Answers every message with one status, for the part of ``http.client.HTTPSConnection`` that a check uses."""

    status: int

    def request(self, *_: object, **__: object) -> None: ...

    def getresponse(self) -> AnsweringConnection:
        return self

    def read(self, _: int) -> bytes:
        return b""

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("status", "result", "said"),
    [
        (200, SKIPPED, "another version"),
        (400, SKIPPED, "another version"),
        (404, SKIPPED, "another version"),
        (405, SKIPPED, "another version"),
        (403, FAILED, "certificate"),
        (408, FAILED, "too slow, under "),
        (502, FAILED, "fedge board --serve"),
        (504, FAILED, "fedge board --serve"),
        (301, FAILED, "telemetry.url"),
    ],
)
def test_a_status_says_whether_the_board_the_server_or_its_version_is_at_fault(
    status: int, result: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedge.telemetry.link_check.open_connection", lambda _: AnsweringConnection(status))
    finding = check_link(TelemetrySettings(url="https://server/telemetry", ca="a", certificate="b", key="c"))
    assert finding.result == result
    assert said in finding.seen


def test_a_key_that_is_missing_is_named_and_not_taken_for_a_server_that_is_down(setup: LinkSetup) -> None:
    finding = check_link(setup.settings.model_copy(update={"key": "/nowhere/board.key"}))
    assert finding.result == FAILED
    assert "/nowhere/board.key cannot be used" in finding.seen
