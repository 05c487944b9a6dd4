"""Random search draws ten modes for training and fifty modes with batch sizes otherwise, and keeps the best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contracts.strategy import StrategyContract, ground_of, made_up_pair, made_up_problem

from fedge.devices.tables.mode_table import read_mode_table
from fedge.serving.job_choice import find_best_choice
from fedge.serving.job_pair import build_pair
from fedge.serving.serving_problems import ProblemFamily, ServingProblem, default_problems
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.baseline_search import INFER_TRIES, TRAIN_TRIES, RandomSearch
from fedge.serving.trial_search import measure_from_table, run_search


class TestDrawn(StrategyContract):
    name = "random"


@pytest.mark.parametrize(("family", "count"), [("train", TRAIN_TRIES), ("infer", INFER_TRIES)])
def test_it_tries_as_many_as_the_paper(family: ProblemFamily, count: int) -> None:
    pair = made_up_pair(0, family)

    assert (
        len(
            run_search(RandomSearch(ground_of(pair)).search(made_up_problem(0, family)), measure_from_table(pair)).tried
        )
        == count
    )


def test_every_problem_is_drawn_for_anew_unless_trials_are_reused() -> None:
    pair = made_up_pair(0, "train")

    def drawn(reuse: bool) -> set[tuple[object, ...]]:
        strategy = RandomSearch(ground_of(pair, reuse=reuse))
        return {
            run_search(strategy.search(ServingProblem("train", w)), measure_from_table(pair)).tried
            for w in (10.0, 20.0, 30.0)
        }

    assert len(drawn(reuse=False)) == 3
    assert len(drawn(reuse=True)) == 1


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [("resnet18-imagenet", 24, 36), ("mobilenetv3l-gld23k", 20, 31), ("yolov8n-coco", 17, 28)],
)
def test_ten_random_modes_cost_about_a_quarter_of_the_time(
    profiles_root: Path, table: str, low: int, high: int
) -> None:
    """The median over problems and seeds. Fulcrum's 43, 55 and 96 % are not reproduced: see ``drawn``."""
    pair = build_pair(read_mode_table(profiles_root / "agx-orin" / "train" / f"{table}.csv"), [])
    measure, medians = measure_from_table(pair), []
    for seed in range(20):
        strategy, excess = RandomSearch(SearchContext(pair.modes, seed=seed)), []
        for problem in default_problems("train"):
            optimum, choice = find_best_choice(problem, pair), run_search(strategy.search(problem), measure).choice
            if optimum is not None and choice is not None:
                excess.append(pair.train_s[choice.row] / pair.train_s[optimum.row] - 1)
        medians.append(100 * float(np.median(excess)))

    assert low <= np.median(medians) <= high
