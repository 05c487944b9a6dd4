"""A board's sender tries again, longer and longer, and tells what the board does now, whatever it sends of the past."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from contracts.live_server import LiveServer, Proxy, heard, live_server, make_keys
from contracts.processes import wait_for
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.board_check import FAILED, PASSED, SKIPPED
from fedge.devices.local_board import TelemetrySettings
from fedge.telemetry import uplink
from fedge.telemetry.live_records import BoardProgress, TelemetryBatch, decode_batch
from fedge.telemetry.outbox import Outbox, Spool
from fedge.telemetry.uplink import (
    FIRST_PAUSE_S,
    LINK_MESSAGE_BYTES,
    LONGEST_PAUSE_S,
    Delivery,
    HttpsUplink,
    TelemetrySender,
    check_link,
    classify_status,
    measure_link,
    open_connection,
    retry_pause_s,
)
from fedge.types import Trace

T0 = 1_790_000_000.0


class FakeLink:
    """Keeps what is posted; ``outcomes`` are what becomes of it, then all is taken."""

    def __init__(self, *outcomes: Delivery | Exception) -> None:
        self.posted: list[TelemetryBatch] = []
        self.outcomes = list(outcomes)
        self.closed = False

    def send(self, message: bytes) -> Delivery:
        self.posted.append(decode_batch(message))
        outcome = self.outcomes.pop(0) if self.outcomes else "taken"
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def close(self) -> None:
        self.closed = True


class BrokenConnection:
    """A connection over which no request goes."""

    closed = False

    def request(self, *args: object, **more: object) -> None:
        raise OSError("no route")

    def close(self) -> None:
        self.closed = True


def second(number: int) -> Trace:
    return Trace((T0 + number,), (1.0,), (5.0,), *(((None,),) * 7))


def sender_of(tmp_path: Path, link: FakeLink) -> tuple[Outbox, TelemetrySender, list[str]]:
    box, states = Outbox("nano-1", "s", Spool(tmp_path, 10**6, 1e9)), ["idle"]
    return (
        box,
        TelemetrySender(
            box, link, lambda: BoardProgress("nano-1", T0, "idle", run=states[-1]), lambda: T0, lambda: 0.0
        ),
        states,
    )


def test_what_is_seen_while_an_empty_batch_is_made_is_sent_after_it(tmp_path, monkeypatch):
    link = FakeLink()
    box, sender, _ = sender_of(tmp_path, link)
    lock = box._turn

    class OtherThreadNext:
        """A lock whose first release lets the collector's thread in."""

        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *error: object) -> None:
            lock.release()
            monkeypatch.undo()
            box.add(second(0), T0)

    monkeypatch.setattr(box, "_turn", OtherThreadNext())
    sender.send_oldest()
    sender.send_oldest()

    assert [(each.seq, len(each.trace)) for each in link.posted] == [(1, 0), (2, 1)]


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_grow_to_a_minute_and_differ(failures, random):
    assert FIRST_PAUSE_S <= retry_pause_s(failures, random) <= LONGEST_PAUSE_S
    assert retry_pause_s(failures, 0.0) <= retry_pause_s(failures, random) <= retry_pause_s(failures, 1.0)
    assert retry_pause_s(failures, random) <= retry_pause_s(failures + 1, random)


def test_pauses_double_up_to_a_minute():
    assert [retry_pause_s(failures, 1.0) for failures in (1, 2, 3, 6, 7, 10_000)] == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]


def test_a_message_that_failed_goes_again_before_all_others_with_what_is_now(tmp_path):
    link = FakeLink("again", OSError("no route"), "taken", "taken")
    box, sender, states = sender_of(tmp_path, link)
    box.add(second(0), T0)
    assert not sender.send_oldest()
    states.append("later")
    box.add(second(1), T0)
    assert [sender.send_oldest() for _ in range(3)] == [False, True, True]
    assert [(each.seq, each.trace.start_s[0] - T0) for each in link.posted] == [(1, 0), (1, 0), (1, 0), (2, 1)]
    assert [each.progress.run for each in link.posted if each.progress] == ["idle", "later", "later", "later"]


def test_a_message_that_nobody_will_ever_take_does_not_hold_up_the_others(tmp_path):
    link = FakeLink("refused")
    box, sender, _ = sender_of(tmp_path, link)
    box.add(second(0), T0)
    assert sender.send_oldest()
    box.add(second(1), T0)
    assert sender.send_oldest()
    assert [(each.seq, each.lost) for each in link.posted] == [(1, 0), (2, 1)]


def test_only_a_final_answer_gives_a_message_up():
    assert classify_status(200) == "taken"
    assert {classify_status(status) for status in (400, 413, 422)} == {"refused"}
    assert {classify_status(status) for status in (301, 403, 404, 503)} == {"again"}


