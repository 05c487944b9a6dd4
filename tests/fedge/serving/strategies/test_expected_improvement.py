"""fedge's own strategy: few trials, measured answers, and over a stream what was tried once is known."""

import numpy as np
import pytest
from contracts.strategy import (
    StrategyContract,
    compare_with_optimum,
    ground_of,
    made_up_pair,
    made_up_problem,
    measured_tables,
    search_pair,
)

from fedge.serving.job_pair import build_pair
from fedge.serving.strategies import strategy_for
from fedge.serving.strategies.expected_improvement import FIRST_TRIALS, MAX_MODES, MAX_TRIALS, MODES_AHEAD
from fedge.serving.trial_search import (
    ServingProblem,
    Trial,
    default_problems,
    find_best_choice,
    holds_limits,
    measure_from_table,
)
from fedge.studies.serving.job_tables import build_pair_knowledge


class TestExpecting(StrategyContract):
    name = "fedge"
    seeds = range(1)


@pytest.mark.parametrize("family", ["train", "infer", "concurrent"])
def test_fifteen_trials_are_enough_to_come_close_to_the_best(family):
    solvable, losses = 0, []
    for seed in range(3):
        pair = made_up_pair(seed, family)
        problems = [made_up_problem(100 * seed + number, family) for number in range(8)]
        found = compare_with_optimum(strategy_for("fedge", ground_of(pair)), pair, problems, MAX_TRIALS)
        solvable, losses = solvable + found[0], losses + found[1]

    assert len(losses) >= 0.9 * solvable > 0
    assert np.nanmean(1 / (1 + np.array(losses))) >= 0.85


def test_a_batch_size_that_cannot_be_collected_in_time_is_not_tried():
    pair = made_up_pair(0, "infer")
    problem = made_up_problem(3, "infer")
    found = search_pair(strategy_for("fedge", ground_of(pair)), pair, problem)
    sizes = {pair.batch_sizes[trial.batch] for trial in found.tried if trial.batch is not None}
    assert all(size < problem.rate_hz * problem.latency_s for size in sizes)


def test_the_first_trials_are_the_same_for_every_problem_with_the_same_batch_sizes():
    pair = made_up_pair(1, "train")
    strategy = strategy_for("fedge", ground_of(pair))
    first = [search_pair(strategy, pair, made_up_problem(number, "train")).tried[:FIRST_TRIALS] for number in range(3)]
    assert first[0] == first[1] == first[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "infer", "family", "every"),
    [
        ("mobilenetv3l-gld23k", None, "train", 1),
        pytest.param("yolov8n-coco", None, "train", 1, marks=pytest.mark.long),
        (None, "resnet50-imagenet", "infer", 148),
        ("mobilenetv3l-gld23k", "mobilenetv3l-gld23k", "concurrent", 164),
        pytest.param("resnet18-imagenet", "mobilenetv3l-gld23k", "concurrent", 41, marks=pytest.mark.long),
    ],
)
def test_on_measured_tables_it_solves_all_but_one_in_a_hundred_and_loses_little(
    profiles_root, train, infer, family, every
):
    trained, served = measured_tables(profiles_root, train, infer)
    pair = build_pair(trained, served)
    strategy = strategy_for("fedge", build_pair_knowledge(pair, trained, served).context)
    solvable, losses = compare_with_optimum(strategy, pair, default_problems(family)[::every], MAX_TRIALS)

    assert len(losses) >= 0.99 * solvable > 0
    assert np.nanmean(losses) <= 0.04


def test_a_stream_of_problems_needs_few_modes_and_nothing_is_tried_twice():
    pair = made_up_pair(0, "concurrent")
    strategy = strategy_for("fedge", ground_of(pair, reuse=True))
    measure, tried, solved, solvable = measure_from_table(pair), [], 0, 0
    for number in range(30):
        problem = made_up_problem(number, "concurrent")
        found = search_pair(strategy, pair, problem)
        tried += found.tried
        solvable += find_best_choice(problem, pair) is not None
        if (choice := found.choice) is not None:
            assert choice.batch is not None
            seen = measure(Trial(choice.row, choice.batch))
            assert holds_limits(problem, pair.batch_sizes[choice.batch], seen)
            solved += 1
    assert len(set(tried)) == len(tried)
    assert len({trial.row for trial in tried}) <= MAX_MODES
    assert solved >= 0.9 * solvable > 0


def test_a_mode_is_tried_at_every_batch_size_at_once():
    pair = made_up_pair(1, "infer")
    strategy = strategy_for("fedge", ground_of(pair, reuse=True))
    tried = search_pair(strategy, pair, made_up_problem(1, "infer")).tried
    rows = [trial.row for trial in tried]
    assert all(rows.count(row) == len(pair.batch_sizes) for row in rows)
    assert len(set(rows)) <= MODES_AHEAD + 2


def test_a_problem_that_came_before_needs_no_trial():
    pair = made_up_pair(2, "train")
    strategy = strategy_for("fedge", ground_of(pair, reuse=True))
    problem = ServingProblem("train", 25.0)
    for _ in range(12):
        again = search_pair(strategy, pair, problem)
    assert again.tried == ()
    assert again.choice is not None
