"""fedge's own strategy: few trials, answers that were measured, and the same again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contracts.strategy import StrategyContract, ground_of, made_up_pair, made_up_problem, searched

from fedge.concurrency.outcome import best, worth
from fedge.concurrency.pair import pair_of
from fedge.concurrency.problems import BATCH_SIZES, Family, default_problems
from fedge.concurrency.trial import on_table, play
from fedge.profiles.table import read_table
from fedge.strategies import strategy_for
from fedge.strategies.expecting import FIRST, MOST
from fedge.studies.concurrent.ground import known_of


class TestExpecting(StrategyContract):
    name = "fedge"
    seeds = range(1)


@pytest.mark.parametrize("family", ["train", "infer", "concurrent"])
def test_fifteen_trials_are_enough_to_come_close_to_the_best(family: Family) -> None:
    solved, reached = [], []
    for seed in range(3):
        pair = made_up_pair(seed, family)
        strategy = strategy_for("fedge", ground_of(pair))
        for number in range(8):
            one = searched(strategy, pair, made_up_problem(100 * seed + number, family))
            assert len(one.found.tried) <= MOST
            optimum, choice = best(one.problem, pair), one.found.choice
            if optimum is None:
                assert choice is None
                continue
            solved.append(choice is not None)
            if choice is not None:
                every = worth(one.problem, pair)
                here, there = (choice.batch or 0, choice.row), (optimum.batch or 0, optimum.row)
                of = every.steps if family != "infer" else 1.0 / every.infer_s
                reached.append(1.0 if of[there] == 0 else of[here] / of[there])
    assert np.mean(solved) >= 0.9
    assert np.mean(reached) >= 0.85


def test_a_batch_size_that_cannot_be_collected_in_time_is_not_tried() -> None:
    pair = made_up_pair(0, "infer")
    problem = made_up_problem(3, "infer")
    one = searched(strategy_for("fedge", ground_of(pair)), pair, problem)
    assert problem.rate_hz is not None
    assert problem.latency_s is not None
    sizes = {pair.batch_sizes[trial.batch] for trial in one.found.tried if trial.batch is not None}
    assert all(size < problem.rate_hz * problem.latency_s for size in sizes)


def test_the_first_trials_are_the_same_for_every_problem_with_the_same_batch_sizes() -> None:
    pair = made_up_pair(1, "train")
    strategy = strategy_for("fedge", ground_of(pair))
    first = [searched(strategy, pair, made_up_problem(number, "train")).found.tried[:FIRST] for number in range(3)]
    assert first[0] == first[1] == first[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "infer", "family", "every"),
    [
        ("mobilenetv3l-gld23k", None, "train", 1),
        ("yolov8n-coco", None, "train", 1),
        (None, "resnet50-imagenet", "infer", 37),
        ("mobilenetv3l-gld23k", "mobilenetv3l-gld23k", "concurrent", 41),
        pytest.param("resnet18-imagenet", "mobilenetv3l-gld23k", "concurrent", 41, marks=pytest.mark.long),
    ],
)
def test_on_measured_tables_it_solves_all_but_one_in_a_hundred_and_loses_little(
    profiles_root: Path, train: str | None, infer: str | None, family: Family, every: int
) -> None:
    trained = None if train is None else read_table(profiles_root / f"agx-orin/train/{train}.csv")
    served = [
        read_table(profiles_root / f"agx-orin/infer/{infer}.csv", batch_size=size) for size in BATCH_SIZES if infer
    ]
    pair = pair_of(trained, served)
    strategy, measure = strategy_for("fedge", known_of(pair, trained, served).ground), on_table(pair)
    losses: list[float] = []
    solvable = solved = 0
    for problem in default_problems(family)[::every]:
        optimum, found = best(problem, pair), play(strategy.search(problem), measure)
        assert len(found.tried) <= MOST
        if optimum is None:
            assert found.choice is None
            continue
        solvable += 1
        if found.choice is None:
            continue
        of = worth(problem, pair)
        here, there = (found.choice.batch or 0, found.choice.row), (optimum.batch or 0, optimum.row)
        assert of.feasible[here]
        solved += 1
        if family == "infer":
            losses.append(of.infer_s[here] / of.infer_s[there] - 1.0)
        elif of.steps[there] > 0:
            losses.append(1.0 - of.steps[here] / of.steps[there])
    assert solved >= 0.99 * solvable > 0
    assert np.mean(losses) <= 0.04