def test_a_connection_that_fails_is_closed_and_its_message_goes_again(tmp_path, monkeypatch, caplog):
    opened: list[BrokenConnection] = []

    def open_broken(_: TelemetrySettings) -> BrokenConnection:
        opened.append(BrokenConnection())
        return opened[-1]

    url, file = "https://localhost/telemetry", tmp_path / "none"
    link = HttpsUplink(TelemetrySettings(url=url, ca=file, certificate=file, key=file))
    assert link.send(b"{}") == "again", "without certificates there is no connection"
    monkeypatch.setattr(uplink, "open_connection", open_broken)
    caplog.clear()
    assert [link.send(b"{}") for _ in range(2)] == ["again", "again"]
    assert [connection.closed for connection in opened] == [True, True]
    assert [record.message.count("no route") for record in caplog.records] == [1], "one trouble is told once"


def test_it_ends_when_told_to_and_closes_its_link(tmp_path):
    link = FakeLink(*["again"] * 50)
    _, sender, _ = sender_of(tmp_path, link)
    thread = threading.Thread(target=sender.run)
    thread.start()
    wait_for(lambda: link.posted)
    sender.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert link.closed


BOARD = "nano-1"


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


@pytest.mark.slow
def test_both_directions_are_measured_with_whole_messages_and_nothing_is_stored(setup):
    now_s = itertools.count(0.0, 0.25).__next__
    with closing(open_connection(setup.settings)) as connection:
        down_mbps, up_mbps = measure_link(connection, "/telemetry", now_s)

    assert down_mbps == up_mbps == pytest.approx(2 * 8e-6 * LINK_MESSAGE_BYTES / 1.0), "two messages of two ticks each"
    assert heard(setup.server.socket) == {}


@pytest.mark.slow
def test_the_finding_is_what_a_fleet_entry_takes(setup):
    finding = check_link(setup.settings)
    assert (finding.what, finding.result) == ("link", PASSED)
    assert finding.seen.startswith("link: {down_mbps: ")
    assert "measured" in finding.seen


@pytest.mark.slow
def test_without_a_server_it_says_what_to_do(setup):
    nobody = check_link(setup.settings.model_copy(update={"url": "https://127.0.0.1:9/telemetry"}))

    assert (check_link(None).result, "`fedge fleet up`" in check_link(None).seen) == (SKIPPED, True)
    assert nobody.result == FAILED
    assert "cannot be reached" in nobody.seen
    assert "fedge board --serve" in nobody.seen


@pytest.mark.slow
def test_a_server_of_another_version_is_no_failure_of_the_board(setup, monkeypatch):
    monkeypatch.setattr("fedge.telemetry.uplink.LINK_MESSAGE_BYTES", LINK_MESSAGE_BYTES + 1)
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

    def isclosed(self) -> bool:
        return True

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
def test_a_status_says_whether_the_board_the_server_or_its_version_is_at_fault(status, result, said, monkeypatch):
    monkeypatch.setattr("fedge.telemetry.uplink.open_connection", lambda _: AnsweringConnection(status))
    finding = check_link(TelemetrySettings(url="https://server/telemetry", ca="a", certificate="b", key="c"))
    assert finding.result == result
    assert said in finding.seen


@pytest.mark.slow
def test_a_key_that_is_missing_is_named_and_not_taken_for_a_server_that_is_down(setup):
    finding = check_link(setup.settings.model_copy(update={"key": "/nowhere/board.key"}))
    assert finding.result == FAILED
    assert "/nowhere/board.key cannot be used" in finding.seen


@pytest.mark.parametrize(("status", "outcome"), [(200, "taken"), (400, "refused"), (503, "again")])
def test_an_answer_is_what_its_status_says_and_its_connection_is_used_again(tmp_path, monkeypatch, status, outcome):
    opened: list[AnsweringConnection] = []

    def open_answering(_: TelemetrySettings) -> AnsweringConnection:
        opened.append(AnsweringConnection(status))
        return opened[-1]

    monkeypatch.setattr(uplink, "open_connection", open_answering)
    file = tmp_path / "none"
    link = HttpsUplink(TelemetrySettings(url="https://server/telemetry", ca=file, certificate=file, key=file))

    assert [link.send(b"{}") for _ in range(3)] == [outcome] * 3
    assert len(opened) == 1


def test_the_first_message_is_not_counted_and_a_direction_is_measured_for_a_second(monkeypatch):
    monkeypatch.setattr(AnsweringConnection, "read", lambda *_: bytes(LINK_MESSAGE_BYTES))
    down_mbps, up_mbps = measure_link(AnsweringConnection(200), "/telemetry", itertools.count(0.0, 0.25).__next__)

    assert down_mbps == up_mbps == pytest.approx(2 * 8e-6 * LINK_MESSAGE_BYTES / 1.0), "two messages of two ticks each"


def test_a_refused_message_tells_how_long_it_took():
    with pytest.raises(uplink._RefusedMessage, match="408") as caught:
        measure_link(AnsweringConnection(408), "/telemetry", itertools.count(10.0, 0.25).__next__)

    assert caught.value.took_s == 0.25
