"""A batch is measured from high to low: the memory clock never rises, the others only where an outer one falls."""

from __future__ import annotations

import numpy as np
from contracts.boards import MAXN, grid
from hypothesis import given
from hypothesis import strategies as st

from fedge.predictors.explorers.profiling_order import sort_high_to_low
from fedge.types import Modes, PowerMode

_rows = st.lists(st.integers(0, 629), max_size=30)


def high_to_low(mode: PowerMode) -> tuple[float, ...]:
    return (mode.mem_mhz, mode.cores, mode.gpu_mhz, mode.cpu_mhz)


@given(_rows)
def test_it_is_the_order_that_sorting_finds(rows):
    modes = Modes(grid().knobs[rows])
    assert list(sort_high_to_low(modes)) == sorted(modes, key=high_to_low, reverse=True)


@given(_rows)
def test_the_memory_clock_only_falls(rows):
    assert (np.diff(sort_high_to_low(Modes(grid().knobs[rows])).knobs[:, 3]) <= 0).all()


def test_the_top_mode_is_first_and_the_modes_given_stay_as_they_were():
    modes = grid()
    before = modes.knobs.copy()
    assert sort_high_to_low(modes)[0] == MAXN
    np.testing.assert_array_equal(modes.knobs, before)
