"""fedge's own strategy over a stream of problems: what was tried once is known."""

from __future__ import annotations

from contracts.strategy import ground_of, made_up_pair, made_up_problem, searched

from fedge.serving.job_choice import find_best_choice
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import strategy_for
from fedge.serving.strategies.trial_reuse import MAX_MODES, MODES_AHEAD
from fedge.serving.trial_search import Trial, holds_limits, measure_from_table


def test_a_stream_of_problems_needs_few_modes_and_nothing_is_tried_twice() -> None:
    pair = made_up_pair(0, "concurrent")
    strategy = strategy_for("fedge", ground_of(pair, reuse=True))
    measure, tried, solved, solvable = measure_from_table(pair), [], 0, 0
    for number in range(30):
        one = searched(strategy, pair, made_up_problem(number, "concurrent"))
        tried += one.found.tried
        solvable += find_best_choice(one.problem, pair) is not None
        if (choice := one.found.choice) is not None:
            assert choice.batch is not None
            seen = measure(Trial(choice.row, choice.batch))
            assert holds_limits(one.problem, pair.batch_sizes[choice.batch], seen)
            solved += 1
    assert len(set(tried)) == len(tried)
    assert len({trial.row for trial in tried}) <= MAX_MODES
    assert solved >= 0.9 * solvable > 0


def test_a_mode_is_tried_at_every_batch_size_at_once() -> None:
    pair = made_up_pair(1, "infer")
    strategy = strategy_for("fedge", ground_of(pair, reuse=True))
    tried = searched(strategy, pair, made_up_problem(1, "infer")).found.tried
    rows = [trial.row for trial in tried]
    assert all(rows.count(row) == len(pair.batch_sizes) for row in rows)
    assert len(set(rows)) <= MODES_AHEAD + 2


def test_a_problem_that_came_before_needs_no_trial() -> None:
    pair = made_up_pair(2, "train")
    strategy = strategy_for("fedge", ground_of(pair, reuse=True))
    problem = ServingProblem("train", 25.0)
    for _ in range(12):
        again = searched(strategy, pair, problem)
    assert again.found.tried == ()
    assert again.found.choice is not None
