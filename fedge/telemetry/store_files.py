"""The files of a store: Parquet parts and write-ahead files by number, and the steps from one to the other.

``store/<table>/<number>.wal`` becomes ``<number>.parquet``; a part makes the write-ahead file of its number void. Every
step leaves either what was there before or what comes after it, and may be done again.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge.errors import BadInput
from fedge.telemetry import wal
from fedge.telemetry.run_folder import STORE
from fedge.telemetry.store_schema import BY_NAME, OLD_FILES, TABLES, VERSION, StoreTable, arrow_schema, fit_to_schema

logger = logging.getLogger(__name__)

VERSION_FILE = "VERSION"
PART, WAL, DAMAGED, TEMPORARY = ".parquet", ".wal", ".damaged", ".part"
NO_VALUE = -math.inf
"""What comes before every value: the greatest of none."""
ROW_GROUP = 131_072
"""Rows; chosen by us."""


@dataclass(frozen=True, slots=True)
class StoreListing:
    """A table's files by number, as the folder's names said at one moment."""

    parts: Mapping[int, Path]
    wals: Mapping[int, Path]
    damaged: Mapping[int, Path]
    temporary: tuple[Path, ...]

    @property
    def live_wals(self) -> Mapping[int, Path]:
        """Those that no part has made void."""
        return {number: path for number, path in self.wals.items() if number not in self.parts}

    @property
    def last(self) -> int:
        """The highest number in use; 0 when there is none."""
        return max((*self.parts, *self.wals, *self.damaged), default=0)


def table_folder(folder: Path, table: StoreTable) -> Path:
    """Where the table of the run ``folder`` lies."""
    return folder / STORE / table.name


def list_store_files(where: Path) -> StoreListing:
    """The files of the table's folder ``where``; none when it is not there."""
    try:
        names = sorted(path.name for path in where.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        names = []
    by_kind: dict[str, dict[int, Path]] = {PART: {}, WAL: {}, DAMAGED: {}}
    for name in names:
        stem, dot, kind = name.partition(".")
        if stem.isdecimal() and dot + kind in by_kind:
            by_kind[dot + kind][int(stem)] = where / name
    temporary = tuple(where / name for name in names if name.endswith(TEMPORARY))
    return StoreListing(by_kind[PART], by_kind[WAL], by_kind[DAMAGED], temporary)


def numbered_path(where: Path, number: int, kind: str) -> Path:
    return where / f"{number:06d}{kind}"


def read_store_version(folder: Path) -> int | None:
    """The version of the store in a run folder, None where nothing was stored; raises ``BadInput`` for a newer one."""
    path = folder / STORE / VERSION_FILE
    if path.is_file():
        return _read_version_file(path)
    if any((folder / name).is_file() for name in OLD_FILES.values()):
        return 1
    if any((folder / STORE / table.name).is_dir() for table in TABLES):
        right = f'a file that says which version the store has, here most likely {{"version": {VERSION}}}'
        raise BadInput(str(path), "no such file beside tables", right)
    return None


def _read_version_file(path: Path) -> int:
    try:
        version = int(json.loads(path.read_text(encoding="utf-8"))["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(str(path), f"no version ({error!r})", f'{{"version": {VERSION}}}, as fedge writes it') from error
    if version > VERSION:
        right = f"version {VERSION} or older; this run was written by a newer fedge, which can read it"
        raise BadInput(str(path), f"version {version}", right)
    return version


def write_part(target: Path, found: Any) -> None:
    """Write an Arrow table as a part: under a temporary name, on the disk, renamed, the name on the disk too.

    On an ``OSError``, which names the file, nothing of it stays.
    """
    import pyarrow.parquet as pq

    temporary = target.with_name(f"{target.name}.{os.getpid()}{TEMPORARY}")
    try:
        pq.write_table(found, temporary, compression="zstd", row_group_size=ROW_GROUP)
        sync_file(temporary)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        # Arrow puts a sentence of its own before the system's, and no file beside it.
        raise OSError(error.errno, os.strerror(error.errno or 0), str(target)) from error
    sync_folder(target.parent)


def finish_wal(where: Path, table: StoreTable, number: int) -> None:
    """Make a part of the write-ahead file ``number`` and remove that file; a damaged one is set aside instead."""
    import pyarrow as pa

    path = numbered_path(where, number, WAL)
    found = wal.read(path)
    if found.rows:
        write_part(
            numbered_path(where, number, PART), fit_to_schema(table, pa.Table.from_batches(found.batches, found.schema))
        )
    if found.damaged:
        logger.warning("%s is damaged after %d rows; it is kept as *%s", path, found.rows, DAMAGED)
        path.replace(numbered_path(where, number, DAMAGED))
    else:
        path.unlink()  # should a loss of power undo that, the file is void


def repair_leftovers(where: Path, table: StoreTable) -> int:
    """What a writer does first: remove leftovers, finish what an earlier writer left; returns the next number."""
    where.mkdir(parents=True, exist_ok=True)
    files = list_store_files(where)
    for path in files.temporary:
        path.unlink()
    for number, path in files.wals.items():
        if number in files.parts:
            path.unlink()
        else:
            _finish_leftover_wal(where, table, number, path)
    return files.last + 1


def _finish_leftover_wal(where: Path, table: StoreTable, number: int, path: Path) -> None:
    found = wal.read(path)
    if found.torn:
        lost = found.total_bytes - found.good_bytes
        logger.warning("%s: the last %d bytes are a row that was not written to its end; cut off", path, lost)
        wal.truncate_wal(path, found.good_bytes)
    finish_wal(where, table, number)


def forget_after(where: Path, last_round: int) -> None:
    """Take the rows of later rounds out of every part; may be stopped anywhere and done again."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    for path in list_store_files(where).parts.values():
        if _greatest_value(path, "round") <= last_round:
            continue
        found = pq.read_table(path, partitioning=None)
        kept = found.filter(pc.less_equal(found.column("round"), last_round))
        if kept.num_rows == 0:
            path.unlink()
            sync_folder(where)
        elif kept.num_rows < found.num_rows:
            write_part(path, kept)


def forget_old(folder: Path, table: str, max_bytes: int, max_age_s: float, now_s: float) -> int:
    """Remove the oldest parts of a table of ``folder`` until it keeps to both limits; returns how many went.

    A part goes when all of its rows are older than ``max_age_s``, on the clock of ``now_s``, or when the parts and
    write-ahead files after it fill ``max_bytes``. What is not a part yet stays. A part without rows stays in place of
    one that has the highest number, so that no number is used twice.
    """
    kind = BY_NAME[table]
    where = table_folder(folder, kind)
    files = list_store_files(where)
    used = sum(_size_bytes(path) for path in files.live_wals.values())
    gone = []
    for number, path in sorted(files.parts.items(), reverse=True):
        used += _size_bytes(path)
        newest_s = _greatest_value(path, kind.time)
        is_kept = used <= max_bytes and newest_s >= now_s - max_age_s
        if not is_kept and not (number == files.last and newest_s == NO_VALUE):
            gone.append(number)
    for number in reversed(gone):  # what needs room comes last
        if number == files.last:
            write_part(files.parts[number], make_empty_table(kind))
        else:
            files.parts[number].unlink(missing_ok=True)
    return len(gone)


def _greatest_value(path: Path, column: str) -> float:
    """The greatest value of a part's column, by its footer: infinity where it does not tell, ``NO_VALUE`` of no
    rows.
    """
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if not file.metadata.num_rows:
                return NO_VALUE
            place = file.metadata.schema.names.index(column)
            groups = [file.metadata.row_group(i).column(place).statistics for i in range(file.metadata.num_row_groups)]
    except (ValueError, OSError):  # a damaged one: Arrow raises both
        return math.inf
    if any(group is None or not group.has_min_max for group in groups):
        return math.inf
    return max(float(group.max) for group in groups)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def read_version_1(folder: Path, table: StoreTable) -> Any:
    """A table of a version 1 run, with today's columns."""
    import pyarrow.parquet as pq

    path = folder / OLD_FILES[table] if table in OLD_FILES else None
    if path is None or not path.is_file():
        return make_empty_table(table)
    return fit_to_schema(table, pq.ParquetFile(path).read())


def make_empty_table(table: StoreTable) -> Any:
    """The table without rows."""
    return arrow_schema(table, coded=True).empty_table()


def wal_rows_to_table(table: StoreTable, batches: Sequence[Any], schema: Any) -> Any:
    """Write-ahead rows with the columns of parts."""
    import pyarrow as pa

    return fit_to_schema(table, pa.Table.from_batches(batches, schema)) if batches else make_empty_table(table)


def sync_file(path: Path) -> None:
    """Wait until the file's bytes are on the disk."""
    _sync_path(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Wait until the folder's names are on the disk."""
    _sync_path(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync_path(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
