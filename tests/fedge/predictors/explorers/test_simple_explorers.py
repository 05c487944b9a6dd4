"""Random exploring is uniform, without replacement, and nested: ten modes are the first ten of fifty."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import MAXN, grid
from contracts.explorer import ExplorerContract, Make, known, measured
from hypothesis import given
from hypothesis import strategies as st

from fedge.modes import stack_modes
from fedge.predictors.explorers.simple_explorers import LatinExplorer, RandomExplorer, SpreadExplorer
from fedge.types import Floats, Modes


class TestRandomExplorer(ExplorerContract):
    @pytest.fixture
    def make(self) -> Make:
        return RandomExplorer


def test_ten_modes_are_the_first_ten_of_fifty():
    ten, fifty = (list(RandomExplorer(grid(), known()).ask(count)) for count in (10, 50))
    assert ten == fifty[:10]


def test_asking_in_parts_gives_the_same_modes_in_the_same_order():
    parts, whole = RandomExplorer(grid(), known()), RandomExplorer(grid(), known())
    first = list(parts.ask(10))
    parts.tell(measured(Modes(grid().knobs[:0])))
    assert [*first, *parts.ask(20)] == list(whole.ask(30))


def test_every_candidate_is_as_likely_as_any_other():
    """4 of 20 modes, 1,000 seeds: each is drawn 200 times, give or take (standard deviation 12.6)."""
    few = Modes(grid().knobs[:20])
    drawn = [mode for seed in range(1000) for mode in RandomExplorer(few, known(seed)).ask(4)]
    counts = np.array([drawn.count(mode) for mode in few])
    assert counts.min() > 150
    assert counts.max() < 250


class TestLatinExplorer(ExplorerContract):
    @pytest.fixture
    def make(self) -> Make:
        return LatinExplorer


@given(st.integers(1, 7), st.integers(0, 99))
def test_on_a_full_grid_every_value_of_a_knob_gets_its_share(times, seed):
    """6 GPU clocks and 6 * times modes: each clock exactly ``times``, unless two points met in one mode."""
    asked = LatinExplorer(grid(), known(seed)).ask(6 * times)
    counts = np.unique(asked.knobs[:, 2], return_counts=True)[1]
    assert len(counts) == 6
    assert counts.min() >= times - 1
    assert counts.max() <= times + 1


def test_few_modes_reach_from_end_to_end_of_every_knob():
    for seed in range(20):
        asked = LatinExplorer(grid(), known(seed)).ask(7).knobs
        np.testing.assert_array_equal(asked.min(axis=0), grid().knobs.min(axis=0))
        np.testing.assert_array_equal(asked.max(axis=0), grid().knobs.max(axis=0))


def test_where_a_mode_is_missing_the_nearest_one_stands_in():
    """Of the grid only the modes with the middle memory clock are left."""
    middle = grid().knobs[grid().knobs[:, 3] == 1800.0]
    asked = LatinExplorer(Modes(middle), known()).ask(30)
    assert (asked.knobs[:, 3] == 1800.0).all()
    assert len({*asked}) == 30
    assert len(np.unique(asked.knobs[:, 1])) == 5


def test_every_ask_is_a_hypercube_of_its_own():
    explorer = LatinExplorer(grid(), known())
    first, second = explorer.ask(7), explorer.ask(7)
    for asked in (first, second):
        assert len(np.unique(asked.knobs[:, 0])) == 7
    assert len(stack_modes([*first, *second])) == 14


def test_another_seed_gives_another_hypercube():
    assert len({frozenset(LatinExplorer(grid(), known(seed)).ask(10)) for seed in range(20)}) == 20


class TestSpreadExplorer(ExplorerContract):
    @pytest.fixture
    def make(self) -> Make:
        return SpreadExplorer


def distances(to: Modes, candidates: Modes) -> Floats:
    """Literal: of every candidate to the nearest of ``to``, in log-knobs."""
    apart = np.log(candidates.knobs)[:, None, :] - np.log(to.knobs)[None, :, :]
    nearest: Floats = np.sqrt((apart**2).sum(axis=2)).min(axis=1)
    return nearest


def test_it_starts_with_the_top_mode():
    assert SpreadExplorer(grid(), known()).ask(1)[0] == MAXN


@given(st.sets(st.integers(0, 629), min_size=10, max_size=40), st.integers(2, 9), st.integers(0, 3))
def test_each_mode_is_the_farthest_from_all_before_it(rows, count, told):
    candidates = Modes(grid().knobs[sorted(rows)])
    explorer = SpreadExplorer(candidates, known())
    before = Modes(candidates.knobs[:told])
    explorer.tell(measured(before))

    asked = explorer.ask(min(count, len(candidates) - told))

    taken = before.knobs if told else asked.knobs[:1]
    for knobs in asked.knobs[0 if told else 1 :]:
        apart = distances(Modes(taken), candidates)
        here = distances(Modes(taken), Modes(knobs[None, :]))[0]
        assert here == pytest.approx(apart.max())
        taken = np.vstack([taken, knobs])


def test_ten_modes_are_the_first_ten_of_fifty_whatever_the_seed():
    ten, fifty = list(SpreadExplorer(grid(), known(1)).ask(10)), list(SpreadExplorer(grid(), known(2)).ask(50))
    assert ten == fifty[:10]


def test_what_is_told_of_another_mode_keeps_it_away_from_there():
    """The mode told is no candidate, but lies beside the lowest one."""
    explorer = SpreadExplorer(grid(), known())
    low = Modes(grid().knobs[:1] * np.array([1.0, 1.01, 1.01, 1.0]))
    explorer.tell(measured(low))

    asked = explorer.ask(1)

    assert distances(low, asked)[0] == pytest.approx(distances(low, grid()).max())
