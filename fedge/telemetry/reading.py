"""Reads a run's rows back, also while they are being written: a set of files that were there at one moment."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedge.errors import BadInput, RunFailed
from fedge.telemetry import parts, wal
from fedge.telemetry.run_folder import STORE
from fedge.telemetry.schema import BY_NAME, BY_ROW, OLD_FILES, TABLES, R, Table, arrow_schema, records

logger = logging.getLogger(__name__)
T = TypeVar("T")

TRIES, PAUSE_S = 100, 0.005
"""How often a listing that changes meanwhile is taken again; chosen by us."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one moment: the parts' paths, the write-ahead rows as an Arrow table, and what is odd about it."""

    table: Table
    parts: tuple[Path, ...]
    recent: Any
    notes: tuple[str, ...] = ()

    def dataset(self) -> Any:
        """Parts and write-ahead rows as one Arrow dataset; a column that a part has not is null."""
        import pyarrow.dataset as ds

        schema = arrow_schema(self.table, coded=True)
        recent = ds.dataset(self.recent)
        if not self.parts:
            return recent
        stored = ds.dataset([str(path) for path in self.parts], schema=schema, format="parquet")
        return ds.dataset([stored, recent]) if self.recent.num_rows else stored


def snapshot(folder: Path, table: Table) -> Snapshot:
    """The table as it is now; empty when nothing was stored yet. Raises ``BadInput`` for a newer store."""
    version = parts.version_of(folder)
    if version is None:
        return Snapshot(table, (), parts.empty(table))
    if version == 1:
        return Snapshot(table, (), parts.read_old(folder, table))
    return again(lambda: _taken(parts.table_folder(folder, table), table))


def read_rows(folder: Path, kind: type[R], since_round: int | None = None) -> list[R]:
    """The rows of one table in the order in which they were written; with ``since_round``, those of it and later ones.

    Empty when nothing was stored yet; raises ``BadInput`` for a newer store.
    """

    def read() -> Any:
        import pyarrow.dataset as ds

        chosen = None if since_round is None else ds.field("round") >= since_round
        found = snapshot(folder, BY_ROW[kind])
        _warn(found)
        return found.dataset().to_table(filter=chosen)

    return records(again(read), kind)


def stamp(folder: Path, *kinds: type) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files of these rows' tables (all without ``kinds``): other when rows were added."""
    tables = [BY_ROW[kind] for kind in kinds] or list(TABLES)
    paths = [folder / OLD_FILES[table] for table in tables if table in OLD_FILES]
    for table in tables:
        files = parts.listing(folder / STORE / table.name)
        paths += [*files.parts.values(), *files.live_wals.values()]
    seen = []
    for path in paths:
        try:
            told = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        seen.append((f"{path.parent.name}/{path.name}", told.st_size, told.st_mtime_ns))
    return tuple(seen)


def played_rounds(folder: Path, table: str) -> set[int]:
    """The rounds that have a row in the table of that name."""
    found = again(lambda: snapshot(folder, BY_NAME[table]).dataset().to_table(columns=["round"]))
    return set(found.column("round").to_pylist())


def again(read: Callable[[], T]) -> T:
    """``read`` until no file vanishes on the way.

    Raises ``RunFailed`` when that never ends, ``BadInput`` for a file that is damaged, not a table, or not to be read.
    """
    import pyarrow as pa

    for _ in range(TRIES):
        try:
            return read()
        except FileNotFoundError:
            time.sleep(PAUSE_S)
        except (OSError, pa.ArrowException) as error:
            raise unreadable(error) from error
    raise RunFailed("the store's files change faster than they can be read; try again")


def unreadable(error: Exception) -> BadInput:
    """What is told of a store's file that Arrow or the system cannot read, in one line."""
    told = " ".join(str(error).split())
    return BadInput(STORE, told, "files as fedge wrote them; a damaged one can be moved away, its rows are lost then")


def _taken(where: Path, table: Table) -> Snapshot:
    """Raises ``FileNotFoundError`` when the writer moved on meanwhile.

    No number is used twice, so that two equal listings tell what was there between them: of each number either the
    write-ahead file or the part, or both, and then the part counts.
    """
    files = parts.listing(where)
    if parts.listing(where) != files:
        raise FileNotFoundError(where)
    notes = [f"{_short(path)}: set aside, it was damaged" for path in files.damaged.values()]
    found = []
    for path in files.live_wals.values():
        one = wal.read(path)
        if one.damaged:
            notes.append(f"{_short(path)}: damaged after {one.rows} rows, which are read; what follows is not")
        try:
            found.append(parts.found_rows(table, one.batches, one.schema))
        except ValueError as error:
            raise BadInput(str(path), f"columns that do not fit ({error})", f"those of {table.name}") from error
    return Snapshot(table, tuple(files.parts.values()), _joined(table, found), tuple(notes))


def _joined(table: Table, found: list[Any]) -> Any:
    import pyarrow as pa

    return pa.concat_tables([parts.empty(table), *found])


def _short(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _warn(found: Snapshot) -> None:
    for note in found.notes:
        logger.warning("%s", note)
