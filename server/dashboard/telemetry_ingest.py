"""Telemetry ingest: POST /telemetry, behind a proxy that authenticates each board by its certificate.

The proxy names the board in the header ``X-Fedge-Board``. Since anyone who can connect could claim any name, the server
listens on a unix socket that only the proxy can open. Rows are stored before a message is acknowledged; messages that
arrive while the store is busy are appended together. Messages by which a board measures its link are answered at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fedge.atomic_files import replace_file
from fedge.errors import FedgeError
from fedge.json_reader import MalformedJson
from fedge.strict_json import BOARD
from fedge.telemetry import intake, live_records
from fedge.telemetry.fleet_store import forget_old, merge_parts, read_last_ends
from fedge.telemetry.intake import BoardLedger, Intake
from fedge.telemetry.live_records import TelemetryBatch
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_records import SampleRow
from fedge.telemetry.uplink import LINK_MESSAGE_BYTES, LINK_MESSAGE_TYPE

HEADER = "x-fedge-board"
BOOKS_FILE = "intake.json"
"""File with the ledger of every board, beside the store."""
SAVE_PERIOD_S = 5.0
"""Least seconds between writes of the ledgers; what a crash loses of them is recovered from the store."""
RETENTION_PERIOD_S = 3600.0
"""Seconds between runs of the retention policy, before which open rows are sealed. A default that bounds the number of
small files in the store.
"""
MAX_BODIES = 64
"""Messages held in memory at the same time; others wait. A default that bounds memory."""
MAX_READ_BYTES = 4 * 2**20
"""Bytes read of a message, more than the proxy lets through."""
BODY_TIMEOUT_S = 20.0
"""Seconds in which a message must arrive; the proxy buffers it and then sends it at once."""
CHANGED_BEFORE_S = 600.0
"""Seconds before the ledgers were saved from which files of the store may have rows that they lack: a margin for a
clock that is set while they are written.
"""
UPKEEP_ENDS_S = 10.0
"""Seconds that a service that ends waits for its store's upkeep, which the next one repeats."""

logger = logging.getLogger(__name__)


