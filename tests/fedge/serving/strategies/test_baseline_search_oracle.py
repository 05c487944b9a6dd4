"""The oracle's answer is the optimum of the tables by brute force."""

from __future__ import annotations

import math

from contracts.strategy import StrategyContract, made_up_pair, made_up_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.serving.job_choice import find_best_choice
from fedge.serving.job_pair import JobPair
from fedge.serving.serving_problems import FAMILIES, ProblemFamily, ServingProblem
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.baseline_search import ExhaustiveSearch
from fedge.serving.trial_search import measure_from_table, run_search


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
    assert problem.rate_hz is not None
    assert problem.latency_s is not None
    window_s, infer_s = pair.batch_sizes[place] / problem.rate_hz, float(pair.infer_s[place, row])
    watts = [pair.infer_w[place, row], *([pair.train_w[row]] if problem.family == "concurrent" else [])]
    late = window_s + infer_s > problem.latency_s or infer_s * problem.rate_hz > pair.batch_sizes[place]
    if late or max(watts) > problem.power_w:
        return []
    steps = math.floor((window_s - infer_s) / pair.train_s[row]) if problem.family == "concurrent" else 0
    return [(-float(max(0, steps)), infer_s)]


@given(seed=st.integers(0, 10**6), family=st.sampled_from(FAMILIES))
@settings(max_examples=40)
def test_it_is_brute_force(seed: int, family: ProblemFamily) -> None:
    pair, problem = made_up_pair(seed, family), made_up_problem(seed, family)
    choice = run_search(
        ExhaustiveSearch(SearchContext(pair.modes, pair.batch_sizes)).search(problem), measure_from_table(pair)
    ).choice

    assert choice == find_best_choice(problem, pair)
    wanted = by_hand(problem, pair)
    if wanted is None:
        assert choice is None
    else:
        assert choice is not None
        if family == "train":
            assert pair.train_s[choice.row] == wanted[0]
        else:
            assert choice.batch is not None
            assert served(problem, pair, choice.row, choice.batch) == [wanted]
