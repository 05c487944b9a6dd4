"""Profiling a table asks the explorer once, tells it what was measured, and counts what it would have cost."""

from __future__ import annotations

import importlib

import pytest

from fedge.errors import BadInput
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.explorers import load_explorer
from fedge.predictors.table_board import TableBoard, profile_table, profiling_time_s
from fedge.types import PowerMode, ProfileTable


def test_the_rows_asked_for_are_told_as_the_table_has_them(table: ProfileTable, plug_ins: str) -> None:
    board = TableBoard(table)
    rows = profile_table(load_explorer(f"{plug_ins}:Draw", table.modes, PriorKnowledge(table.maxn, seed=3)), board, 10)

    (told,) = importlib.import_module(plug_ins).TOLD
    assert len(set(rows)) == 10
    assert [m.mode for m in told] == [table.modes[row] for row in rows]
    assert [m.step_s for m in told] == table.step_s[list(rows)].tolist()
    assert [m.power_w for m in told] == table.power_w[list(rows)].tolist()
    assert {m.steps for m in told} == {40}


def test_an_explorer_that_gives_fewer_is_asked_for_the_rest(table: ProfileTable, plug_ins: str) -> None:
    rows = profile_table(
        load_explorer(f"{plug_ins}:Stingy", table.modes, PriorKnowledge(table.maxn)), TableBoard(table), 7
    )

    assert len(set(rows)) == 7
    assert [len(told) for told in importlib.import_module(plug_ins).TOLD] == [2, 2, 2, 1]


def test_a_table_that_is_exhausted_gives_fewer(table: ProfileTable, plug_ins: str) -> None:
    explorer = load_explorer(f"{plug_ins}:Draw", table.modes, PriorKnowledge(table.maxn))

    assert len(profile_table(explorer, TableBoard(table), len(table.modes) + 5)) == len(table.modes)


def test_a_mode_that_the_table_does_not_have_is_refused(table: ProfileTable, plug_ins: str) -> None:
    explorer = load_explorer(f"{plug_ins}:Stranger", table.modes, PriorKnowledge(table.maxn))

    with pytest.raises(BadInput, match="one of the 126 candidates"):
        profile_table(explorer, TableBoard(table), 3)


def test_a_mode_is_found_by_its_knobs(table: ProfileTable) -> None:
    board = TableBoard(table)

    assert [board.find_row(mode) for mode in table.modes] == list(range(len(table.modes)))
    with pytest.raises(BadInput):
        board.find_row(PowerMode(1, 1.0, 1.0, 1.0))


def test_profiling_takes_settling_and_forty_minibatches_per_mode(table: ProfileTable) -> None:
    assert profiling_time_s(table, ()) == 0.0
    assert profiling_time_s(table, (4, 9)) == pytest.approx(6.0 + 40 * (table.step_s[4] + table.step_s[9]))
