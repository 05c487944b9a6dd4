"""Files of a store: numbered Parquet parts and write-ahead files, and the conversion from one to the other.

``store/<table>/<number>.wal`` becomes ``<number>.parquet``; a part supersedes the write-ahead file of its number. In a
fleet's store, neighbouring parts become ``<first>-<last>.parquet``, which supersedes all files of these numbers. Every
step leaves either the previous or the next state, and can be repeated.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedge.atomic_files import replace_file, sync_folder
from fedge.errors import BadInput
from fedge.json_reader import read_json
from fedge.telemetry import wal
from fedge.telemetry.run_folder import CHECKPOINTS, MODEL, RUN_YAML, STORE
from fedge.telemetry.store_schema import TABLES, VERSION, StoreTable, arrow_schema, fit_to_schema

logger = logging.getLogger(__name__)

VERSION_FILE = "VERSION"
VERSION_1_FILE = "rounds.parquet"
"""File by which a run folder of version 1 is known, which is no longer read."""
PART, WAL, DAMAGED, TEMPORARY = ".parquet", ".wal", ".damaged", ".part"
NUMBERED = re.compile(r"(\d+)(?:-(\d+))?(\.parquet|\.wal|\.damaged)", re.ASCII)
NO_VALUE = -math.inf
"""Smaller than every value: the maximum of an empty column."""
ROW_GROUP = 131_072
"""Rows per Parquet row group."""
MAX_GROUP_ROWS, MAX_GROUP_BYTES = 2**20, 2**30
"""Largest row group that is read, eight of ours, and its size when it is decoded."""
READABLE = "files as fedge wrote them; a damaged one can be moved away, its rows are lost then"


@dataclass(frozen=True, slots=True)
class StoreListing:
    """A table's files by number, from one listing of its folder.

    Attributes:
        parts: By their last number.
        live_wals: Write-ahead files that no part supersedes.
        superseded: Parts and write-ahead files that a part supersedes.
    """

    parts: Mapping[int, Path]
    live_wals: Mapping[int, Path]
    damaged: Mapping[int, Path]
    superseded: tuple[Path, ...]
    temporary: tuple[Path, ...]

    @property
    def last(self) -> int:
        """The highest number in use; 0 if there is none."""
        return max((*self.parts, *self.live_wals, *self.damaged), default=0)


def table_folder(folder: Path, table: StoreTable) -> Path:
    """Return the folder of a table in the run ``folder``."""
    return folder / STORE / table.name


def list_store_files(where: Path) -> StoreListing:
    """List the files of a table's folder; empty if it does not exist."""
    try:
        names = sorted(path.name for path in where.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        names = []
    parts, wals, damaged, superseded = dict[int, Path](), dict[int, Path](), dict[int, Path](), list[Path]()
    spans = []
    for name in names:
        if found := NUMBERED.fullmatch(name):
            first, last = int(found[1]), int(found[2] or found[1])
            if found[3] == DAMAGED:
                damaged[last] = where / name
            else:
                spans.append((first, -last, found[3] == WAL, where / name))
    end = -1
    for _, before, is_wal, path in sorted(spans):  # the widest first, and a part before a write-ahead file
        if -before <= end:
            superseded.append(path)
        else:
            (wals if is_wal else parts)[-before] = path
            end = -before
    temporary = tuple(where / name for name in names if name.endswith(TEMPORARY))
    return StoreListing(parts, wals, damaged=damaged, superseded=tuple(superseded), temporary=temporary)


def numbered_path(where: Path, number: int, kind: str) -> Path:
    return where / f"{number:06d}{kind}"


def has_store(folder: Path) -> bool:
    """Return whether a run folder has a store of this version; False if nothing was stored.

    Raises:
        BadInput: The store has another version, its version cannot be read, or a run with rounds has lost its store.
    """
    path = folder / STORE / VERSION_FILE
    if path.is_file():
        _check_version_file(path)
        return True
    if (folder / VERSION_1_FILE).is_file():
        raise _version_error(folder, 1)
    if any((folder / STORE / table.name).is_dir() for table in TABLES):
        right = f'a file that says which version the store has, here most likely {{"version": {VERSION}}}'
        raise BadInput(str(path), "no such file beside tables", right)
    if (folder / MODEL).is_file() or any((folder / CHECKPOINTS).glob("*")):  # written after the rows
        right = f"the store that the run wrote: put it back, or run it again: fedge run {folder / RUN_YAML}"
        raise BadInput(str(folder / STORE), "no rows, though the run has done rounds", right)
    return False


def _check_version_file(path: Path) -> None:
    right = f'{{"version": {VERSION}}}, as fedge writes it'
    content = read_json(path, right)
    version = content.get("version") if isinstance(content, dict) else None
    if type(version) is not int:
        raise BadInput(str(path), "no version", right)
    if version != VERSION:
        raise _version_error(path, version)


def _version_error(path: Path, version: int) -> BadInput:
    writer = "a newer fedge" if version > VERSION else "an older fedge"
    right = f"version {VERSION}; {writer} wrote this run and can read it, or run it again: fedge run FOLDER/run.yaml"
    return BadInput(str(path), f"version {version} of the store", right)


def write_part(target: Path, table: Any) -> None:
    """Replace a part by an Arrow table.

    Raises:
        OSError: Writing failed; it names the file, and nothing of it remains.
    """
    import pyarrow.parquet as pq

    try:
        with replace_file(target) as part:
            pq.write_table(table, part, compression="zstd", row_group_size=ROW_GROUP)
    except OSError as error:
        # Arrow's message has a prefix of its own, and the error lacks the file name.
        raise OSError(error.errno, os.strerror(error.errno or 0), str(target)) from error
    sync_folder(target.parent)


def finish_wal(where: Path, table: StoreTable, number: int) -> None:
    """Convert the write-ahead file ``number`` to a part and remove it; a damaged one is renamed instead."""
    path = numbered_path(where, number, WAL)
    contents = wal.read(path)
    if contents.rows:
        write_part(numbered_path(where, number, PART), wal_rows_to_table(table, contents, path))
    if contents.damaged:
        logger.warning("%s is damaged after %d rows; it is kept as *%s", path, contents.rows, DAMAGED)
        path.replace(numbered_path(where, number, DAMAGED))
    else:
        path.unlink()  # should a loss of power undo that, the file is void


def repair_leftovers(where: Path, table: StoreTable) -> int:
    """Remove temporary files and finish what an earlier writer left; return the next free number."""
    where.mkdir(parents=True, exist_ok=True)
    files = list_store_files(where)
    for path in (*files.temporary, *files.superseded):
        path.unlink()
    for number, path in files.live_wals.items():
        contents = wal.read(path)
        if contents.torn:
            torn = contents.total_bytes - contents.good_bytes
            logger.warning("%s: the last %d bytes are a row that was not written to its end; cut off", path, torn)
            wal.truncate_wal(path, contents.good_bytes)
        finish_wal(where, table, number)
    return files.last + 1


def forget_after(where: Path, last_round: int) -> None:
    """Remove the rows of later rounds from every part; may be interrupted and repeated."""
    import pyarrow.compute as pc

    for path in list_store_files(where).parts.values():
        if read_greatest(path, "round") <= last_round:
            continue
        rows = read_part(path)
        kept = rows.filter(pc.less_equal(rows.column("round"), last_round))
        if kept.num_rows == 0:
            path.unlink()
            sync_folder(where)
        elif kept.num_rows < rows.num_rows:
            write_part(path, kept)


def read_greatest(path: Path, column: str) -> float:
    """Return the maximum of a part's column from its footer, which is read once.

    Returns:
        Infinity if the footer does not contain it, ``NO_VALUE`` for an empty part.

    Raises:
        FileNotFoundError: It has gone.
    """
    return _read_greatest(path, column, path.stat().st_mtime_ns)


@lru_cache(maxsize=10_000)
def _read_greatest(path: Path, column: str, _changed_ns: int) -> float:
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


def size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def make_empty_table(table: StoreTable) -> Any:
    """Return the table without rows."""
    return arrow_schema(table, coded=True).empty_table()


def wal_rows_to_table(table: StoreTable, contents: wal.WalContents, path: Path) -> Any:
    """Return the write-ahead rows of a file with the columns of parts.

    Raises:
        BadInput: The file has other columns.
    """
    import pyarrow as pa

    if not contents.batches:
        return make_empty_table(table)
    # One piece per column: every later step takes as long as there are pieces, and a round adds one.
    rows = pa.Table.from_batches(contents.batches, contents.schema).combine_chunks()
    return _fit_rows(table, rows, path)


def _fit_rows(table: StoreTable, rows: Any, path: Path) -> Any:
    import pyarrow as pa

    try:
        return fit_to_schema(table, rows)
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise BadInput(str(path), f"columns that do not fit ({error})", f"those of {table.name}") from error


def read_part(path: Path) -> Any:
    """Return the rows of a Parquet file.

    Raises:
        BadInput: The file is damaged, or no part.
        FileNotFoundError: It has gone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_part(path, path.stat().st_mtime_ns)
    try:
        rows = pq.ParquetFile(path).read()
        rows.validate(full=True)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged_error(path, error) from error
    return rows


@lru_cache(maxsize=10_000)
def check_part(path: Path, changed_ns: int) -> None:
    """Check the sizes that a part's footer claims: a few bytes can stand for rows that fill any memory.

    Args:
        path: The part.
        changed_ns: When it was changed, in ns: the same file is checked once.

    Raises:
        BadInput: The file is damaged, or claims more than a part holds.
        FileNotFoundError: It has gone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
            claims = [(group.num_rows, group.total_byte_size) for group in groups]
            rows = file.metadata.num_rows
    except FileNotFoundError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged_error(path, error) from error
    wrong = any(not (0 <= count <= MAX_GROUP_ROWS and 0 <= size <= MAX_GROUP_BYTES) for count, size in claims)
    if wrong or rows != sum(count for count, _ in claims):
        raise BadInput(str(path), "a table that claims other sizes than a part has", READABLE)


def _damaged_error(path: Path, error: Exception) -> BadInput:
    """Return the error for a part that cannot be read; Arrow's own words only name what it looked for in the file."""
    reason = error.strerror if isinstance(error, OSError) else None
    return BadInput(str(path), f"a file that cannot be read ({reason})" if reason else "a damaged file", READABLE)


def unreadable_error(error: Exception) -> BadInput:
    """Return the one-line error for a file of the store that cannot be read."""
    return BadInput(STORE, str(error), READABLE)
