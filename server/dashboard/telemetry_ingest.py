"""Takes boards' telemetry: POST /telemetry, behind the proxy that knows each board by its certificate.

The proxy names the board in the header ``X-Fedge-Board``; whoever may connect here could claim any name, so this
listens on a unix socket of the proxy's alone. Rows are in the store before a message is acknowledged; what has come of
many boards while the store was busy is appended at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fedge.telemetry import board_messages, intake
from fedge.telemetry.intake import BoardLedger, Intake
from fedge.telemetry.live_records import TelemetryBatch
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_files import forget_old
from fedge.telemetry.store_records import SampleRow
from fedge.telemetry.strict_json import BOARD, MalformedJson

HEADER = "x-fedge-board"
BOOKS_FILE = "intake.json"
"""What the server has of each board, beside the store."""
SAVE_PERIOD_S = 5.0
"""The books are written so often at most: what a crash takes of them is found again in the store. Chosen by us."""
RETENTION_PERIOD_S = 3600.0
"""So often what came becomes a part, and the store is held against its limits. Chosen by us."""
MAX_BODIES = 64
"""So many messages are held in memory at once; others wait. Chosen by us."""
MAX_READ_BYTES = 4 * 2**20
"""No more of a message is read: beyond what the proxy lets through. Chosen by us."""
BODY_TIMEOUT_S = 20.0
"""The proxy sends a message when it has all of it, so that it comes at once. Chosen by us."""
LAST_ENDS_QUERY = "SELECT board, max(at_s + span_s) AS end_s FROM samples GROUP BY board"

logger = logging.getLogger(__name__)


class SampleSink(Protocol):
    """Where rows are kept; after ``append`` they survive the end of this process."""

    def append(self, rows: Iterable[SampleRow]) -> None: ...

    def seal(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """How much the fleet's store keeps: bytes of samples, and seconds."""

    most_bytes: int = 20 * 10**9
    most_age_s: float = 90 * 86400.0


@dataclass(frozen=True, slots=True)
class IngestReply:
    """The answer to one message: an HTTP status and its content."""

    status: int
    content: Mapping[str, object]


RETRY_LATER = IngestReply(503, {"error": "the server's store cannot be written now; keep it and send it again"})


@dataclass(frozen=True, slots=True)
class RejectedMessage:
    """A message that is none: how it is counted, and what is answered."""

    kind: intake.Kind
    reply: IngestReply


@dataclass(frozen=True, slots=True)
class BoardMessage:
    """What came of ``board``, which the proxy has made sure of; None: more than a message may have."""

    board: str
    body: bytes | None


