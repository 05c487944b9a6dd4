"""The store of a run's rows: appended to write-ahead files as they come; where there are enough, Parquet parts.

When ``append`` returns, its rows survive the end of the process; rounds, clients and events also a loss of power.
Samples are put on the disk with the first append that comes a second after the last time.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedge.errors import BadInput
from fedge.telemetry import store_files, wal
from fedge.telemetry.file_lock import FileLock
from fedge.telemetry.run_folder import STORE, write_text
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow, RoundTrace, SampleRow
from fedge.telemetry.store_schema import (
    BY_ROW,
    OLD_FILES,
    SAMPLES,
    TABLES,
    VERSION,
    StoreTable,
    arrow_schema,
    rows_to_batch,
)
from fedge.telemetry.trace_columns import traces_to_batch

logger = logging.getLogger(__name__)
Row = RoundRow | ClientRow | EventRow | SampleRow | RoundTrace

FULL_ROWS, FULL_BYTES, FULL_FRAMES = 262_144, 32 * 2**20, 16_384
"""With any of these a write-ahead file becomes a part; chosen by us."""
FRAME_ROWS = 65_536
"""The most rows of one frame; chosen by us."""
LOCK = "LOCK"
"""The file in the store that its writer holds."""
SYNC_SAMPLES_S = 1.0
"""Chosen by us: what a loss of power may take is this much of samples, and waiting for the disk costs little."""


class TableWriter:
    """The one writer of a table: appends to the write-ahead file, makes a part of it when it is full."""

    def __init__(self, folder: Path, table: StoreTable, now_s: Callable[[], float]) -> None:
        self._where, self._table, self._now_s = store_files.table_folder(folder, table), table, now_s
        self._number = store_files.repair_leftovers(self._where, table)
        self._synced_s = now_s()
        self._begin_file()

    def _begin_file(self) -> None:
        self._bytes = self._rows = self._frames = 0
        self._full = 1.0

    def append(self, batches: Sequence[Any]) -> None:
        """Write Arrow batches of the table's columns; when it returns, they survive the end of the process."""
        slices = [piece for batch in batches for piece in _slice_batch(batch)]
        if not slices:
            return
        new = self._bytes == 0
        head = wal.schema_frame(arrow_schema(self._table)) if new else b""
        data = b"".join((head, *(wal.batch_frame(piece) for piece in slices)))
        sync = self._is_due()
        path = store_files.numbered_path(self._where, self._number, store_files.WAL)
        self._bytes = wal.append(path, data, self._bytes, sync)
        if new:
            store_files.sync_folder(self._where)
        if sync:
            self._synced_s = self._now_s()
        self._frames += len(slices)
        self._rows += sum(piece.num_rows for piece in slices)
        if self._fullness() >= self._full:
            self._seal_if_possible()

    def seal(self) -> None:
        """Make a part of what was appended until now."""
        if not self._bytes:
            return
        try:
            store_files.finish_wal(self._where, self._table, self._number)
        finally:
            # A part makes its write-ahead file void: nothing may be appended there, whatever failed behind it.
            if not store_files.numbered_path(self._where, self._number, store_files.WAL).exists() or self._is_sealed():
                self._number += 1
                self._begin_file()

    def _fullness(self) -> float:
        """How near the write-ahead file is to becoming a part, which it is at 1."""
        return max(self._rows / FULL_ROWS, self._bytes / FULL_BYTES, self._frames / FULL_FRAMES)

    def _seal_if_possible(self) -> None:
        """The rows are kept either way: whoever appended them must not be told that they are not."""
        try:
            self.seal()
        except OSError as error:
            self._full = 2 * self._fullness()
            logger.warning("the rows in %s stay in a write-ahead file for now: %s", self._where, error)

    def forget_after(self, last_round: int) -> None:
        """Drop the rows of later rounds."""
        self.seal()
        store_files.forget_after(self._where, last_round)

    def _is_sealed(self) -> bool:
        return store_files.numbered_path(self._where, self._number, store_files.PART).exists()

    def _is_due(self) -> bool:
        return self._table is not SAMPLES or self._now_s() - self._synced_s >= SYNC_SAMPLES_S


