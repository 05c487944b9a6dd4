"""The modes a board chooses among keep it reachable, keep both ends of every knob, and are not too many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.decisions.candidate_modes import (
    FLOOR_CORES,
    FLOOR_CPU_MHZ,
    MAX_CANDIDATES,
    mask_candidates,
    mask_candidates_and_presets,
)
from fedge.devices import catalogue
from fedge.modes import build_grid
from fedge.types import Modes, PowerMode


@pytest.mark.parametrize("device", sorted(catalogue.load_catalogue()))
@pytest.mark.parametrize("limit", [MAX_CANDIDATES, 100])
def test_modes_to_choose_from_keep_the_floor_both_ends_of_every_knob_and_the_limit(device, limit):
    modes = build_grid(catalogue.find(device))
    floor = (modes.knobs[:, 0] >= FLOOR_CORES) & (modes.knobs[:, 1] >= FLOOR_CPU_MHZ)

    kept = mask_candidates(modes, limit)

    assert (FLOOR_CORES, FLOOR_CPU_MHZ) == (2, 400.0)
    assert not (kept & ~floor).any()
    assert 1 <= kept.sum() <= limit
    np.testing.assert_array_equal(modes.knobs[kept].min(axis=0), modes.knobs[floor].min(axis=0))
    np.testing.assert_array_equal(modes.knobs[kept].max(axis=0), modes.knobs[floor].max(axis=0))
    if floor.sum() <= limit:
        np.testing.assert_array_equal(kept, floor)


@given(st.tuples(*(st.integers(1, 9) for _ in range(4))), st.integers(1, 400))
def test_thinning_ends_at_the_limit_or_at_nothing_but_ends(sizes, limit):
    axes = np.meshgrid(*(np.arange(2, 2 + n) * s for n, s in zip(sizes, (1, 400, 10, 10), strict=True)), indexing="ij")
    modes = Modes(np.stack([axis.ravel() for axis in axes], axis=1).astype(float))

    kept = modes.knobs[mask_candidates(modes, limit)]

    assert len(kept) <= max(limit, math.prod(min(n, 2) for n in sizes))
    np.testing.assert_array_equal(kept.min(axis=0), modes.knobs.min(axis=0))
    np.testing.assert_array_equal(kept.max(axis=0), modes.knobs.max(axis=0))


def test_a_board_below_the_floor_in_every_mode_keeps_them_all():
    assert mask_candidates(Modes(np.array([[1, 300.0, 300.0, 800.0], [2, 300.0, 300.0, 800.0]]))).all()


def test_presets_of_the_table_are_candidates_also_below_the_floor():
    modes = Modes(np.array([[1, 300.0, 300.0, 800.0], [1, 900.0, 300.0, 800.0], [2, 900.0, 300.0, 800.0]]))
    stranger = PowerMode(4, 900.0, 300.0, 800.0)

    assert mask_candidates(modes).tolist() == [False, False, True]
    assert mask_candidates_and_presets(modes, [modes[1], stranger]).tolist() == [False, True, True]
    assert mask_candidates_and_presets(modes, []).tolist() == [False, False, True]