class SampleSink(Protocol):
    """Store of samples; rows are durable once ``append`` returns."""

    def append(self, rows: Iterable[SampleRow]) -> None: ...

    def seal(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Limits of the fleet's store: bytes of samples, and their age in seconds."""

    most_bytes: int = 20 * 10**9
    most_age_s: float = 90 * 86400.0


@dataclass(frozen=True, slots=True)
class IngestReply:
    """The reply to one message: an HTTP status and its JSON content."""

    status: int
    content: Mapping[str, object]


RETRY_LATER = IngestReply(503, {"error": "the server's store cannot be written now; keep it and send it again"})


@dataclass(frozen=True, slots=True)
class BoardMessage:
    """A message of an authenticated board; ``body`` is None if it was too large."""

    board: str
    body: bytes | None


class TelemetryIngest:
    """Converts messages to rows and updates the boards' ledgers. Thread-safe. ``wall_s`` returns unix time."""

    def __init__(
        self, folder: Path, tables: SampleSink, books: Intake, limits: RetentionLimits, wall_s: Callable[[], float]
    ) -> None:
        self._folder, self._tables, self._books = folder, tables, books
        self._limits, self._wall_s = limits, wall_s
        self._turn = threading.Lock()
        self._saved_s = self._forgot_s = wall_s()
        self._failing = False
        self._upkeep: threading.Thread | None = None

    def accept_all(self, messages: Sequence[BoardMessage]) -> list[IngestReply]:
        """Process messages, at most one of each board, and append their rows to the store together; reply in order."""
        parsed = [_parse_message(message) for message in messages]
        now_s = self._wall_s()
        with self._turn:
            verdicts = {
                place: self._books.judge(messages[place].board, batch, now_s)
                for place, batch in enumerate(parsed)
                if isinstance(batch, TelemetryBatch)
            }
            kept = self._store_rows({place: verdict.rows for place, verdict in verdicts.items()})
            replies = []
            for place, batch in enumerate(parsed):
                if not isinstance(batch, TelemetryBatch):
                    kind, reply = batch
                    self._books.refuse(messages[place].board, kind)
                    replies.append(reply)
                elif place in kept:
                    self._books.accept(verdicts[place])
                    replies.append(IngestReply(200, {"seq": verdicts[place].seq, "kind": verdicts[place].kind}))
                else:
                    replies.append(RETRY_LATER)
            self._run_maintenance(now_s)
        return replies

    def board_telemetry(self) -> dict[str, BoardLedger]:
        """Return the ledger of every board."""
        with self._turn:
            return self._books.boards()

    def close(self) -> None:
        """Close the store and save the ledgers."""
        if self._upkeep is not None:
            self._upkeep.join(UPKEEP_ENDS_S)
        with self._turn:
            self._tables.close()
            self._save()

    def _store_rows(self, rows: Mapping[int, Sequence[SampleRow]]) -> set[int]:
        """Store rows and return the indices of the messages whose rows are stored.

        If the store rejects rows, each message is retried alone; if the disk is full, none is stored.
        """
        together = [row for of_one in rows.values() for row in of_one]
        try:
            if together:
                self._tables.append(together)
                self._failing = False
        except Exception as error:  # edge of the process: boards keep their batches, and the server goes on
            if len(rows) > 1 and not isinstance(error, OSError):
                return set().union(*(self._store_rows({place: of_one}) for place, of_one in rows.items()))
            if not self._failing:
                logger.exception("samples cannot be stored; boards keep them")
            self._failing = True
            return {place for place, of_one in rows.items() if not of_one}
        return set(rows)

    def _run_maintenance(self, now_s: float) -> None:
        if not 0 <= now_s - self._saved_s < SAVE_PERIOD_S:
            self._saved_s = now_s
            self._save()
        if not 0 <= now_s - self._forgot_s < RETENTION_PERIOD_S:
            self._forgot_s = now_s
            try:
                self._tables.seal()  # only sealed files can be deleted, and a small fleet takes long to fill one
            except OSError as error:
                logger.warning("the newest samples stay in a write-ahead file: %s", error)
            if self._upkeep is None or not self._upkeep.is_alive():  # beside the messages: it may take minutes
                self._upkeep = threading.Thread(
                    target=self._keep_store, args=(now_s,), name="fedge-upkeep", daemon=True
                )
                self._upkeep.start()

    def _keep_store(self, now_s: float) -> None:
        """Delete old samples, and merge files of the store."""
        max_bytes, max_age_s = self._limits.most_bytes, self._limits.most_age_s
        try:
            forget_old(self._folder, max_bytes=max_bytes, max_age_s=max_age_s, now_s=now_s)
            merge_parts(self._folder, max_bytes=max_bytes, max_age_s=max_age_s)
        except (OSError, ValueError, FedgeError) as error:  # Arrow's are of the first two kinds
            logger.warning("the store's old samples are not deleted, or its files not merged: %s", error)

    def _save(self) -> None:
        path = self._folder / BOOKS_FILE
        try:
            with replace_file(path) as part:
                part.write_bytes(intake.encode_intake(self._books))
        except OSError as error:
            logger.warning("%s cannot be written: %s", path, error)


def _parse_message(message: BoardMessage) -> TelemetryBatch | tuple[intake.Kind, IngestReply]:
    """Return the batch, or the kind under which an invalid message is counted and the reply."""
    if message.body is None:
        limit = live_records.MAX_MESSAGE_BYTES
        return "huge", IngestReply(413, {"error": f"got more than {limit} bytes; a message has at most so many"})
    try:
        return live_records.decode_batch(message.body)
    except live_records.OversizedMessage as error:
        return "huge", IngestReply(413, {"error": str(error)})
    except MalformedJson as error:
        return "malformed", IngestReply(400, {"error": str(error)})


def open_ingest(
    folder: Path, limits: RetentionLimits | None = None, wall_s: Callable[[], float] = time.time
) -> TelemetryIngest:
    """Open the ingest in the state in which it was left; the folder is created if missing.

    Raises:
        BadInput: The folder has a store of another kind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = RunTables(folder)
    return TelemetryIngest(
        folder, tables=tables, books=_load_books(folder), limits=limits or RetentionLimits(), wall_s=wall_s
    )


def _load_books(folder: Path) -> Intake:
    """Load the ledgers, corrected by the store, to which rows are written first."""
    path = folder / BOOKS_FILE
    try:
        saved_s, data = path.stat().st_mtime, path.read_bytes()
        return intake.decode_intake(data, read_last_ends(folder, saved_s - CHANGED_BEFORE_S))
    except FileNotFoundError:
        pass
    except (OSError, MalformedJson) as error:
        logger.warning("%s cannot be read, and is made anew from the store: %s", path, error)
    return Intake(read_last_ends(folder, -math.inf))


def ingest_app(ingest: TelemetryIngest) -> ASGIApp:
    """Return the application behind the proxy; plain ASGI, because a thousand boards send a message every second."""
    queue = IngestQueue(ingest)
    room = asyncio.Semaphore(MAX_BODIES)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await (await _answer_request(Request(scope, receive), queue, room))(scope, receive, send)

    return app


def _find_refusal(request: Request) -> Response | None:
    if request.url.path != "/telemetry":
        return JSONResponse({"error": "boards tell what they see at /telemetry"}, 404)
    if request.method not in ("GET", "POST"):
        return JSONResponse({"error": "boards POST what they see"}, 405, {"allow": "GET, POST"})
    names = request.headers.getlist(HEADER)
    if len(names) != 1 or not BOARD.fullmatch(names[0]):
        return JSONResponse({"error": "no board: this is for boards with a certificate of the fleet"}, 403)
    return None


async def _answer_request(request: Request, queue: IngestQueue, room: asyncio.Semaphore) -> Response:
    if (refusal := _find_refusal(request)) is not None:
        return refusal
    async with room:
        if request.method == "GET":  # a board measures its link
            return Response(os.urandom(LINK_MESSAGE_BYTES), media_type=LINK_MESSAGE_TYPE)
        try:
            body = await asyncio.wait_for(_read_body(request), BODY_TIMEOUT_S)
        except (TimeoutError, ClientDisconnect):
            return JSONResponse({"error": "the message did not come in time"}, 408)
        if request.headers.get("content-type") == LINK_MESSAGE_TYPE:
            return JSONResponse({})
        reply = await queue.submit(BoardMessage(request.headers[HEADER], body))
    return JSONResponse(dict(reply.content), reply.status)


class IngestQueue:
    """Queues messages for the store; those that arrive while it is busy are processed together, one per board."""

    def __init__(self, ingest: TelemetryIngest) -> None:
        self._ingest = ingest
        self._waiting: list[tuple[BoardMessage, asyncio.Future[IngestReply]]] = []
        self._busy: asyncio.Task[None] | None = None
        # One worker processes one group after the other, and leaves the dashboard's own threads free.
        self._worker = ThreadPoolExecutor(1, "fedge-ingest")

    async def submit(self, message: BoardMessage) -> IngestReply:
        """Process a message and return its reply once its rows are stored."""
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
                replies = await loop.run_in_executor(self._worker, self._ingest.accept_all, messages)
            except Exception:  # edge of the process: every board must get a reply
                logger.exception("messages could not be taken")
                replies = [RETRY_LATER] * len(group)
            for (_, answer), reply in zip(group, replies, strict=True):
                if not answer.done():  # the board may have disconnected
                    answer.set_result(reply)


WaitingMessages = list[tuple[BoardMessage, "asyncio.Future[IngestReply]"]]


def _split_first_per_board(waiting: WaitingMessages) -> tuple[WaitingMessages, WaitingMessages]:
    """Split messages into the first of every board, and the rest."""
    first: dict[str, tuple[BoardMessage, asyncio.Future[IngestReply]]] = {}
    later = [each for each in waiting if first.setdefault(each[0].board, each) is not each]
    return list(first.values()), later


async def _read_body(request: Request) -> bytes | None:
    """Return the body of a request, or None if it is too large.

    An oversized body is read to the end and discarded: if the connection were closed while the proxy sends, the board
    would get the proxy's own error instead of the reply.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= live_records.MAX_MESSAGE_BYTES:
            parts.append(part)
        elif size > MAX_READ_BYTES:
            return None
        else:
            parts.clear()
    return b"".join(parts) if size <= live_records.MAX_MESSAGE_BYTES else None
