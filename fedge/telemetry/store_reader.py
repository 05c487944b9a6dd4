"""Reads a run's rows, also while they are being written, from a consistent set of files."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedge.errors import RunFailed
from fedge.telemetry import store_files, wal
from fedge.telemetry.run_folder import STORE
from fedge.telemetry.store_schema import (
    BY_NAME,
    BY_ROW,
    CLIENTS,
    OLD_FILES,
    TABLES,
    R,
    StoreTable,
    arrow_schema,
    table_to_records,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

TRIES, PAUSE_S = 100, 0.005
"""How often, and after how many seconds, a listing that changed meanwhile is repeated: half a second in total."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table at one moment.

    Attributes:
        recent: Write-ahead rows as an Arrow table.
        notes: Descriptions of damaged files.
    """

    table: StoreTable
    parts: tuple[Path, ...]
    recent: Any
    notes: tuple[str, ...] = ()

    def dataset(self) -> Any:
        """Return parts and write-ahead rows as one Arrow dataset; columns missing in a part are null."""
        import pyarrow.dataset as ds

        schema = arrow_schema(self.table, coded=True)
        recent = ds.dataset(self.recent)
        if not self.parts:
            return recent
        for path in self.parts:
            store_files.check_part(path, path.stat().st_mtime_ns)
        stored = ds.dataset([str(path) for path in self.parts], schema=schema, format="parquet")
        return ds.dataset([stored, recent]) if self.recent.num_rows else stored


def read_snapshot(folder: Path, table: StoreTable) -> TableSnapshot:
    """Return the table's present state; empty if nothing was stored.

    Raises:
        BadInput: A newer fedge wrote the store.
    """
    version = store_files.read_store_version(folder)
    if version is None:
        return TableSnapshot(table, (), store_files.make_empty_table(table))
    if version == 1:
        return TableSnapshot(table, (), retry_while_changing(lambda: store_files.read_version_1(folder, table)))
    return retry_while_changing(lambda: _read_listing(store_files.table_folder(folder, table), table))


def read_rows(folder: Path, kind: type[R], since_round: int | None = None) -> list[R]:
    """Read the rows of one table in the order in which they were written.

    Returns:
        The rows; empty if nothing was stored.

    Raises:
        BadInput: A newer fedge wrote the store, or a file cannot be read.
    """

    def read() -> Any:
        import pyarrow.dataset as ds

        chosen = None if since_round is None else ds.field("round") >= since_round
        snapshot = read_snapshot(folder, BY_ROW[kind])
        for note in snapshot.notes:
            logger.warning("%s", note)
        rows = snapshot.dataset().to_table(filter=chosen)
        rows.validate(full=True)  # text that is not UTF-8
        return rows

    return table_to_records(retry_while_changing(read), kind)


def compute_store_stamp(folder: Path, *kinds: type) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes in bytes and modification times in ns of the tables' files; it changes when rows are added.

    ``kinds`` are the record types of the tables; none: all tables.
    """
    tables = [BY_ROW[kind] for kind in kinds] or list(TABLES)
    paths = [folder / OLD_FILES[table] for table in tables if table in OLD_FILES]
    for table in tables:
        files = store_files.list_store_files(folder / STORE / table.name)
        paths += [*files.parts.values(), *files.live_wals.values()]
    stamp = []
    for path in paths:
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        stamp.append((_short_path(path), status.st_size, status.st_mtime_ns))
    return tuple(stamp)


def list_rounds(folder: Path, table: str) -> set[int]:
    """Return the rounds that have a row in the named table."""
    rounds = retry_while_changing(lambda: read_snapshot(folder, BY_NAME[table]).dataset().to_table(columns=["round"]))
    return set(rounds.column("round").to_pylist())


def retry_while_changing(read: Callable[[], T]) -> T:
    """Call ``read`` until no file vanishes meanwhile, and return its result.

    Raises:
        RunFailed: The files keep changing.
        BadInput: A file is damaged, not a table, or unreadable.
    """
    import pyarrow as pa

    for _ in range(TRIES):
        try:
            return read()
        except FileNotFoundError:
            time.sleep(PAUSE_S)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise store_files.unreadable_error(error) from error
    raise RunFailed("the store's files change faster than they can be read; try again")


def _read_listing(where: Path, table: StoreTable) -> TableSnapshot:
    """Read a consistent listing; raises ``FileNotFoundError`` if the writer changed files meanwhile.

    Numbers are never reused, so two equal listings prove what existed between them: for each number the write-ahead
    file, the part, or both, in which case the part counts.
    """
    import pyarrow as pa

    files = store_files.list_store_files(where)
    if store_files.list_store_files(where) != files:
        raise FileNotFoundError(where)
    notes = [f"{_short_path(path)}: set aside, it was damaged" for path in files.damaged.values()]
    recent = [store_files.make_empty_table(table)]
    for path in files.live_wals.values():
        contents = wal.read(path)
        if contents.damaged:
            notes.append(
                f"{_short_path(path)}: damaged after {contents.rows} rows, which are read; what follows is not"
            )
        recent.append(store_files.wal_rows_to_table(table, contents, path))
    return TableSnapshot(table, tuple(files.parts.values()), pa.concat_tables(recent), tuple(notes))


def _short_path(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


# Newest rows: read after every round for a page, without a database ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewestRows:
    """Newest rows and energies by board.

    Attributes:
        before_j: Energy in joules before a round.
        from_j: Energy in joules from that round on.
    """

    rows: dict[str, tuple[Any, ...]]
    before_j: dict[str, float]
    from_j: dict[str, float]


def read_newest_rows(folder: Path, columns: Sequence[str], since_round: int, split_round: int) -> NewestRows:
    """Read the newest rows of the clients table.

    Args:
        folder: The run's folder.
        columns: Columns of the clients table to return.
        since_round: First round to read.
        split_round: Energies are summed before this round and from it on.

    Raises:
        BadInput: A newer fedge wrote the store.
    """

    def read() -> Any:
        import pyarrow.dataset as ds

        needed = list(dict.fromkeys(["board", "round", "energy_j", *columns]))
        clients = read_snapshot(folder, CLIENTS).dataset()
        return clients.to_table(columns=needed, filter=ds.field("round") >= since_round)

    import pyarrow.compute as pc

    table = retry_while_changing(read)
    before = pc.less(table.column("round"), split_round)
    return NewestRows(
        _last_rows(table, columns),
        before_j=_sum_by_board(table.filter(before)),
        from_j=_sum_by_board(table.filter(pc.invert(before))),
    )


def _last_rows(table: Any, columns: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the row with the greatest round of each board; parts of a resumed run need not be in order."""
    boards, rounds = table.column("board").to_pylist(), table.column("round").to_pylist()
    places = {boards[place]: place for place in sorted(range(len(boards)), key=rounds.__getitem__)}
    chosen = table.take(list(places.values())) if places else table
    values = [chosen.column(name).to_pylist() for name in columns]
    return dict(zip(places, zip(*values, strict=True), strict=True))


def _sum_by_board(table: Any) -> dict[str, float]:
    summed = table.group_by("board").aggregate([("energy_j", "sum")])
    boards, joules = summed.column("board").to_pylist(), summed.column("energy_j_sum").to_pylist()
    return {board: value or 0.0 for board, value in zip(boards, joules, strict=True)}
