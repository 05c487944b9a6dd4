"""Columns in other units than their names say are found and the way to mend them is said; notes say the rest."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import grid
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.tables.table_checks import check_units, list_table_notes
from fedge.errors import BadInput
from fedge.types import Modes, ProfileTable

GRID = grid()
STEP_S = np.linspace(0.05, 2.0, len(GRID))
POWER_W = np.linspace(8.0, 40.0, len(GRID))


def _table(modes: Modes = GRID, duplicates: int = 0, power_w: float | None = None) -> ProfileTable:
    n = len(modes)
    watts = POWER_W[:n] if power_w is None else np.full(n, power_w)
    return ProfileTable("board", "net", 16, modes, STEP_S[:n], watts, "", "net.csv", duplicates)


def _check(column: int, factor: float, rows: slice = slice(None)) -> None:
    numbers = np.column_stack([GRID.knobs, STEP_S, POWER_W])
    numbers[rows, column] *= factor
    check_units("t.csv", Modes(numbers[:, :4]), numbers[:, 4], numbers[:, 5])


def test_a_good_table_has_nothing_to_say() -> None:
    check_units("t.csv", GRID, STEP_S, POWER_W)

    assert list_table_notes(_table()) == ()


@pytest.mark.parametrize(
    ("column", "factor", "message"),
    [
        (1, 1e3, r"t\.csv: cpu_khz: got 2e\+06 MHz as the top; kHz: .*; the column looks like Hz: divide it by 1000$"),
        (1, 1e-3, "cpu_khz: .* the column looks like MHz: multiply it by 1000$"),
        (1, 1e-6, "cpu_khz: .* the column looks like GHz: multiply it by 1000000$"),
        (2, 1e-3, "gpu_hz: .* the column looks like kHz: multiply it by 1000$"),
        (3, 1e-6, "mem_hz: .* the column looks like MHz: multiply it by 1000000$"),
        (4, 1e3, "time_ms: .* the column looks like microseconds: divide it by 1000$"),
        (4, 1e6, "time_ms: .* the column looks like nanoseconds: divide it by 1000000$"),
        (5, 1e3, "power_w: got 40000 W as the top; watts: .* the column looks like milliwatts: divide it by 1000$"),
        (0, 1e5, "cores: got 800000 cores as the top; a count: a board's core count lies between 1 and 128 cores$"),
    ],
)
def test_another_unit_is_recognised(column: int, factor: float, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        _check(column, factor)


@given(st.sampled_from([1, 2, 3, 5]), st.sampled_from([1e3, 1e-3, 1e6, 1e-6]), st.integers(1, len(GRID) - 1))
def test_no_mix_of_two_units_a_thousand_apart_passes(column: int, factor: float, rows: int) -> None:
    with pytest.raises(BadInput, match=r"as the top; |in \d+ of 630 rows; "):
        _check(column, factor, slice(rows))


def test_few_rows_in_another_unit_are_counted() -> None:
    with pytest.raises(BadInput, match="cpu_khz: got 500000 MHz in 3 of 630 rows; kHz in every row"):
        _check(1, 1e3, slice(3))


@pytest.mark.parametrize(
    ("table", "note"),
    [
        (_table(duplicates=1), "1 row repeats a mode: the mode's median is used"),
        (_table(duplicates=3), "3 rows repeat a mode: the mode's median is used"),
        (_table(Modes(GRID.knobs[:1])), "only one power mode: how time and power change from mode to mode cannot be"),
        (_table(Modes(GRID.knobs[:9])), "cores is the same in every row (2): what other values do cannot be seen"),
        (_table(power_w=9.0), "power_w is the same in every row (9 W): was it measured in every mode?"),
    ],
)
def test_what_was_repaired_or_cannot_be_learnt_is_noted(table: ProfileTable, note: str) -> None:
    assert any(said.startswith(note) for said in list_table_notes(table))
