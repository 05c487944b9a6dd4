"""Takes boards' telemetry: POST /telemetry, behind the proxy that knows each board by its certificate.

The proxy names the board in the header ``X-Fedge-Board``; whoever may connect here could claim any name, so this
listens on a unix socket of the proxy's alone. Rows are in the store before a message is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from fedge.telemetry import batch, intake
from fedge.telemetry.intake import Heard, Intake
from fedge.telemetry.parts import forget_old
from fedge.telemetry.rows import SampleRow
from fedge.telemetry.store import RunTables
from fedge.telemetry.strict import BOARD, Malformed

HEADER = "x-fedge-board"
BOOKS = "intake.json"
"""What the server has of each board, beside the store."""
SAVE_S = 5.0
"""The books are written so often at most: what a crash takes of them is found again in the store. Chosen by us."""
FORGET_S = 600.0
"""So often the store is held against its limits. Chosen by us."""
MOST_BODIES = 64
"""So many messages are held in memory at once; others wait. Chosen by us."""
MOST_READ = 4 * 2**20
"""No more of a message is read: beyond what the proxy lets through. Chosen by us."""
BODY_LIMIT_S = 20.0
"""The proxy sends a message when it has all of it, so that it comes at once. Chosen by us."""
ENDS = "SELECT board, max(at_s + span_s) AS end_s FROM samples GROUP BY board"

logger = logging.getLogger(__name__)


class Samples(Protocol):
    """Where rows are kept; after ``append`` they survive the end of this process."""

    def append(self, rows: Iterable[SampleRow]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the fleet's store keeps: bytes of samples, and seconds."""

    most_bytes: int = 20 * 10**9
    most_age_s: float = 90 * 86400.0


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to one message: an HTTP status and its content."""

    status: int
    content: Mapping[str, object]


class Ingest:
    """Messages into rows and books; one message at a time, from any thread."""

    def __init__(
        self, folder: Path, tables: Samples, books: Intake, limits: Limits, wall_s: Callable[[], float]
    ) -> None:
        self._folder, self._tables, self._books = folder, tables, books
        self._limits, self._wall_s = limits, wall_s
        self._turn = threading.Lock()
        self._saved_s = self._forgot_s = wall_s()
        self._failing = False

    def take(self, board: str, body: bytes) -> Told:
        """What becomes of the message ``body`` of ``board``, which the proxy has made sure of."""
        try:
            message = batch.from_bytes(body)
        except batch.Huge as error:
            return self.refuse(board, "huge", str(error))
        except Malformed as error:
            return self.refuse(board, "malformed", str(error))
        now_s = self._wall_s()
        with self._turn:
            verdict = self._books.judged(board, message, now_s)
            if verdict.rows and not self._kept(verdict.rows):
                return Told(503, {"error": "the server's store cannot be written now; keep it and send it again"})
            self._books.settle(verdict)
            self._look_after(now_s)
        return Told(200, {"seq": verdict.seq, "kind": verdict.kind})

    def refuse(self, board: str, kind: intake.Kind, why: str) -> Told:
        """Count a message that cannot be read."""
        with self._turn:
            self._books.refuse(board, kind)
        return Told(413 if kind == "huge" else 400, {"error": why})

    def heard(self) -> dict[str, Heard]:
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

    def _kept(self, rows: Iterable[SampleRow]) -> bool:
        try:
            self._tables.append(rows)
        except Exception:  # the process's edge: the board keeps its batch, and the page goes on
            if not self._failing:
                logger.exception("samples cannot be stored; boards keep them")
            self._failing = True
            return False
        self._failing = False
        return True

    def _look_after(self, now_s: float) -> None:
        if not 0 <= now_s - self._saved_s < SAVE_S:
            self._saved_s = now_s
            self._save()
        if not 0 <= now_s - self._forgot_s < FORGET_S:
            self._forgot_s = now_s
            try:
                forget_old(self._folder, "samples", self._limits.most_bytes, self._limits.most_age_s, now_s)
            except OSError as error:
                logger.warning("old samples cannot be removed: %s", error)

    def _save(self) -> None:
        path = self._folder / BOOKS
        unfinished = path.with_name(f".{BOOKS}.{os.getpid()}")
        try:
            unfinished.write_bytes(intake.to_bytes(self._books))
            unfinished.replace(path)
        except OSError as error:
            logger.warning("%s cannot be written: %s", path, error)
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)


def open_ingest(folder: Path, limits: Limits | None = None, wall_s: Callable[[], float] = time.time) -> Ingest:
    """The intake whose store and books lie in ``folder``, as it was left; raises ``BadInput`` for another's store."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = RunTables(folder)
    return Ingest(folder, tables, _books_in(folder), limits or Limits(), wall_s)


def _books_in(folder: Path) -> Intake:
    """The books as they were saved, corrected by what the store has: rows are written first."""
    ends_s = _ends_in(folder)
    try:
        return intake.from_bytes((folder / BOOKS).read_bytes(), ends_s)
    except FileNotFoundError:
        return Intake(ends_s)
    except (OSError, Malformed) as error:
        logger.warning("%s cannot be read, and is made anew from the store: %s", folder / BOOKS, error)
        return Intake(ends_s)


def _ends_in(folder: Path) -> dict[str, float]:
    """When each board's last stretch in the store ends."""
    from fedge.telemetry import open_run

    with open_run(folder) as run:
        return {row["board"]: float(row["end_s"]) for row in run.query(ENDS).to_pylist()}


def ingest_app(ingest: Ingest) -> FastAPI:
    """The application behind the proxy."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.post("/telemetry")(_taking(ingest))
    return app


def _taking(ingest: Ingest) -> Callable[[Request], object]:
    # One worker: messages are taken one at a time anyway, and the page's own threads stay free.
    worker = ThreadPoolExecutor(1, "fedge-ingest")
    room = asyncio.Semaphore(MOST_BODIES)

    async def take(request: Request) -> Response:
        board = request.headers.get(HEADER, "")
        if not BOARD.fullmatch(board) or len(request.headers.getlist(HEADER)) != 1:
            return JSONResponse({"error": "no board: this is for boards with a certificate of the fleet"}, 403)
        async with room:
            try:
                body = await asyncio.wait_for(_body(request), BODY_LIMIT_S)
            except (TimeoutError, ClientDisconnect):
                return JSONResponse({"error": "the message did not come in time"}, 408)
            ask = (board, body) if body is not None else None
            told = await asyncio.get_running_loop().run_in_executor(
                worker, lambda: ingest.take(*ask) if ask else ingest.refuse(board, "huge", _too_large())
            )
        return JSONResponse(dict(told.content), told.status)

    return take


async def _body(request: Request) -> bytes | None:
    """The message; None when it is too large.

    What is too much is read all the same, and thrown away: a proxy that is cut off while it sends would tell the board
    of its own trouble instead of the answer.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= batch.LARGEST:
            parts.append(part)
        elif size > MOST_READ:
            return None
        else:
            parts.clear()
    return b"".join(parts) if size <= batch.LARGEST else None


def _too_large() -> str:
    return f"got more than {batch.LARGEST} bytes; a message has at most so many"
