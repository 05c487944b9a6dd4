"""Every board's newest row and its joules, as a page reads them after a round."""

from __future__ import annotations

from pathlib import Path

import pytest
from contracts.board_runs import begin, client, play

from fedge.telemetry import open_run
from fedge.telemetry.newest_rows import read_newest_rows


def test_the_newest_rows_and_the_joules_are_those_of_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tables = begin(folder, 9)
    for number in range(1, 6):
        play(tables, 9 if number < 5 else 6, number, sampled=False)
        if number == 3:
            tables.seal()
    found = read_newest_rows(folder, ("board", "round", "status"), 2, 4)
    with open_run(folder) as run:
        last = run.query("select board, max(round) as round from clients group by board").to_pylist()
        sums = run.query(
            "select board, coalesce(sum(energy_j) filter (round < 4), 0) as gone,"
            " coalesce(sum(energy_j) filter (round >= 4), 0) as left_ from clients where round >= 2 group by board"
        ).to_pylist()
    assert {name: row[1] for name, row in found.rows.items()} == {row["board"]: row["round"] for row in last}
    assert all(row[0] == name for name, row in found.rows.items())
    assert found.before_j == pytest.approx({row["board"]: row["gone"] for row in sums})
    assert found.from_j == pytest.approx({row["board"]: row["left_"] for row in sums})


def test_the_greatest_round_counts_wherever_it_stands(tmp_path: Path) -> None:
    tables = begin(tmp_path / "run", 1)
    tables.append([client(2, "nano-1", "nano", 0, "late"), client(1, "nano-1", "nano", 0)])
    found = read_newest_rows(tmp_path / "run", ("status",), 0, 2)
    assert found.rows == {"nano-1": ("late",)}
