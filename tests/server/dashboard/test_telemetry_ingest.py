"""The server takes what boards tell once it is stored, and a board that sends rubbish spoils its own rows alone."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.live_server import LiveServer, heard, live_server, post
from contracts.processes import wait_for
from fastapi import FastAPI
from starlette.testclient import TestClient

from fedge.telemetry.intake import Intake
from fedge.telemetry.live_records import MAX_MESSAGE_BYTES, BoardProgress, TelemetryBatch, encode_batch
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import SampleRow
from fedge.types import EMPTY_TRACE, Trace
from server.dashboard.telemetry_ingest import (
    BoardMessage,
    IngestQueue,
    IngestReply,
    RetentionLimits,
    TelemetryIngest,
    ingest_app,
    open_ingest,
)

T0 = 1_790_000_000.0


class Kept:
    """Tables in memory that can be told to fail, or to be slow."""

    def __init__(self) -> None:
        self.rows: list[SampleRow] = []
        self.fault: Exception | None = None
        self.hates = ""
        self.asked = 0
        self.go = threading.Event()
        self.go.set()

    def append(self, rows: Iterable[SampleRow]) -> None:
        rows = list(rows)
        self.asked += 1
        self.go.wait(20)
        if self.fault is not None:
            raise self.fault
        if any(row.board == self.hates for row in rows):
            raise ValueError("this cannot be stored")
        self.rows += rows

    def seal(self) -> None:
        return

    def close(self) -> None:
        return


def message(board: str, seq: int, stretches: int = 1, start_s: float | None = None) -> TelemetryBatch:
    n, nobody = stretches, (None,) * stretches
    first = T0 + 10 * seq if start_s is None else start_s
    times = tuple(first + i for i in range(n))
    trace = Trace(times, (1.0,) * n, tuple(seq % 100 + i / 7 for i in range(n)), *((nobody,) * 7))
    return TelemetryBatch(
        1, board, "s", seq, trace if n else EMPTY_TRACE, BoardProgress(board, T0, "training", round=seq)
    )


def accept(ingest: TelemetryIngest, body: bytes, board: str = "a") -> IngestReply:
    return ingest.accept_all([BoardMessage(board, body)])[0]


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def ingest(tmp_path: Path, kept: Kept) -> TelemetryIngest:
    return TelemetryIngest(tmp_path, kept, Intake(), RetentionLimits(), lambda: T0 + 1e6)


@pytest.fixture
def client(ingest: TelemetryIngest) -> Iterator[TestClient]:
    with TestClient(beside_others(ingest)) as asking:
        yield asking


def beside_others(ingest: TelemetryIngest) -> FastAPI:
    """The application, and one more thing to ask for."""
    app = FastAPI()
    app.get("/other")(_other)
    app.mount("/", ingest_app(ingest))
    return app


def send(client: TestClient, board: str | None, body: bytes) -> tuple[int, dict[str, object]]:
    answer = client.post("/telemetry", content=body, headers={} if board is None else {"X-Fedge-Board": board})
    return answer.status_code, answer.json()


def test_a_message_is_acknowledged_when_its_rows_are_stored(client, kept, ingest):
    assert send(client, "a", encode_batch(message("a", 1, 3))) == (200, {"seq": 1, "kind": "taken"})
    assert send(client, "a", encode_batch(message("a", 1, 3))) == (200, {"seq": 1, "kind": "duplicate"})
    assert [row.at_s for row in kept.rows] == [T0 + 10, T0 + 11, T0 + 12]
    assert ingest.board_telemetry()["a"].progress == message("a", 1).progress
    assert ingest.board_telemetry()["a"].counts.get("duplicate", 0) == 1


@pytest.mark.parametrize("board", [None, "", "../x", "a b", "x" * 65])
def test_without_a_board_that_the_proxy_knows_nothing_is_taken(board, client, kept, ingest):
    assert send(client, board, encode_batch(message("a", 1)))[0] == 403
    twice = [("X-Fedge-Board", "a"), ("X-Fedge-Board", "b")]
    assert client.post("/telemetry", content=encode_batch(message("a", 1)), headers=twice).status_code == 403
    assert kept.rows == []
    assert ingest.board_telemetry() == {}


def test_a_message_that_cannot_be_read_is_counted_for_its_sender(client, ingest):
    assert send(client, "a", b"{")[0] == 400
    assert send(client, "a", b" " * (MAX_MESSAGE_BYTES + 1))[0] == 413
    assert ingest.board_telemetry()["a"].counts == {"malformed": 1, "huge": 1}


def test_a_board_speaks_for_itself_only(client, kept, ingest):
    send(client, "a", encode_batch(message("a", 1)))
    before = ingest.board_telemetry()["a"]
    assert send(client, "b", encode_batch(message("a", 2))) == (200, {"seq": 0, "kind": "foreign"})
    assert ingest.board_telemetry()["a"] == before
    assert ingest.board_telemetry()["b"].counts == {"foreign": 1}
    assert len(kept.rows) == 1


def test_while_the_store_fails_the_board_is_told_to_keep_its_batch(client, kept):
    kept.fault = OSError("No space left on device")
    assert send(client, "a", encode_batch(message("a", 1)))[0] == 503
    kept.fault = None
    assert send(client, "a", encode_batch(message("a", 1))) == (200, {"seq": 1, "kind": "taken"})


def test_a_slow_store_does_not_hold_up_other_requests(ingest, kept):
    with TestClient(beside_others(ingest)) as client, ThreadPoolExecutor(1) as beside:
        kept.go.clear()
        waiting = beside.submit(send, client, "a", encode_batch(message("a", 1)))
        begun_s = time.monotonic()
        assert client.get("/other").json() == {"here": True}
        assert time.monotonic() - begun_s < 5.0
        assert not waiting.done()
        kept.go.set()
        assert waiting.result(20)[0] == 200


async def _other() -> dict[str, bool]:
    return {"here": True}


@pytest.mark.parametrize(("books", "kind", "malformed"), [(None, "duplicate", 1), (b"{", "out-of-order", 0)])
def test_a_server_that_is_opened_again_knows_what_it_has_also_if_its_books_are_broken(tmp_path, books, kind, malformed):
    first = open_ingest(tmp_path / "fleet", wall_s=lambda: T0 + 1e6)
    accept(first, encode_batch(message("a", 1)))
    accept(first, b"{")
    first.close()
    if books is not None:
        (tmp_path / "fleet" / "intake.json").write_bytes(books)

    second = open_ingest(tmp_path / "fleet", wall_s=lambda: T0 + 1e6)

    assert accept(second, encode_batch(message("a", 1))).content["kind"] == kind
    assert accept(second, encode_batch(message("a", 2))).content["kind"] == "taken"
    assert second.board_telemetry()["a"].counts.get("malformed", 0) == malformed
    second.close()
    assert len(read_rows(tmp_path / "fleet", SampleRow)) == 2


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/else", 404), ("PUT", "/telemetry", 405)])
def test_nothing_else_is_answered(method, path, status, client):
    assert client.request(method, path, headers={"X-Fedge-Board": "a"}).status_code == status


def test_what_came_while_the_store_was_busy_is_appended_at_once(client, kept):
    kept.go.clear()
    with ThreadPoolExecutor(24) as boards:
        first = boards.submit(send, client, "first", encode_batch(message("first", 1)))
        wait_for(lambda: kept.asked, "the store is busy")
        sent = [(f"b-{i}", seq) for seq in (1, 2) for i in range(10)]
        waiting = [boards.submit(send, client, board, encode_batch(message(board, seq))) for board, seq in sent]
        kept.go.set()
        assert first.result(20)[0] == 200
        replies = [(board, reply.result(20)) for (board, _), reply in zip(sent, waiting, strict=True)]
    assert {status for _, (status, _) in replies} == {200}
    taken = [board for board, (_, content) in replies if content["kind"] == "taken"]
    assert len(kept.rows) == 1 + len(taken)
    assert set(taken) == {board for board, _ in sent}
    assert kept.asked < len(sent)


def test_of_one_board_messages_are_taken_one_after_the_other_also_within_a_group():
    async def story() -> list[IngestReply]:
        groups = []

        class Counting:
            def accept_all(self, messages: list[BoardMessage]) -> list[IngestReply]:
                groups.append([(each.board, each.body) for each in messages])
                time.sleep(0.01)
                return [IngestReply(200, {})] * len(messages)

        queue = IngestQueue(Counting())
        said = [("a", b"1"), ("a", b"2"), ("b", b"1"), ("a", b"3"), ("b", b"2")]
        told = await asyncio.gather(*(queue.submit(BoardMessage(*each)) for each in said))
        assert groups == [[("a", b"1"), ("b", b"1")], [("a", b"2"), ("b", b"2")], [("a", b"3")]]
        return told

    assert len(asyncio.run(story())) == 5


def test_a_board_whose_rows_cannot_be_stored_spoils_nobody_elses(ingest, kept):
    kept.hates = "bad"
    told = ingest.accept_all([BoardMessage(board, encode_batch(message(board, 1))) for board in ("a", "bad", "b")])
    assert [each.status for each in told] == [200, 503, 200]
    assert [row.board for row in kept.rows] == ["a", "b"]
    assert "bad" not in ingest.board_telemetry()


def test_on_a_full_disk_nobodys_rows_are_tried_again_at_once(ingest, kept):
    kept.fault = OSError("No space left on device")
    said = [BoardMessage(board, encode_batch(message(board, 1))) for board in ("a", "b")]
    silent = BoardMessage("c", encode_batch(message("c", 1, 0)))
    assert [each.status for each in ingest.accept_all([*said, silent])] == [503, 503, 200]
    assert kept.asked == 1
    kept.fault = None
    assert [each.status for each in ingest.accept_all(said)] == [200, 200]


def test_a_small_fleets_samples_become_parts_and_are_forgotten_when_they_are_old(tmp_path):
    now_s = [T0]
    ingest = open_ingest(tmp_path, RetentionLimits(10**9, 24 * 3600.0), wall_s=lambda: now_s[0])
    for hour in range(48):
        now_s[0] = T0 + 3600.0 * hour + 1
        assert accept(ingest, encode_batch(message("a", hour + 1, 1, T0 + 3600.0 * hour))).status == 200
    ingest.close()
    kept_s = [row.at_s for row in read_rows(tmp_path, SampleRow)]
    assert kept_s[-1] == T0 + 47 * 3600.0
    assert T0 + 22 * 3600.0 <= kept_s[0] <= T0 + 24 * 3600.0
    assert len(kept_s) <= 26


def rubbish(rng: random.Random, victim: str) -> Iterator[bytes]:
    """What a board that is broken, or worse, may send."""
    for number in range(60):
        seq = rng.randint(1, 5)
        good = encode_batch(message("evil", seq, rng.randint(0, 3)))
        yield rng.choice(
            [
                good,
                good[: rng.randint(0, len(good))],
                b"[" * 20_000,
                b'{"seq":' + b"9" * 4000 + b"}",
                b"\x00\xff" * 100,
                json.dumps({"version": 1, "board": victim, "stream": "s", "seq": 10**9}).encode(),
                encode_batch(message(victim, 10**6 + number, 5)),
                encode_batch(message("evil", 20_000 + number, 2, T0 + 9e9)),
                encode_batch(replace(message("evil", 100 + number, 1), progress=None)),
                encode_batch(message("evil", 10_000 + number, 2, T0 + 1)),
                b" " * (MAX_MESSAGE_BYTES + 1 + rng.randint(0, 300_000)),
            ]
        )


@pytest.mark.slow
def test_a_flood_of_rubbish_from_one_board_leaves_all_other_rows_as_they_are(tmp_path):
    boards = ("good-1", "good-2")

    def told(server: LiveServer, flood: bool) -> dict[str, list[SampleRow]]:
        rng, statuses = random.Random(7), []
        stop = threading.Event()

        def flooding() -> None:
            while not stop.is_set():
                for body in rubbish(rng, "good-1"):
                    statuses.append(post(server.socket, body, "evil")[0])
                    if stop.is_set() and len(statuses) > 200:
                        return

        thread = threading.Thread(target=flooding)
        if flood:
            thread.start()
        for seq in range(1, 60):
            for board in boards:
                status, answer = post(server.socket, encode_batch(message(board, seq, 4)), board)
                assert (status, json.loads(answer)["kind"]) == (200, "taken")
        stop.set()
        if flood:
            thread.join()
            assert set(statuses) == {200, 400, 413}
        return {board: [row for row in read_rows(server.folder, SampleRow) if row.board == board] for board in boards}

    for name in ("calm", "flooded"):
        (tmp_path / name).mkdir()
    with live_server(tmp_path / "calm") as server:
        calm = told(server, flood=False)
    with live_server(tmp_path / "flooded") as server:
        flooded = told(server, flood=True)
        counts = {board: seen["counts"] for board, seen in heard(server.socket).items()}
    assert flooded == calm, counts
    assert [len(rows) for rows in calm.values()] == [59 * 4] * 2
    assert all(
        counts["evil"][kind] > 0 for kind in ("malformed", "huge", "duplicate", "out-of-order", "foreign", "future")
    )
    assert {board: counts[board] for board in boards} == {board: {"taken": 59} for board in boards}