class RunTables:
    """A run's store as its writer has it; there is one at a time for a folder, until ``close`` or its process ends.

    Raises ``BadInput`` while another one writes, and for a store of a newer version. A run of version 1 is taken over.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lock = _lock_store(folder)
        version = store_files.read_store_version(folder)
        if version is None:
            _begin_store(folder)
        elif version < VERSION:
            _convert_version_1(folder)
        self._writers = {table: TableWriter(folder, table, now_s) for table in TABLES}
        store_files.sync_folder(folder / STORE)
        self._rounds = read_rows(folder, RoundRow)

    def append(self, rows: Iterable[Row]) -> None:
        """Keep ``rows``; raises ``ValueError`` for a trace whose columns differ in length, and then keeps none."""
        by_table: dict[StoreTable, list[Row]] = {}
        for row in rows:
            by_table.setdefault(SAMPLES if isinstance(row, RoundTrace) else BY_ROW[type(row)], []).append(row)
        batches = {table: _make_batches(table, found) for table, found in by_table.items()}
        for table in TABLES:
            if table in batches:
                self._writers[table].append(batches[table])
        self._rounds += [row for found in by_table.values() for row in found if isinstance(row, RoundRow)]

    def forget_after(self, last_round: int) -> None:
        """Drop the rows of rounds that a resumed run will play again; may be stopped anywhere and done again."""
        for writer in self._writers.values():
            writer.forget_after(last_round)
        self._rounds = [row for row in self._rounds if row.round <= last_round]

    def seal(self) -> None:
        """Make parts of everything appended until now."""
        for writer in self._writers.values():
            writer.seal()

    def close(self) -> None:
        """Make parts of everything and let others write; nothing may be appended any more."""
        self.seal()
        self._lock.release()

    @property
    def rounds(self) -> tuple[RoundRow, ...]:
        return tuple(self._rounds)


class MemoryTables:
    """The trivial store: keeps the rows and writes nothing."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)


def _make_batches(table: StoreTable, rows: Sequence[Row]) -> list[Any]:
    """Arrow batches of rows that all belong to one table."""
    traces = [row for row in rows if isinstance(row, RoundTrace)]
    plain = [row for row in rows if not isinstance(row, RoundTrace)]
    made = ([traces_to_batch(traces)] if traces else []) + ([rows_to_batch(table, plain)] if plain else [])
    return [batch for batch in made if batch.num_rows]


def _slice_batch(batch: Any) -> list[Any]:
    return [batch.slice(at, FRAME_ROWS) for at in range(0, batch.num_rows, FRAME_ROWS)]


def _lock_store(folder: Path) -> FileLock:
    """The store's lock; its folder is made where there is none."""
    try:
        (folder / STORE).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(str(folder / STORE), str(error.strerror), "a folder that this user may write to") from error
    return FileLock(folder / STORE / LOCK, "a store")


def _begin_store(folder: Path) -> None:
    """The version comes first: whoever finds tables finds it too."""
    _write_version(folder)
    store_files.sync_folder(folder)


def _convert_version_1(folder: Path) -> None:
    """Make parts of a version 1 run; until the version is written, the old files count and all may be done again."""
    for table in TABLES:
        where = store_files.table_folder(folder, table)
        where.mkdir(parents=True, exist_ok=True)
        for left in where.iterdir():
            left.unlink()
        found = store_files.read_version_1(folder, table)
        if found.num_rows:
            store_files.write_part(store_files.numbered_path(where, 1, store_files.PART), found)
    _write_version(folder)
    for name in OLD_FILES.values():
        (folder / name).unlink(missing_ok=True)


def _write_version(folder: Path) -> None:
    path = folder / STORE / store_files.VERSION_FILE
    write_text(path, json.dumps({"version": VERSION}) + "\n")
    store_files.sync_file(path)
    store_files.sync_folder(path.parent)
