"""GMD and binary search find what their published rules find, and their moves end."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from contracts.strategy import StrategyContract, made_up_pair, made_up_problem, measured_tables, search_pair
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.costs.table_calibration import FULCRUM_GRID
from fedge.serving.job_pair import build_knob_grid, build_pair, select_pair_modes
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.grid_walk import (
    MAX_MODES,
    MAX_MOVES,
    MAX_TRIALS,
    BinarySearch,
    GradientSearch,
)
from fedge.serving.trial_search import (
    BATCH_SIZES,
    FAMILIES,
    ProblemFamily,
    ServingProblem,
    default_problems,
    evaluate_choices,
    find_best_choice,
    measure_from_table,
    run_search,
)


class TestGmd(StrategyContract):
    name = "gmd"


@dataclass(frozen=True)
class Score:
    """Of the problems that can be solved: how many are, the excess in percent of those, and the trials of all."""

    solvable: int
    solved: int
    excess: float
    tries: float
    most: int


def score(root: Path, train: str | None, infer: str | None, family: ProblemFamily) -> Score:
    """``excess`` is the median over solved problems: of t_tr for training, else of t_in."""
    pair = build_pair(*measured_tables(root, train, infer))
    strategy, measure = GradientSearch(SearchContext(pair.modes, pair.batch_sizes)), measure_from_table(pair)
    excess: list[float | None] = []
    tries: list[int] = []
    for problem in default_problems(family):
        if (optimum := find_best_choice(problem, pair)) is None:
            continue
        found = run_search(strategy.search(problem), measure)
        tries.append(len(found.tried))
        at, top = found.choice, (optimum.batch or 0, optimum.row)
        if at is None or not evaluate_choices(problem, pair).feasible[at.batch or 0, at.row]:
            excess.append(None)
            continue
        seconds = pair.train_s[None] if family == "train" else pair.infer_s
        excess.append(100 * (float(seconds[at.batch or 0, at.row] / seconds[top]) - 1))
    solved = [one for one in excess if one is not None]
    return Score(len(excess), len(solved), float(np.median(solved)), float(np.mean(tries)), max(tries))


@pytest.mark.parametrize(
    ("train", "excess", "tries"),
    [("resnet18-imagenet", 8.8, 9.5), ("mobilenetv3l-gld23k", 3.4, 9.1), ("yolov8n-coco", 3.4, 8.9)],
)
def test_training_alone_is_as_published(profiles_root, train, excess, tries):
    found = score(profiles_root, train, None, "train")

    assert (round(found.excess, 1), round(found.tries, 1)) == (excess, tries)
    assert found.most <= 11


@pytest.mark.slow
@pytest.mark.parametrize(
    ("infer", "solvable", "solved", "excess"),
    [("resnet50-imagenet", 4041, 3570, 5.1), ("mobilenetv3l-gld23k", 4297, 3905, 7.4)],
)
def test_inference_alone_is_as_published(profiles_root, infer, solvable, solved, excess):
    found = score(profiles_root, None, infer, "infer")

    assert (found.solvable, found.solved, round(found.excess, 1)) == (solvable, solved, excess)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "infer", "solvable", "solved"),
    [
        ("yolov8n-coco", "resnet50-imagenet", 5322, 5003),
        ("resnet18-imagenet", "mobilenetv3l-gld23k", 5520, 5425),
        ("mobilenetv3l-gld23k", "mobilenetv3l-gld23k", 5626, 5523),
    ],
)
def test_both_at_once_are_as_published(profiles_root, train, infer, solvable, solved):
    found = score(profiles_root, train, infer, "concurrent")

    assert (found.solvable, found.solved) == (solvable, solved)
    assert 11.5 < found.tries < 12.5
    assert found.most <= MAX_TRIALS + len(BATCH_SIZES)


def grids() -> st.SearchStrategy[tuple[tuple[float, ...], ...]]:
    knob = st.lists(st.integers(1, 40).map(float), min_size=1, max_size=5, unique=True).map(sorted).map(tuple)
    return st.tuples(knob, knob, knob, knob)


@given(seed=st.integers(0, 10**6), values=grids(), family=st.sampled_from(FAMILIES))
@settings(max_examples=60)
def test_its_moves_end_on_every_grid(seed, values, family):
    pair = made_up_pair(seed, family, tuple(values))
    strategy = GradientSearch(SearchContext(pair.modes, pair.batch_sizes))
    tried = search_pair(strategy, pair, made_up_problem(seed, family)).tried

    walk = 5 + MAX_MOVES
    assert len(tried) <= {"train": walk, "infer": 2 * walk, "concurrent": MAX_TRIALS + len(pair.batch_sizes)}[family]


@pytest.mark.parametrize("strategy", [GradientSearch, BinarySearch])
@given(seed=st.integers(0, 10**6), values=grids(), family=st.sampled_from(FAMILIES), share=st.floats(0.3, 1.0))
@settings(max_examples=60)
def test_a_table_with_holes_is_searched_in_the_modes_that_it_has(strategy, seed, values, family, share):
    whole = made_up_pair(seed, family, tuple(values))
    keep = np.random.default_rng(seed).random(len(whole.modes)) < share
    keep[seed % len(keep)] = True
    pair = select_pair_modes(whole, keep)

    found = search_pair(strategy(SearchContext(pair.modes, pair.batch_sizes)), pair, made_up_problem(seed, family))

    assert all(0 <= trial.row < len(pair.modes) for trial in found.tried)
    assert (
        found.choice is None
        or evaluate_choices(made_up_problem(seed, family), pair).feasible[found.choice.batch or 0, found.choice.row]
    )


class TestBinary(StrategyContract):
    name = "bs"


def test_it_starts_in_the_middle_and_moves_one_knob_at_a_time_in_its_turn():
    pair = made_up_pair(0, "train", FULCRUM_GRID)
    tried = search_pair(BinarySearch(SearchContext(pair.modes)), pair, ServingProblem("train", 1000.0)).tried
    knobs = [pair.modes.knobs[trial.row] for trial in tried]

    assert knobs[0].tolist() == [8.0, 1344.0, 726.75, 2133.0]
    changed = [(after != before).nonzero()[0].tolist() for before, after in itertools.pairwise(knobs)]
    assert changed == [[1], [2], [0], [3], [1], [2]]
    assert knobs[-1].tolist() == [12.0, 2201.6, 1300.5, 3199.0]


@given(seed=st.integers(0, 10**6), power_w=st.floats(5.0, 45.0))
def test_it_tries_seven_modes_and_goes_up_while_below_the_budget(seed, power_w):
    pair = made_up_pair(seed, "train", FULCRUM_GRID)
    tried = search_pair(BinarySearch(SearchContext(pair.modes)), pair, ServingProblem("train", power_w)).tried

    assert len(tried) == MAX_MODES == len(build_knob_grid(pair.modes).values) + 3
    for before, after in itertools.pairwise(tried):
        up = (pair.modes.knobs[after.row] > pair.modes.knobs[before.row]).any()
        assert up == (pair.train_w[before.row] < power_w)
