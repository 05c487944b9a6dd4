"""The space-filling explorer takes the farthest mode each time, and covers better than chance."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import MAXN, grid
from contracts.explorer import ExplorerContract, Make, known, measured
from hypothesis import given
from hypothesis import strategies as st

from fedge.predictors.explorers.random_explorer import RandomExplorer
from fedge.predictors.explorers.spread_explorer import SpreadExplorer
from fedge.types import Floats, Modes


class TestSpreadExplorer(ExplorerContract):
    @pytest.fixture
    def make(self) -> Make:
        return SpreadExplorer


def distances(to: Modes, candidates: Modes) -> Floats:
    """Literal: of every candidate to the nearest of ``to``, in log-knobs."""
    apart = np.log(candidates.knobs)[:, None, :] - np.log(to.knobs)[None, :, :]
    nearest: Floats = np.sqrt((apart**2).sum(axis=2)).min(axis=1)
    return nearest


def test_it_starts_with_the_top_mode() -> None:
    assert SpreadExplorer(grid(), known()).ask(1)[0] == MAXN


@given(st.sets(st.integers(0, 629), min_size=10, max_size=40), st.integers(2, 9), st.integers(0, 3))
def test_each_mode_is_the_farthest_from_all_before_it(rows: set[int], count: int, told: int) -> None:
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


def test_ten_modes_are_the_first_ten_of_fifty_whatever_the_seed() -> None:
    ten, fifty = list(SpreadExplorer(grid(), known(1)).ask(10)), list(SpreadExplorer(grid(), known(2)).ask(50))
    assert ten == fifty[:10]


def test_what_is_told_of_another_mode_keeps_it_away_from_there() -> None:
    """The mode told is no candidate, but lies beside the lowest one."""
    explorer = SpreadExplorer(grid(), known())
    low = Modes(grid().knobs[:1] * np.array([1.0, 1.01, 1.01, 1.0]))
    explorer.tell(measured(low))

    asked = explorer.ask(1)

    assert distances(low, asked)[0] == pytest.approx(distances(low, grid()).max())


def test_the_farthest_candidate_is_nearer_than_with_random_modes() -> None:
    covered = distances(SpreadExplorer(grid(), known()).ask(15), grid()).max()
    random = [distances(RandomExplorer(grid(), known(seed)).ask(15), grid()).max() for seed in range(20)]
    assert covered < min(random)
