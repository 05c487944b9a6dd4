"""A Latin hypercube has a mode in every stratum of every knob, by the knobs' own tables."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import grid
from contracts.explorer import ExplorerContract, Make, known
from hypothesis import given
from hypothesis import strategies as st

from fedge.modes import stack_modes
from fedge.predictors.explorers.latin_explorer import LatinExplorer
from fedge.types import Modes


class TestLatinExplorer(ExplorerContract):
    @pytest.fixture
    def make(self) -> Make:
        return LatinExplorer


@given(st.integers(1, 7), st.integers(0, 99))
def test_on_a_full_grid_every_value_of_a_knob_gets_its_share(times: int, seed: int) -> None:
    """6 GPU clocks and 6 * times modes: each clock exactly ``times``, unless two points met in one mode."""
    asked = LatinExplorer(grid(), known(seed)).ask(6 * times)
    counts = np.unique(asked.knobs[:, 2], return_counts=True)[1]
    assert len(counts) == 6
    assert counts.min() >= times - 1
    assert counts.max() <= times + 1


def test_few_modes_reach_from_end_to_end_of_every_knob() -> None:
    for seed in range(20):
        asked = LatinExplorer(grid(), known(seed)).ask(7).knobs
        np.testing.assert_array_equal(asked.min(axis=0), grid().knobs.min(axis=0))
        np.testing.assert_array_equal(asked.max(axis=0), grid().knobs.max(axis=0))


def test_where_a_mode_is_missing_the_nearest_one_stands_in() -> None:
    """Of the grid only the modes with the middle memory clock are left."""
    middle = grid().knobs[grid().knobs[:, 3] == 1800.0]
    asked = LatinExplorer(Modes(middle), known()).ask(30)
    assert (asked.knobs[:, 3] == 1800.0).all()
    assert len({*asked}) == 30
    assert len(np.unique(asked.knobs[:, 1])) == 5


def test_every_ask_is_a_hypercube_of_its_own() -> None:
    explorer = LatinExplorer(grid(), known())
    first, second = explorer.ask(7), explorer.ask(7)
    for asked in (first, second):
        assert len(np.unique(asked.knobs[:, 0])) == 7
    assert len(stack_modes([*first, *second])) == 14


def test_another_seed_gives_other_modes() -> None:
    assert len({frozenset(LatinExplorer(grid(), known(seed)).ask(10)) for seed in range(20)}) == 20
