"""A strategy is played on every problem and held against brute force; its mistakes become an error in its row."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.jobs import SIZES, pair

from fedge.clock import SimulatedClock
from fedge.devices.tables.mode_table import list_batch_sizes, read_mode_table
from fedge.serving.job_pair import build_pair
from fedge.serving.strategies import SearchContext
from fedge.serving.trial_search import ProblemFamily, ServingProblem, Trial, default_problems, find_best_choice
from fedge.studies.serving.strategy_study import (
    StrategyCase,
    StrategyJob,
    StrategyRow,
    draw_problems,
    find_optimum,
    run_strategy_job,
    score_answer,
)

PROBLEMS = tuple(
    ServingProblem("concurrent", float(watts), latency, rate)
    for watts, latency, rate in itertools.product(range(16, 40, 3), (0.2, 0.5), (20.0, 60.0, 200.0))
)
ODD = """
from fedge.serving.trial_search import Trial

class Raises:
    def __init__(self, context):
        pass
    def search(self, problem):
        yield (Trial(0, 0),)
        raise KeyError("on purpose")

class Elsewhere(Raises):
    def search(self, problem):
        yield (Trial(0, 0),)
        return Trial(-1, 0)

class Bold(Raises):
    '''Always the slowest mode of least power, at the largest batch.'''
    def search(self, problem):
        yield (Trial(0, 2), Trial(1, 2))
        return Trial(0, 2)
