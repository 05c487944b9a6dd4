"""Rows come back as they were written, and a reader never sees half a table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow.parquet as pq

from fedge.telemetry.rows import ClientRow, EventRow, RoundRow
from fedge.telemetry.store import MemoryTables, RunTables, read_rows


def round_row(number: int) -> RoundRow:
    return RoundRow(number, 0.0, 1.5, 1.5, None, "nano-1", 2, 1, 0, 1, 30.0, 20.0, None, 1.4, 33.0, 31.0, 0.5, 0.75)


def test_rows_come_back_with_their_types_and_their_gaps(tmp_path: Path) -> None:
    event = EventRow(1.0, 1, None, "failed", "out of memory: <b>")
    RunTables(tmp_path).append([round_row(1), event])

    assert read_rows(tmp_path, RoundRow) == [round_row(1)]
    assert read_rows(tmp_path, EventRow) == [event]
    assert read_rows(tmp_path, ClientRow) == []


def test_a_table_goes_on_where_it_stopped(tmp_path: Path) -> None:
    RunTables(tmp_path).append([round_row(1)])
    RunTables(tmp_path).append([round_row(2)])

    assert [row.round for row in read_rows(tmp_path, RoundRow)] == [1, 2]


def test_rounds_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    tables = RunTables(tmp_path)
    tables.append([round_row(1), round_row(2), EventRow(0.0, 0, None, "start", ""), EventRow(2.0, 2, None, "late", "")])
    tables.forget_after(1)

    assert [row.round for row in RunTables(tmp_path).rounds] == [1]
    assert [row.round for row in read_rows(tmp_path, EventRow)] == [0]


def test_no_part_is_left_and_every_column_is_in_the_file(tmp_path: Path) -> None:
    RunTables(tmp_path).append([round_row(1)])

    assert sorted(path.name for path in tmp_path.iterdir()) == ["clients.parquet", "events.parquet", "rounds.parquet"]
    assert pq.read_schema(tmp_path / "rounds.parquet").names == [f.name for f in dataclasses.fields(RoundRow)]


def test_the_trivial_store_keeps_rows_in_memory() -> None:
    tables = MemoryTables()
    tables.append([round_row(1)])

    assert tables.rows == [round_row(1)]
