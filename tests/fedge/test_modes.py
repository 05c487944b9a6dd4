"""The mode tables: sizes, order, and the way onto a board's tables."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.catalogue import find, load_catalogue
from fedge.modes import build_grid, find_mode_index, snap_to_spec, stack_modes
from fedge.pareto import find_nearest_row
from fedge.types import Modes, PowerMode

KNOB = st.floats(min_value=0.1, max_value=4000)


@pytest.mark.parametrize(("board", "count"), [("agx-orin-64gb", 18_096), ("agx-xavier", 29_232), ("orin-nano", 1_800)])
def test_a_boards_grid_has_the_published_number_of_modes(board, count):
    modes = build_grid(find(board))
    assert modes.knobs.shape == (count, 4)
    assert modes.knobs.dtype == np.float64
    assert len(np.unique(modes.knobs, axis=0)) == count


def test_a_grid_may_be_restricted_to_some_values_of_a_knob():
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


def test_the_last_row_of_a_grid_is_every_knob_at_its_top():
    spec = find("nano")
    modes = build_grid(spec)
    assert modes[len(modes) - 1] == spec.maxn
    assert modes[0] == PowerMode(1, 102.0, 76.8, 204.0)


def test_a_table_of_modes_gives_the_modes_back_in_order():
    modes = [PowerMode(4, 1000.0, 600.0, 1600.0), PowerMode(2, 500.5, 300.25, 800.0)]
    assert list(stack_modes(modes)) == modes
    assert stack_modes([]).knobs.shape == (0, 4)


def test_nearest_takes_the_highest_clock_under_each_cap():
    spec = find("agx-orin")
    assert snap_to_spec(spec, PowerMode(5, 1000.0, 729.0, 3000.0)) == PowerMode(5, 960.0, 726.75, 2133.0)


def test_nearest_takes_the_lowest_clock_when_every_clock_is_above_the_cap():
    assert snap_to_spec(find("nano"), PowerMode(0, 1.0, 1.0, 1.0)) == PowerMode(1, 102.0, 76.8, 204.0)


@given(st.integers(0, 20), KNOB, KNOB, KNOB, st.sampled_from(sorted(load_catalogue())))
def test_nearest_is_on_the_tables_and_stays_there(cores, cpu, gpu, mem, board):
    spec = find(board)
    mode = snap_to_spec(spec, PowerMode(cores, cpu, gpu, mem))
    assert mode.cores in spec.cores
    assert mode.cpu_mhz in spec.cpu_mhz
    assert mode.gpu_mhz in spec.gpu_mhz
    assert mode.mem_mhz in spec.mem_mhz
    assert snap_to_spec(spec, mode) == mode


def test_every_mode_is_found_at_its_own_row():
    modes = build_grid(find("orin-nano"))
    for i in (0, 1, 777, 1799):
        assert find_mode_index(modes, modes[i]) == i


def test_a_mode_that_the_table_lacks_has_no_row():
    modes = build_grid(find("orin-nano"))
    absent = dataclasses.replace(modes[0], gpu_mhz=400.0)
    assert find_mode_index(modes, absent) is None
    assert find_mode_index(stack_modes([]), modes[0]) is None


SMALL = build_grid(find("orin-nano"), cpu_mhz=(115.2, 729.6, 1510.4), gpu_mhz=(306.0, 624.75))


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.sampled_from([0.0, 0.4, 1e-9])), max_size=20))
def test_a_row_that_was_looked_up_before_is_the_row_that_a_search_finds(asked):
    """Of modes in the table, modes next to one, and modes within the tolerance of one, some of them twice."""
    modes = Modes(SMALL.knobs)
    for row, more in [*asked, *asked]:
        mode = dataclasses.replace(SMALL[row], gpu_mhz=SMALL[row].gpu_mhz + more)
        fresh = Modes(SMALL.knobs)

        assert find_mode_index(modes, mode) == find_mode_index(fresh, mode) == (None if more == 0.4 else row)
        assert find_nearest_row(modes, mode) == find_nearest_row(fresh, mode) == row


def test_a_mode_is_searched_for_once_also_where_it_has_no_row():
    modes, searched = Modes(SMALL.knobs), list[PowerMode]()

    def search(among: Modes, mode: PowerMode) -> int | None:
        assert among is modes
        searched.append(mode)
        return None if mode.cores == 0 else 3

    absent = dataclasses.replace(SMALL[0], cores=0)
    found = [modes.look_up(search, mode) for mode in (SMALL[0], absent, SMALL[0], absent)]

    assert found == [3, None, 3, None]
    assert searched == [SMALL[0], absent]


def test_what_was_found_in_one_table_is_not_the_answer_of_another():
    whole, rest = Modes(SMALL.knobs), Modes(SMALL.knobs[1:])

    assert [find_mode_index(modes, SMALL[1]) for modes in (whole, rest)] == [1, 0]
    assert [find_mode_index(modes, SMALL[0]) for modes in (whole, rest)] == [0, None]
    assert whole[1] is whole[1] == rest[0]
