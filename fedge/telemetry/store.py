"""Store of a run's rows: appended to write-ahead files, which are converted to Parquet parts when they are full.

When ``append`` returns, its rows survive the end of the process; rounds, clients and events also a loss of power.
Samples are synced to disk by the first append at least one second after the last sync.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedge.atomic_files import FileLock, sync_folder, write_text
from fedge.errors import BadInput
from fedge.groups import group_by
from fedge.telemetry import store_files, wal
from fedge.telemetry.run_folder import STORE
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import RoundRow, RoundTrace
from fedge.telemetry.store_schema import (
    BY_ROW,
    ROUNDS,
    SAMPLES,
    TABLES,
    VERSION,
    Record,
    StoreTable,
    arrow_schema,
    rows_to_batch,
    traces_to_batch,
)

logger = logging.getLogger(__name__)
Row = Record | RoundTrace

FULL_ROWS, FULL_BYTES, FULL_FRAMES = 262_144, 32 * 2**20, 512
"""Limits at which a write-ahead file becomes a part; larger ones save files but make reading a running run slower: a
frame is a round, and the file is read after every round."""
FULL_SAMPLE_FRAMES = 16_384
"""The same of samples, of which a fleet appends several frames a second and which are read less often."""
FRAME_ROWS = 65_536
"""Rows per frame: bounds the memory of reading one."""
IO_THREADS = 2
"""Threads with which Arrow reads files in the process that writes the store. Of its own eight each keeps megabytes, and
they start one by one over a run: benchmarks/soak.py grew by 2 % in 1,000 rounds. The store's files are small.
"""
LOCK = "LOCK"
"""File in the store that its writer locks."""
SYNC_SAMPLES_S = 1.0
"""Seconds of samples that a loss of power may cost; waiting for the disk more rarely saves little."""


class TableWriter:
    """The single writer of a table: appends to the write-ahead file, and converts it to a part when it is full."""

    def __init__(self, folder: Path, table: StoreTable, now_s: Callable[[], float]) -> None:
        self._where, self._table, self._now_s = store_files.table_folder(folder, table), table, now_s
        self._number = store_files.repair_leftovers(self._where, table)
        self._synced_s = now_s()
        self._begin_file()

    def _begin_file(self) -> None:
        self._bytes = self._rows = self._frames = 0
        self._full = 1.0

    def append(self, batches: Sequence[Any]) -> None:
        """Append Arrow batches of the table's columns; when it returns, they survive the end of the process."""
        slices = [piece for batch in batches for piece in _slice_batch(batch)]
        if not slices:
            return
        new = self._bytes == 0
        head = wal.make_frame(arrow_schema(self._table)) if new else b""
        data = b"".join((head, *(wal.make_frame(piece) for piece in slices)))
        sync = self._is_due()
        path = store_files.numbered_path(self._where, self._number, store_files.WAL)
        self._bytes = wal.append(path, data, self._bytes, sync)
        if new:
            sync_folder(self._where)
        if sync:
            self._synced_s = self._now_s()
        self._frames += len(slices)
        self._rows += sum(piece.num_rows for piece in slices)
        if self._fullness() >= self._full:
            self._seal_if_possible()

    def seal(self) -> None:
        """Convert the write-ahead file to a part."""
        if not self._bytes:
            return
        try:
            store_files.finish_wal(self._where, self._table, self._number)
        finally:
            # A part supersedes its write-ahead file: nothing may be appended to that, whatever failed afterwards.
            if not store_files.numbered_path(self._where, self._number, store_files.WAL).exists() or self._is_sealed():
                self._number += 1
                self._begin_file()

    def _fullness(self) -> float:
        """Return how full the write-ahead file is; at 1 it becomes a part."""
        frames = FULL_SAMPLE_FRAMES if self._table is SAMPLES else FULL_FRAMES
        return max(self._rows / FULL_ROWS, self._bytes / FULL_BYTES, self._frames / frames)

    def _seal_if_possible(self) -> None:
        """Convert the file, logging a failure: the rows are stored either way, so the caller must not see an error."""
        try:
            self.seal()
        except OSError as error:
            self._full = 2 * self._fullness()
            logger.warning("the rows in %s stay in a write-ahead file for now: %s", self._where, error)

    def forget_after(self, last_round: int) -> None:
        """Drop the rows of rounds after ``last_round``."""
        self.seal()
        store_files.forget_after(self._where, last_round)

    def _is_sealed(self) -> bool:
        return store_files.numbered_path(self._where, self._number, store_files.PART).exists()

    def _is_due(self) -> bool:
        return self._table is not SAMPLES or self._now_s() - self._synced_s >= SYNC_SAMPLES_S