"""


def case(family: ProblemFamily = "concurrent", problems: tuple[ServingProblem, ...] = PROBLEMS) -> StrategyCase:
    both = pair(trains=family != "infer", infers=family != "train")
    return StrategyCase(
        both, family, problems, SearchContext(both.modes, both.batch_sizes), StrategyRow("", both.name, family=family)
    )


def played(strategy: str, **change: object) -> StrategyRow:
    return run_strategy_job(replace(StrategyJob(case(), strategy), **change), SimulatedClock().now_s)


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"odd_strategies_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(ODD, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_the_optimum_is_that_of_brute_force_and_the_rate_the_best_of_all():
    both = pair()
    solvable = [problem for problem in PROBLEMS if find_best_choice(problem, both) is not None]
    assert 0 < len(solvable) < len(PROBLEMS)
    for problem in PROBLEMS:
        top, choice = find_optimum(problem, both), find_best_choice(problem, both)
        assert (top is None) == (choice is None)
        if top is None or choice is None:
            continue
        told = score_answer(problem, both, choice, 1)
        assert told.solved
        assert told.loss == pytest.approx(0.0) or top.steps == 0
        assert told.excess == pytest.approx(0.0)
        assert not told.is_violation


def test_the_oracle_solves_everything_without_loss():
    row = played("oracle")
    assert row.error is None
    assert row.solved == row.solvable
    assert row.solved_share == 100.0
    assert (row.loss_mean, row.excess_mean) == pytest.approx((0.0, 0.0))
    assert row.violations == 0.0
    assert row.modes_max == len(SIZES) * 36


def test_a_bold_answer_is_counted_as_a_violation_and_not_as_solved(odd):
    row = played(f"{odd}:Bold")
    both = pair()
    broken = 0
    for problem in PROBLEMS:
        assert problem.rate_hz is not None
        assert problem.latency_s is not None
        infer_s = float(both.infer_s[2, 0])
        over = max(float(both.infer_w[2, 0]), float(both.train_w[0])) - problem.power_w > 1.0
        late = 16 / problem.rate_hz + infer_s > 1.01 * problem.latency_s or infer_s * problem.rate_hz > 16
        broken += over or late
    assert 0 < broken < len(PROBLEMS)
    assert row.violations == pytest.approx(100 * broken / len(PROBLEMS))
    assert row.answers == len(PROBLEMS)
    assert row.solved is not None
    assert row.solvable is not None
    assert row.solved < row.solvable
    assert row.worst_over is not None
    assert row.worst_over > 10.0


def test_what_raises_or_answers_nonsense_becomes_an_error_in_the_row(odd):
    assert played(f"{odd}:Raises").error == "KeyError: 'on purpose'"
    error = played(f"{odd}:Elsewhere").error
    assert error is not None
    assert "row=-1" in error
    assert played(f"{odd}:Raises").solved is None


def test_with_reuse_a_trial_is_counted_once_for_the_whole_stream(odd):
    row, alone = played(f"{odd}:Bold", reuse=True), played(f"{odd}:Bold")
    assert (row.modes_total, row.power_modes_total) == (2, 2)
    assert row.modes_mean == row.modes_mean_all == 2 / len(PROBLEMS)
    assert alone.modes_total == 2 * len(PROBLEMS)
    assert (row.solved, row.violations) == (alone.solved, alone.violations)


def test_figures_that_a_family_does_not_have_are_none():
    train = run_strategy_job(
        StrategyJob(case("train", (ServingProblem("train", 30.0),)), "oracle"), SimulatedClock().now_s
    )
    infer = run_strategy_job(
        StrategyJob(case("infer", (ServingProblem("infer", 30.0, 0.5, 30.0),)), "oracle"), SimulatedClock().now_s
    )
    assert (train.loss_mean, train.loss_median, train.excess_mean) == (pytest.approx(0.0), pytest.approx(0.0), None)
    assert (infer.loss_mean, infer.loss_median, infer.excess_mean) == (None, None, pytest.approx(0.0))


def test_nothing_solvable_gives_a_row_without_means():
    row = run_strategy_job(
        StrategyJob(case(problems=(ServingProblem("concurrent", 1.0, 0.5, 30.0),)), "oracle"), SimulatedClock().now_s
    )
    assert (row.solvable, row.solved, row.error) == (0, 0, None)
    assert (row.solved_share, row.loss_mean, row.excess_mean, row.modes_mean) == (None, None, None, None)


def test_a_stream_is_fixed_by_its_seed_and_has_every_problem_once_at_most():
    drawn = draw_problems(PROBLEMS, 20, 3)
    assert drawn == draw_problems(PROBLEMS, 20, 3)
    assert drawn != draw_problems(PROBLEMS, 20, 4)
    assert len(set(drawn)) == 20
    assert draw_problems(PROBLEMS, None, 3) == PROBLEMS


def test_losses_are_those_of_the_formulas():
    both = pair()
    problem = ServingProblem("concurrent", 60.0, 0.5, 40.0)
    top = find_optimum(problem, both)
    choice = Trial(10, 2)
    told = score_answer(problem, both, choice, 1)
    steps = (16 / 40.0 - both.infer_s[2, 10]) // both.train_s[10]
    assert told.loss == pytest.approx(1 - steps / top.steps)
    assert told.excess == pytest.approx(both.infer_s[2, 10] / top.infer_s - 1)
    alone = pair(infers=False)
    slow = score_answer(ServingProblem("train", 60.0), alone, Trial(0), 1)
    assert slow.loss == pytest.approx(alone.train_s[0] / alone.train_s.min() - 1)


GOLDEN = (
    ("yolov8n-coco", None, "train", 38, 37, 3.4),
    (None, "resnet50-imagenet", "infer", 4041, 3570, 5.1),
    ("yolov8n-coco", "resnet50-imagenet", "concurrent", 5322, 5003, None),
)
"""One of each family; ``tests/fedge/serving/strategies/test_grid_walk.py`` has them all."""


@pytest.mark.slow
@pytest.mark.parametrize(("train", "infer", "family", "solvable", "solved", "median"), GOLDEN)
def test_gmd_on_the_measured_tables_reaches_its_golden_results(
    profiles_root, train, infer, family, solvable, solved, median
):
    folder = profiles_root / "agx-orin"
    training = read_mode_table(folder / "train" / f"{train}.csv") if train else None
    path = folder / "infer" / f"{infer}.csv"
    inference = [read_mode_table(path, batch_size=size) for size in list_batch_sizes(path)] if infer else []
    both = build_pair(training, inference)
    context = SearchContext(both.modes, both.batch_sizes)
    row = run_strategy_job(
        StrategyJob(
            StrategyCase(both, family, default_problems(family), context, StrategyRow("", both.name, family=family)),
            "gmd",
        ),
        SimulatedClock().now_s,
    )
    assert (row.solvable, row.solved, row.violations) == (solvable, solved, 0.0)
    if median is not None:
        found = row.loss_median if family == "train" else row.excess_median
        assert found == pytest.approx(median, abs=0.051)
