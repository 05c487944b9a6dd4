"""Binary search halves cpu, gpu, cores, mem in turn towards the budget, and stops after seven modes."""

from __future__ import annotations

import itertools

from contracts.strategy import StrategyContract, made_up_pair
from hypothesis import given
from hypothesis import strategies as st

from fedge.serving.job_pair import FULCRUM_GRID, build_knob_grid
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.binary_search import MAX_MODES, BinarySearch
from fedge.serving.trial_search import measure_from_table, run_search


class TestBinary(StrategyContract):
    name = "bs"


def test_it_starts_in_the_middle_and_moves_one_knob_at_a_time_in_its_turn() -> None:
    pair = made_up_pair(0, "train", FULCRUM_GRID)
    tried = run_search(
        BinarySearch(SearchContext(pair.modes)).search(ServingProblem("train", 1000.0)), measure_from_table(pair)
    ).tried
    knobs = [pair.modes.knobs[trial.row] for trial in tried]

    assert knobs[0].tolist() == [8.0, 1344.0, 726.75, 2133.0]
    changed = [(after != before).nonzero()[0].tolist() for before, after in itertools.pairwise(knobs)]
    assert changed == [[1], [2], [0], [3], [1], [2]]
    assert knobs[-1].tolist() == [12.0, 2201.6, 1300.5, 3199.0]


@given(seed=st.integers(0, 10**6), power_w=st.floats(5.0, 45.0))
def test_it_tries_seven_modes_and_goes_up_while_below_the_budget(seed: int, power_w: float) -> None:
    pair = made_up_pair(seed, "train", FULCRUM_GRID)
    tried = run_search(
        BinarySearch(SearchContext(pair.modes)).search(ServingProblem("train", power_w)), measure_from_table(pair)
    ).tried

    assert len(tried) == MAX_MODES == len(build_knob_grid(pair.modes).values) + 3
    for before, after in itertools.pairwise(tried):
        up = (pair.modes.knobs[after.row] > pair.modes.knobs[before.row]).any()
        assert up == (pair.train_w[before.row] < power_w)
