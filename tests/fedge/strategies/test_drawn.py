"""Random search draws ten modes for training and fifty modes with batch sizes otherwise, and keeps the best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contracts.strategy import StrategyContract, ground_of, made_up_pair, made_up_problem

from fedge.concurrency.outcome import best
from fedge.concurrency.pair import pair_of
from fedge.concurrency.problems import Family, Problem, default_problems
from fedge.concurrency.trial import on_table, play
from fedge.profiles.table import read_table
from fedge.strategies import Ground
from fedge.strategies.drawn import INFER_TRIES, TRAIN_TRIES, Drawn


class TestDrawn(StrategyContract):
    name = "random"


@pytest.mark.parametrize(("family", "count"), [("train", TRAIN_TRIES), ("infer", INFER_TRIES)])
def test_it_tries_as_many_as_the_paper(family: Family, count: int) -> None:
    pair = made_up_pair(0, family)

    assert len(play(Drawn(ground_of(pair)).search(made_up_problem(0, family)), on_table(pair)).tried) == count


def test_every_problem_is_drawn_for_anew_unless_trials_are_reused() -> None:
    pair = made_up_pair(0, "train")

    def drawn(reuse: bool) -> set[tuple[object, ...]]:
        strategy = Drawn(ground_of(pair, reuse=reuse))
        return {play(strategy.search(Problem("train", w)), on_table(pair)).tried for w in (10.0, 20.0, 30.0)}

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
    pair = pair_of(read_table(profiles_root / "agx-orin" / "train" / f"{table}.csv"), [])
    measure, medians = on_table(pair), []
    for seed in range(20):
        strategy, excess = Drawn(Ground(pair.modes, seed=seed)), []
        for problem in default_problems("train"):
            optimum, choice = best(problem, pair), play(strategy.search(problem), measure).choice
            if optimum is not None and choice is not None:
                excess.append(pair.train_s[choice.row] / pair.train_s[optimum.row] - 1)
        medians.append(100 * float(np.median(excess)))

    assert low <= np.median(medians) <= high
