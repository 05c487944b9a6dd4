"""Fulcrum's baselines: random draws, brute force, and networks that verify nothing."""

import math
from collections import Counter

import numpy as np
import pytest
from contracts.strategy import StrategyContract, ground_of, made_up_pair, made_up_problem, measured_tables, search_pair
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.predictors import network_training
from fedge.serving.job_pair import JobPair, build_pair
from fedge.serving.strategies import SearchContext, baseline_search
from fedge.serving.strategies.baseline_search import (
    INFER_TRIES,
    PROFILES,
    TRAIN_TRIES,
    ExhaustiveSearch,
    NetworkSearch,
    RandomSearch,
)
from fedge.serving.trial_search import (
    FAMILIES,
    ServingProblem,
    default_problems,
    find_best_choice,
    measure_from_table,
    run_search,
)


class TestDrawn(StrategyContract):
    name = "random"


@pytest.mark.parametrize(("family", "count"), [("train", TRAIN_TRIES), ("infer", INFER_TRIES)])
def test_it_tries_as_many_as_the_paper(family, count):
    pair = made_up_pair(0, family)

    assert len(search_pair(RandomSearch(ground_of(pair)), pair, made_up_problem(0, family)).tried) == count


def test_every_problem_is_drawn_for_anew_unless_trials_are_reused():
    pair = made_up_pair(0, "train")

    def drawn(reuse: bool) -> set[tuple[object, ...]]:
        strategy = RandomSearch(ground_of(pair, reuse=reuse))
        return {search_pair(strategy, pair, ServingProblem("train", w)).tried for w in (10.0, 20.0, 30.0)}

    assert len(drawn(reuse=False)) == 3
    assert len(drawn(reuse=True)) == 1


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [("resnet18-imagenet", 24, 36), ("mobilenetv3l-gld23k", 20, 31), ("yolov8n-coco", 17, 28)],
)
def test_ten_random_modes_cost_about_a_quarter_of_the_time(profiles_root, table, low, high):
    """The median over problems and seeds. Fulcrum's 43, 55 and 96 % are not reproduced: see ``drawn``."""
    pair = build_pair(*measured_tables(profiles_root, table, None))
    measure, medians = measure_from_table(pair), []
    for seed in range(20):
        strategy, excess = RandomSearch(SearchContext(pair.modes, seed=seed)), []
        for problem in default_problems("train"):
            optimum, choice = find_best_choice(problem, pair), run_search(strategy.search(problem), measure).choice
            if optimum is not None and choice is not None:
                excess.append(pair.train_s[choice.row] / pair.train_s[optimum.row] - 1)
        medians.append(100 * float(np.median(excess)))

    assert low <= np.median(medians) <= high


class TestOracle(StrategyContract):
    name = "oracle"


def by_hand(problem: ServingProblem, pair: JobPair) -> tuple[float, float] | None:
    """Least (t_tr or minus N, t_in) over every mode and batch size, one after the other."""
    least = None
    for row in range(len(pair.modes)):
        if problem.family == "train":
            costs = [(float(pair.train_s[row]), 0.0)] if pair.train_w[row] <= problem.power_w else []
        else:
            costs = [cost for place in range(len(pair.batch_sizes)) for cost in served(problem, pair, row, place)]
        for cost in costs:
            least = cost if least is None or cost < least else least
    return least


def served(problem: ServingProblem, pair: JobPair, row: int, place: int) -> list[tuple[float, float]]:
    window_s, infer_s = pair.batch_sizes[place] / problem.rate_hz, float(pair.infer_s[place, row])
    watts = [pair.infer_w[place, row], *([pair.train_w[row]] if problem.family == "concurrent" else [])]
    late = window_s + infer_s > problem.latency_s or infer_s * problem.rate_hz > pair.batch_sizes[place]
    if late or max(watts) > problem.power_w:
        return []
    steps = math.floor((window_s - infer_s) / pair.train_s[row]) if problem.family == "concurrent" else 0
    return [(-float(max(0, steps)), infer_s)]


@given(seed=st.integers(0, 10**6), family=st.sampled_from(FAMILIES))
@settings(max_examples=40)
def test_it_is_brute_force(seed, family):
    pair, problem = made_up_pair(seed, family), made_up_problem(seed, family)
    choice = search_pair(ExhaustiveSearch(SearchContext(pair.modes, pair.batch_sizes)), pair, problem).choice

    assert choice == find_best_choice(problem, pair)
    wanted = by_hand(problem, pair)
    if wanted is None:
        assert choice is None
    elif family == "train":
        assert pair.train_s[choice.row] == wanted[0]
    else:
        assert choice.batch is not None
        assert served(problem, pair, choice.row, choice.batch) == [wanted]


BOTH = ServingProblem("concurrent", 25.0, 1.0, 30.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks trained in a moment: what is tested here does not need good ones."""
    monkeypatch.setattr(baseline_search, "MINIBATCHES", 1)
    monkeypatch.setattr(network_training, "EPOCHS", 10)


class TestNetworks(StrategyContract):
    name = "nn"
    verifies = False
    seeds = range(1)


def test_the_profile_is_dealt_evenly_to_the_batch_sizes_and_asked_for_in_every_search():
    pair = made_up_pair(0, "concurrent", batch_sizes=(1, 4, 16, 32))
    strategy = NetworkSearch(ground_of(pair))
    first, second = (search_pair(strategy, pair, problem) for problem in (BOTH, BOTH))

    assert first.tried == second.tried
    assert len(first.tried) == PROFILES
    assert set(Counter(trial.batch for trial in first.tried).values()) <= {62, 63}


def test_the_same_readings_are_learnt_from_once_and_others_anew(monkeypatch):
    pair, other, fits = made_up_pair(0, "train"), made_up_pair(1, "train"), []
    learn = baseline_search._predict_pair
    monkeypatch.setattr(baseline_search, "_predict_pair", lambda *given: fits.append(1) or learn(*given))
    strategy = NetworkSearch(ground_of(pair))
    for watts in (10.0, 20.0, 30.0):
        search_pair(strategy, pair, ServingProblem("train", watts))
    assert len(fits) == 1

    search_pair(strategy, other, ServingProblem("train", 20.0))
    assert len(fits) == 2


def test_with_reuse_a_later_search_asks_for_nothing():
    pair = made_up_pair(0, "concurrent")
    strategy = NetworkSearch(ground_of(pair, reuse=True))
    search_pair(strategy, pair, BOTH)

    assert search_pair(strategy, pair, BOTH).tried == ()


def test_readings_that_are_no_numbers_are_left_out():
    pair = made_up_pair(0, "concurrent")
    pair.train_w[:50] = np.nan
    pair.infer_s[1] = np.nan

    choice = search_pair(NetworkSearch(ground_of(pair)), pair, BOTH).choice

    assert choice.batch != 1