class TelemetryIngest:
    """Messages into rows and books; some messages at a time, from any thread."""

    def __init__(
        self, folder: Path, tables: SampleSink, books: Intake, limits: RetentionLimits, wall_s: Callable[[], float]
    ) -> None:
        self._folder, self._tables, self._books = folder, tables, books
        self._limits, self._wall_s = limits, wall_s
        self._turn = threading.Lock()
        self._saved_s = self._forgot_s = wall_s()
        self._failing = False

    def accept(self, board: str, body: bytes) -> IngestReply:
        """What becomes of one message."""
        return self.accept_all([BoardMessage(board, body)])[0]

    def accept_all(self, messages: Sequence[BoardMessage]) -> list[IngestReply]:
        """What becomes of messages, of which no two are of the same board; the rows of all are appended at once."""
        read = [_parse_message(message) for message in messages]
        now_s = self._wall_s()
        with self._turn:
            verdicts = {
                place: self._books.judge(messages[place].board, said, now_s)
                for place, said in enumerate(read)
                if isinstance(said, TelemetryBatch)
            }
            kept = self._store_rows({place: verdict.rows for place, verdict in verdicts.items()})
            told = []
            for place, (message, said) in enumerate(zip(messages, read, strict=True)):
                if not isinstance(said, TelemetryBatch):
                    self._books.refuse(message.board, said.kind)
                    told.append(said.reply)
                elif place in kept:
                    self._books.accept(verdicts[place])
                    told.append(IngestReply(200, {"seq": verdicts[place].seq, "kind": verdicts[place].kind}))
                else:
                    told.append(RETRY_LATER)
            self._run_maintenance(now_s)
        return told

    def board_telemetry(self) -> dict[str, BoardLedger]:
        """What is known of every board now."""
        with self._turn:
            return self._books.boards()

    def counts(self, board: str) -> Mapping[str, int]:
        """How many of the board's messages became what."""
        with self._turn:
            return self._books.counts(board)

    def close(self) -> None:
        """Finish the store and the books."""
        with self._turn:
            self._tables.close()
            self._save()

    def _store_rows(self, rows: Mapping[int, Sequence[SampleRow]]) -> set[int]:
        """Whose rows are in the store now: all, or on a full disk nobody's; rows that it refuses spoil no others."""
        told = [row for its in rows.values() for row in its]
        try:
            if told:
                self._tables.append(told)
                self._failing = False
        except Exception as error:  # the process's edge: boards keep their batches, and the page goes on
            if len(rows) > 1 and not isinstance(error, OSError):
                return set().union(*(self._store_rows({place: its}) for place, its in rows.items()))
            if not self._failing:
                logger.exception("samples cannot be stored; boards keep them")
            self._failing = True
            return {place for place, its in rows.items() if not its}
        return set(rows)

    def _run_maintenance(self, now_s: float) -> None:
        if not 0 <= now_s - self._saved_s < SAVE_PERIOD_S:
            self._saved_s = now_s
            self._save()
        if not 0 <= now_s - self._forgot_s < RETENTION_PERIOD_S:
            self._forgot_s = now_s
            try:
                self._tables.seal()  # only parts can be forgotten, and those of a small fleet are long in filling
                forget_old(
                    self._folder,
                    table="samples",
                    max_bytes=self._limits.most_bytes,
                    max_age_s=self._limits.most_age_s,
                    now_s=now_s,
                )
            except OSError as error:
                logger.warning("the store cannot be held against its limits: %s", error)

    def _save(self) -> None:
        path = self._folder / BOOKS_FILE
        unfinished = path.with_name(f".{BOOKS_FILE}.{os.getpid()}")
        try:
            unfinished.write_bytes(intake.encode_intake(self._books))
            unfinished.replace(path)
        except OSError as error:
            logger.warning("%s cannot be written: %s", path, error)
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)


def _parse_message(message: BoardMessage) -> TelemetryBatch | RejectedMessage:
    if message.body is None:
        return RejectedMessage("huge", IngestReply(413, {"error": _too_large_text()}))
    try:
        return board_messages.decode_batch(message.body)
    except board_messages.OversizedMessage as error:
        return RejectedMessage("huge", IngestReply(413, {"error": str(error)}))
    except MalformedJson as error:
        return RejectedMessage("malformed", IngestReply(400, {"error": str(error)}))


def open_ingest(
    folder: Path, limits: RetentionLimits | None = None, wall_s: Callable[[], float] = time.time
) -> TelemetryIngest:
    """The intake whose store and books lie in ``folder``, as it was left; raises ``BadInput`` for another's store."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = RunTables(folder)
    return TelemetryIngest(
        folder, tables=tables, books=_load_books(folder), limits=limits or RetentionLimits(), wall_s=wall_s
    )


def _load_books(folder: Path) -> Intake:
    """The books as they were saved, corrected by what the store has: rows are written first."""
    ends_s = _read_last_ends(folder)
    try:
        return intake.decode_intake((folder / BOOKS_FILE).read_bytes(), ends_s)
    except FileNotFoundError:
        return Intake(ends_s)
    except (OSError, MalformedJson) as error:
        logger.warning("%s cannot be read, and is made anew from the store: %s", folder / BOOKS_FILE, error)
        return Intake(ends_s)


def _read_last_ends(folder: Path) -> dict[str, float]:
    """When each board's last stretch in the store ends."""
    from fedge.telemetry import open_run

    with open_run(folder) as run:
        return {row["board"]: float(row["end_s"]) for row in run.query(LAST_ENDS_QUERY).to_pylist()}


