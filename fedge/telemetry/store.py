"""The store of a run's rows: three Parquet files, each replaced as a whole by an atomic rename after every round."""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedge.telemetry.rows import ClientRow, EventRow, RoundRow

Row = RoundRow | ClientRow | EventRow
R = TypeVar("R", RoundRow, ClientRow, EventRow)
FILES: dict[type[Row], str] = {
    RoundRow: "rounds.parquet",
    ClientRow: "clients.parquet",
    EventRow: "events.parquet",
}


class RunTables:
    """Rows of one run in memory and, after each ``append``, on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[type[Row], list[Any]] = {kind: read_rows(folder, kind) for kind in FILES}
        kind: Any
        for kind, name in FILES.items():
            if not (folder / name).exists():
                write_rows(folder, kind, [])

    def append(self, rows: Iterable[Row]) -> None:
        """Keep ``rows`` and write every table that changed."""
        changed: set[type[Row]] = set()
        for row in rows:
            self._rows[type(row)].append(row)
            changed.add(type(row))
        for kind in changed:
            write_rows(self._folder, kind, self._rows[kind])

    def forget_after(self, last_round: int) -> None:
        """Drop the rows of rounds that a resumed run will play again."""
        for kind, rows in self._rows.items():
            kept = [row for row in rows if row.round <= last_round]
            if len(kept) != len(rows):
                self._rows[kind] = kept
                write_rows(self._folder, kind, kept)

    @property
    def rounds(self) -> tuple[RoundRow, ...]:
        return tuple(self._rows[RoundRow])


class MemoryTables:
    """The trivial store: keeps the rows and writes nothing."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def append(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)


def read_rows(folder: Path, kind: type[R]) -> list[R]:
    """The rows of one table of a run folder; empty when the file is not there yet."""
    import pyarrow.parquet as pq

    path = folder / FILES[kind]
    if not path.exists():
        return []
    return [kind(**row) for row in pq.read_table(path).to_pylist()]


def write_rows(folder: Path, kind: type[R], rows: Sequence[R]) -> None:
    """Replace one table; readers see the old file or the new one, never a part."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [field.name for field in dataclasses.fields(kind)]
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    table = pa.table(columns, schema=_schema(kind))
    path = folder / FILES[kind]
    part = path.with_suffix(f".{os.getpid()}.part")
    pq.write_table(table, part)
    with part.open("rb") as handle:
        os.fsync(handle.fileno())
    part.replace(path)


def _schema(kind: type[Row]) -> Any:
    import pyarrow as pa

    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    hints = typing.get_type_hints(kind)
    return pa.schema([(field.name, arrow[_plain(hints[field.name])]) for field in dataclasses.fields(kind)])


def _plain(hint: Any) -> type:
    """``float`` for ``float | None``, ``str`` for a Literal of strings."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is typing.Literal:
        return str
    return typing.cast("type", hint)