class RunTables:
    """The writer of a run's store; one at a time per folder, until ``close`` or the end of its process.

    Raises:
        BadInput: Another process writes the store for longer than ``wait_s``, or another version of fedge wrote it.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.monotonic, wait_s: float = 0.0) -> None:
        import pyarrow as pa

        self._lock = _lock_store(folder, wait_s)
        exists = store_files.has_store(folder)
        if not exists:  # the version first, so that a reader who finds tables finds it too
            _write_version(folder)
            sync_folder(folder)
        self._writers = {table: TableWriter(folder, table, now_s) for table in TABLES}
        sync_folder(folder / STORE)
        self._threads_before = pa.io_thread_count()
        pa.set_io_thread_count(IO_THREADS)
        self._rounds = read_rows(folder, RoundRow) if exists else []

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows.

        Raises:
            ValueError: The columns of a trace differ in length; no row is stored then.
        """
        by_table = group_by(rows, lambda row: SAMPLES if isinstance(row, RoundTrace) else BY_ROW[type(row)])
        batches = {table: _make_batches(table, rows) for table, rows in by_table.items()}
        for table in TABLES:
            if table in batches:
                self._writers[table].append(batches[table])
        self._rounds += [row for row in by_table.get(ROUNDS, ()) if isinstance(row, RoundRow)]

    def forget_after(self, last_round: int) -> None:
        """Drop the rows of rounds that a resumed run will repeat; may be interrupted and repeated."""
        for writer in self._writers.values():
            writer.forget_after(last_round)
        self._rounds = [row for row in self._rounds if row.round <= last_round]

    def seal(self) -> None:
        """Convert all write-ahead files to parts."""
        for writer in self._writers.values():
            writer.seal()

    def close(self) -> None:
        """Convert all write-ahead files to parts, release the lock, and leave Arrow's threads as they were."""
        try:
            self.seal()
        finally:
            self.release()

    def release(self) -> None:
        """Release the lock, and leave Arrow's threads as they were; write-ahead files stay as they are."""
        import pyarrow as pa

        self._lock.release()
        pa.set_io_thread_count(self._threads_before)

    @property
    def rounds(self) -> tuple[RoundRow, ...]:
        return tuple(self._rounds)


class MemoryTables:
    """A store that keeps the rows in memory and writes nothing."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)


def _make_batches(table: StoreTable, rows: Sequence[Row]) -> list[Any]:
    """Return Arrow batches of rows of one table."""
    traces = [row for row in rows if isinstance(row, RoundTrace)]
    plain = [row for row in rows if not isinstance(row, RoundTrace)]
    batches = ([traces_to_batch(traces)] if traces else []) + ([rows_to_batch(table, plain)] if plain else [])
    return [batch for batch in batches if batch.num_rows]


def _slice_batch(batch: Any) -> list[Any]:
    return [batch.slice(at, FRAME_ROWS) for at in range(0, batch.num_rows, FRAME_ROWS)]


def _lock_store(folder: Path, wait_s: float) -> FileLock:
    """Lock the store, creating its folder."""
    try:
        (folder / STORE).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(str(folder / STORE), str(error.strerror), "a folder that this user may write to") from error
    return FileLock(folder / STORE / LOCK, "a store", wait_s)


def _write_version(folder: Path) -> None:
    path = folder / STORE / store_files.VERSION_FILE
    write_text(path, json.dumps({"version": VERSION}) + "\n")
    sync_folder(path.parent)