def ingest_app(ingest: TelemetryIngest) -> ASGIApp:
    """The application behind the proxy: plain ASGI, since a board is heard every second and a fleet has a thousand."""
    queue = IngestQueue(ingest)
    room = asyncio.Semaphore(MAX_BODIES)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await (await _answer_request(Request(scope, receive), queue, room))(scope, receive, send)

    return app


async def _answer_request(request: Request, queue: IngestQueue, room: asyncio.Semaphore) -> Response:
    if request.url.path != "/telemetry":
        return JSONResponse({"error": "boards tell what they see at /telemetry"}, 404)
    if request.method != "POST":
        return JSONResponse({"error": "boards POST what they see"}, 405, {"allow": "POST"})
    names = request.headers.getlist(HEADER)
    if len(names) != 1 or not BOARD.fullmatch(names[0]):
        return JSONResponse({"error": "no board: this is for boards with a certificate of the fleet"}, 403)
    async with room:
        try:
            body = await asyncio.wait_for(_read_body(request), BODY_TIMEOUT_S)
        except (TimeoutError, ClientDisconnect):
            return JSONResponse({"error": "the message did not come in time"}, 408)
        told = await queue.submit(BoardMessage(names[0], body))
    return JSONResponse(dict(told.content), told.status)


class IngestQueue:
    """Messages that wait for the store: as many at once as have come since it was free, of each board one."""

    def __init__(self, ingest: TelemetryIngest) -> None:
        self._ingest = ingest
        self._waiting: list[tuple[BoardMessage, asyncio.Future[IngestReply]]] = []
        self._busy: asyncio.Task[None] | None = None
        # One worker: groups are taken one after the other, and the page's own threads stay free.
        self._worker = ThreadPoolExecutor(1, "fedge-ingest")

    async def submit(self, message: BoardMessage) -> IngestReply:
        """Its answer, once its rows are in the store."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[IngestReply] = loop.create_future()
        self._waiting.append((message, answer))
        if self._busy is None or self._busy.done():
            self._busy = loop.create_task(self._drain(loop))
        return await answer

    async def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            group, self._waiting = _split_first_per_board(self._waiting)
            messages = [message for message, _ in group]
            try:
                told = await loop.run_in_executor(self._worker, self._ingest.accept_all, messages)
            except Exception:  # the process's edge: whatever it is, no board waits for ever
                logger.exception("messages could not be taken")
                told = [RETRY_LATER] * len(group)
            for (_, answer), one in zip(group, told, strict=True):
                if not answer.done():  # a board that went away meanwhile
                    answer.set_result(one)


WaitingMessages = list[tuple[BoardMessage, "asyncio.Future[IngestReply]"]]


def _split_first_per_board(waiting: WaitingMessages) -> tuple[WaitingMessages, WaitingMessages]:
    """The first message of every board, and what has to wait for it."""
    first: dict[str, tuple[BoardMessage, asyncio.Future[IngestReply]]] = {}
    later = [each for each in waiting if first.setdefault(each[0].board, each) is not each]
    return list(first.values()), later


async def _read_body(request: Request) -> bytes | None:
    """The message; None when it is too large.

    What is too much is read all the same, and thrown away: a proxy that is cut off while it sends would tell the board
    of its own trouble instead of the answer.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= board_messages.MAX_MESSAGE_BYTES:
            parts.append(part)
        elif size > MAX_READ_BYTES:
            return None
        else:
            parts.clear()
    return b"".join(parts) if size <= board_messages.MAX_MESSAGE_BYTES else None


def _too_large_text() -> str:
    return f"got more than {board_messages.MAX_MESSAGE_BYTES} bytes; a message has at most so many"
