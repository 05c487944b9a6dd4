"""The mode tables: sizes, order, and the way onto a board's tables."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.catalogue import find, load_catalogue
from fedge.modes import build_grid, find_mode_index, snap_to_spec, stack_modes
from fedge.types import PowerMode

KNOB = st.floats(min_value=0.1, max_value=4000)


@pytest.mark.parametrize(("board", "count"), [("agx-orin-64gb", 18_096), ("agx-xavier", 29_232), ("orin-nano", 1_800)])
def test_a_boards_grid_has_the_published_number_of_modes(board: str, count: int) -> None:
    modes = build_grid(find(board))
    assert modes.knobs.shape == (count, 4)
    assert modes.knobs.dtype == np.float64
    assert len(np.unique(modes.knobs, axis=0)) == count


def test_a_grid_may_be_restricted_to_some_values_of_a_knob() -> None:
    spec = find("agx-orin")
    modes = build_grid(
        spec,
        cores=(4, 8, 12),
        cpu_mhz=(422.4, 729.6, 1036.8, 1344.0, 1651.2, 1958.4, 2201.6),
        gpu_mhz=(114.75, 318.75, 522.75, 726.75, 930.75, 1134.75, 1300.5),
        mem_mhz=(665.6, 2133.0, 3199.0),
    )
    assert len(modes) == 441
    full = {tuple(row) for row in build_grid(spec).knobs}
    assert all(tuple(row) in full for row in modes.knobs)


def test_the_last_row_of_a_grid_is_every_knob_at_its_top() -> None:
    spec = find("nano")
    modes = build_grid(spec)
    assert modes[len(modes) - 1] == spec.maxn
    assert modes[0] == PowerMode(1, 102.0, 76.8, 204.0)


def test_a_table_of_modes_gives_the_modes_back_in_order() -> None:
    modes = [PowerMode(4, 1000.0, 600.0, 1600.0), PowerMode(2, 500.5, 300.25, 800.0)]
    assert list(stack_modes(modes)) == modes
    assert stack_modes([]).knobs.shape == (0, 4)


def test_nearest_takes_the_highest_clock_under_each_cap() -> None:
    spec = find("agx-orin")
    assert snap_to_spec(spec, PowerMode(5, 1000.0, 729.0, 3000.0)) == PowerMode(5, 960.0, 726.75, 2133.0)


def test_nearest_takes_the_lowest_clock_when_every_clock_is_above_the_cap() -> None:
    assert snap_to_spec(find("nano"), PowerMode(0, 1.0, 1.0, 1.0)) == PowerMode(1, 102.0, 76.8, 204.0)


@given(st.integers(0, 20), KNOB, KNOB, KNOB, st.sampled_from(sorted(load_catalogue())))
def test_nearest_is_on_the_tables_and_stays_there(cores: int, cpu: float, gpu: float, mem: float, board: str) -> None:
    spec = find(board)
    mode = snap_to_spec(spec, PowerMode(cores, cpu, gpu, mem))
    assert mode.cores in spec.cores
    assert mode.cpu_mhz in spec.cpu_mhz
    assert mode.gpu_mhz in spec.gpu_mhz
    assert mode.mem_mhz in spec.mem_mhz
    assert snap_to_spec(spec, mode) == mode


def test_every_mode_is_found_at_its_own_row() -> None:
    modes = build_grid(find("orin-nano"))
    for i in (0, 1, 777, 1799):
        assert find_mode_index(modes, modes[i]) == i


def test_a_mode_that_the_table_lacks_has_no_row() -> None:
    modes = build_grid(find("orin-nano"))
    absent = dataclasses.replace(modes[0], gpu_mhz=400.0)
    assert find_mode_index(modes, absent) is None
    assert find_mode_index(stack_modes([]), modes[0]) is None
