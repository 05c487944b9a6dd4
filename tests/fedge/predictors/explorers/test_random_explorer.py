"""Random exploring is uniform, without replacement, and nested: ten modes are the first ten of fifty."""

from __future__ import annotations

import numpy as np
import pytest
from contracts.boards import grid
from contracts.explorer import ExplorerContract, Make, known, measured

from fedge.predictors.explorers.random_explorer import RandomExplorer
from fedge.types import Modes


class TestRandomExplorer(ExplorerContract):
    @pytest.fixture
    def make(self) -> Make:
        return RandomExplorer


def test_ten_modes_are_the_first_ten_of_fifty() -> None:
    ten, fifty = (list(RandomExplorer(grid(), known()).ask(count)) for count in (10, 50))
    assert ten == fifty[:10]


def test_asking_in_parts_gives_the_same_modes_in_the_same_order() -> None:
    parts, whole = RandomExplorer(grid(), known()), RandomExplorer(grid(), known())
    first = list(parts.ask(10))
    parts.tell(measured(Modes(grid().knobs[:0])))
    assert [*first, *parts.ask(20)] == list(whole.ask(30))


def test_another_seed_gives_other_modes() -> None:
    draws = [frozenset(RandomExplorer(grid(), known(seed)).ask(10)) for seed in range(20)]
    assert len({*draws}) == 20


def test_every_candidate_is_as_likely_as_any_other() -> None:
    """4 of 20 modes, 1,000 seeds: each is drawn 200 times, give or take (standard deviation 12.6)."""
    few = Modes(grid().knobs[:20])
    drawn = [mode for seed in range(1000) for mode in RandomExplorer(few, known(seed)).ask(4)]
    counts = np.array([drawn.count(mode) for mode in few])
    assert counts.min() > 150
    assert counts.max() < 250
