"""A study's rows do not depend on how many processes played it, and no process outlives it."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.child_processes import THREAD_VARIABLES, limit_to_one_thread
from fedge.clock import SimulatedClock
from fedge.decisions.mode_objectives import find_fastest_within_power
from fedge.predictors.table_board import TableBoard
from fedge.studies.prediction_study import (
    CHOICE_RULES,
    MARGIN_CONFIDENCE,
    MAX_BUDGETS,
    PAPER_BUDGETS_W,
    CellResult,
    MethodSetup,
    PredictionCell,
    PredictionRow,
    PredictionStudy,
    PredictionTarget,
    RefittingLearner,
    default_budgets,
    filter_solvable_budgets,
    resolve_setup,
    row_to_dict,
    run_cell,
    run_prediction_study,
    score_budget_choices,
    score_choice_rule,
    warm_up,
)
from fedge.types import Floats, Measurement, Modes, Predictions, ProfileTable

TIMES = ("fit_s", "predict_s", "explore_s")


def study_of(target: PredictionTarget, plug_ins: str, *methods: str, seeds: int = 2) -> PredictionStudy:
    ways = tuple(MethodSetup(method, f"{plug_ins}:Draw", "plain") for method in methods)
    return PredictionStudy((target,), ways, (5, 10), seeds)


def figures(outcomes: list[CellResult]) -> list[dict[str, Any]]:
    rows = [dict(row_to_dict(outcome.row)) for outcome in outcomes]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def test_there_is_a_row_per_method_target_modes_and_seed_in_order(target, plug_ins):
    constant = f"{plug_ins}:Constant"
    other = dataclasses.replace(target, table=dataclasses.replace(target.table, path="other.csv"))
    study = dataclasses.replace(study_of(target, plug_ins, "physical", constant), targets=(target, other))

    rows = [outcome.row for outcome in run_prediction_study(study, 1)]

    assert [(r.target, r.method, r.modes, r.seed) for r in rows] == [
        (path, method, count, seed)
        for path in (target.table.path, "other.csv")
        for method in ("physical", constant)
        for count in (5, 10)
        for seed in (0, 1)
    ]
    assert all(row.error is None for row in rows)


def test_predictions_are_kept_of_the_first_seed_only(target, plug_ins):
    outcomes = run_prediction_study(study_of(target, plug_ins, "physical"), 1)

    assert [outcome.predictions is not None for outcome in outcomes] == [outcome.cell.seed == 0 for outcome in outcomes]


def test_every_step_is_told(target, plug_ins):
    study = study_of(target, plug_ins, "physical")
    told: list[str] = []

    run_prediction_study(study, 1, told.append)

    assert len(told) == study.step_count
    assert told[0] == "prepare physical"
    assert told[-1] == "physical, 10 modes, seed 1"


def test_one_failing_method_does_not_disturb_the_others(target, plug_ins):
    outcomes = run_prediction_study(study_of(target, plug_ins, f"{plug_ins}:Broken", "physical"), 1)

    assert [outcome.row.error is None for outcome in outcomes] == [False] * 4 + [True] * 4


@pytest.mark.slow
def test_rows_are_the_same_in_one_process_and_in_several(target, plug_ins):
    study = study_of(target, plug_ins, "physical", f"{plug_ins}:Constant", f"{plug_ins}:Broken")
    before = living_children()

    alone, two = (run_prediction_study(study, workers) for workers in (1, 2))

    assert figures(alone) == figures(two)
    assert living_children() <= before


def living_children() -> set[int]:
    """The processes that this one started and that have not ended, those of Ray among them."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            if int(parent) == os.getpid() and state not in "ZX":
                found.add(int(path.parent.name))
    return found


def test_libraries_are_held_to_one_thread_and_the_environment_is_put_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)

    with limit_to_one_thread():
        assert {os.environ[name] for name in THREAD_VARIABLES} == {"1"}

    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in os.environ


NAMES = [
    "method",
    "target",
    "modes",
    "seed",
    "time_mape",
    "power_mape",
    "coverage90",
    "penalty_median",
    "penalty_mean",
    "excess_w",
    "over_limit",
    "over_limit_1w",
    "verify_modes",
    "fit_s",
    "predict_s",
    "profiling_s",
]


class Ticking(SimulatedClock):
    """A second passes whenever one looks."""

    def now_s(self) -> float:
        self.sleep_s(1.0)
        return super().now_s()


def test_rows_begin_with_the_published_names():
    assert [field.name for field in dataclasses.fields(PredictionRow)][: len(NAMES)] == NAMES


def test_a_played_cell_has_every_figure(target, plug_ins):
    outcome = run_cell(
        PredictionCell(0, MethodSetup("physical", f"{plug_ins}:Draw", "plain"), 10, 0), target, Ticking()
    )

    row = outcome.row
    assert row.error is None
    assert [name for name in NAMES if getattr(row, name) is None] == []
    assert (row.method, row.target, row.modes, row.seed) == ("physical", target.table.path, 10, 0)
    assert (row.fit_s, row.predict_s, row.explore_s) == (1.0, 1.0, 1.0)
    assert row.time_mape is not None
    assert 0.0 < row.time_mape < 20.0
    assert row.problems == 3
    assert (row.profiled, row.rows, row.implausible) == (10, len(target.table.modes), 0)
    assert row.prior_tables == ("board/other 0123",)
    assert len(outcome.profiled) == 10


def test_a_plain_choice_is_scored_like_a_search_through_the_predictions(target, plug_ins):
    outcome = run_cell(
        PredictionCell(0, MethodSetup("physical", f"{plug_ins}:Draw", "plain"), 10, 0), target, Ticking()
    )
    assert outcome.predictions is not None
    table, penalties = target.table, []
    for budget_w in target.budgets_w:
        allowed = outcome.predictions.power_w <= budget_w
        chosen = np.flatnonzero(allowed)[np.argmin(outcome.predictions.step_s[allowed])]
        penalties.append(table.step_s[chosen] / table.step_s[table.power_w <= budget_w].min() - 1)

    assert outcome.row.penalty_mean == pytest.approx(100 * np.mean(penalties))


def test_all_methods_get_the_same_random_modes(target, plug_ins):
    methods = ("physical", f"{plug_ins}:Constant")
    drawn = {
        seed: [
            run_cell(
                PredictionCell(0, MethodSetup(m, f"{plug_ins}:Draw", "plain"), 10, seed), target, Ticking()
            ).profiled
            for m in methods
        ]
        for seed in (0, 1)
    }

    assert drawn[0][0] == drawn[0][1]
    assert drawn[0][0] != drawn[1][0]


def test_implausible_rows_count_in_the_figures_that_say_all_only(target, plug_ins):
    step_s = target.table.step_s.copy()
    bad = int(np.argmin(target.table.power_w))
    step_s[bad] = step_s.min() / 3
    table = dataclasses.replace(target.table, step_s=step_s)
    plausible = np.arange(len(step_s)) != bad
    spoilt = dataclasses.replace(target, table=table, plausible=plausible)

    row = run_cell(
        PredictionCell(0, MethodSetup("physical", f"{plug_ins}:Draw", "plain"), 10, 0), spoilt, Ticking()
    ).row

    assert row.implausible == 1
    assert row.penalty_mean is not None
    assert row.penalty_mean_all is not None
    assert row.penalty_mean_all > row.penalty_mean + 50.0, "the lucky row is the optimum at every budget"
    assert row.time_mape is not None
    assert row.time_mape_plausible is not None
    assert row.time_mape > row.time_mape_plausible


@pytest.mark.parametrize(
    ("method", "explorer", "words"),
    [
        ("Broken", "Draw", "ZeroDivisionError: on purpose"),
        ("Blind", "Draw", "126 of 126 predictions"),
        ("Constant", "Stranger", "one of the 126 candidates"),
    ],
)
def test_a_method_that_fails_becomes_a_row_with_the_reason(target, plug_ins, method, explorer, words):
    outcome = run_cell(
        PredictionCell(0, MethodSetup(f"{plug_ins}:{method}", f"{plug_ins}:{explorer}", "plain"), 10, 2),
        target,
        Ticking(),
    )

    assert words in str(outcome.row.error)
    assert outcome.predictions is None
    assert [name for name in NAMES[4:] if getattr(outcome.row, name) is not None] == []
    assert outcome.row.workload == "net"


def test_warming_up_never_raises(target, plug_ins):
    warm_up(MethodSetup(f"{plug_ins}:Broken", "random", "plain"), target)
    warm_up(MethodSetup("no such method", "random", "plain"), target)


def test_a_row_is_json_without_numbers_that_are_none(target):
    row = PredictionRow("physical", "t.csv", 10, 0, time_mape=math.nan, power_mape=math.inf, coverage90=90.0)

    data = json.loads(json.dumps(row_to_dict(row), allow_nan=False))

    assert list(data)[: len(NAMES)] == NAMES
    assert (data["time_mape"], data["power_mape"], data["coverage90"]) == (None, None, 90.0)
    assert data["prior_tables"] == []


@pytest.mark.parametrize(
    ("method", "explorer", "choice", "expected"),
    [
        ("fedge", None, None, MethodSetup("fedge", "active", "verified")),
        ("powertrain", None, None, MethodSetup("powertrain", "random", "plain")),
        ("fedge", "random", None, MethodSetup("fedge", "random", "verified")),
        ("mlp", None, "margin", MethodSetup("mlp", "random", "margin")),
    ],
)
def test_every_method_has_its_own_way_unless_one_is_asked_for(method, explorer, choice, expected):
    assert resolve_setup(method, explorer, choice) == expected


class Biased:
    """Knows the table, but believes every mode not measured draws ``factor`` times its power; counts its fits."""

    def __init__(self, table: ProfileTable, factor: float) -> None:
        self.table, self.factor = table, factor
        self.fits: list[int] = []
        self.seen: set[object] = set()

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self.fits.append(len(measurements))
        self.seen = {measurement.mode for measurement in measurements}
        return self

    def predict(self, modes: Modes) -> Predictions:
        known = np.array([mode in self.seen for mode in modes])
        power_w: Floats = np.where(known, 1.0, self.factor) * self.table.power_w
        spread = np.full(len(modes), 0.1)
        return Predictions(modes, self.table.step_s, power_w, spread, spread)


def learner_of(
    table: ProfileTable, factor: float, profiled: tuple[int, ...] = (0, 1)
) -> tuple[RefittingLearner, Biased]:
    board, predictor = TableBoard(table), Biased(table, factor)
    first = predictor.fit(board.measure_rows(profiled)).predict(table.modes)
    return RefittingLearner(predictor, board, profiled, first), predictor


def budgets_of(table: ProfileTable) -> tuple[float, ...]:
    return tuple(np.quantile(table.power_w, (0.1, 0.3, 0.5, 0.7, 0.9)).tolist())


def test_who_knows_the_truth_chooses_the_optimum(table):
    learner, _ = learner_of(table, 1.0)

    found = score_choice_rule("plain", learner, np.ones(len(table.modes), dtype=np.bool_), budgets_of(table))

    assert found.problems == 5
    assert found.penalty_mean == pytest.approx(0.0)
    assert found.over_limit == 0.0
    assert found.verify_modes == 0.0


def test_who_thinks_power_too_low_breaks_the_limit_unless_the_choice_is_verified(table):
    learner, _ = learner_of(table, 0.8)
    every = np.ones(len(table.modes), dtype=np.bool_)

    costs = {choice: score_choice_rule(choice, learner, every, budgets_of(table)) for choice in CHOICE_RULES}

    over = {choice: cost.over_limit or 0.0 for choice, cost in costs.items()}
    assert over["plain"] == 100.0
    assert over["verified"] < over["plain"]
    assert (costs["margin"].excess_w or 0.0) < (costs["plain"].excess_w or 0.0)
    assert 1.0 <= (costs["verified"].verify_modes or 0.0) <= 2.0


def test_a_margin_keeps_the_limit_one_spread_above_the_prediction(table):
    learner, _ = learner_of(table, 1.0)
    budget_w = float(np.median(table.power_w))
    every = np.ones(len(table.modes), dtype=np.bool_)

    found = score_choice_rule("margin", learner, every, [budget_w])

    row = find_fastest_within_power(learner.predict_after(()), budget_w, z=1.0).row
    best_s = table.step_s[table.power_w <= budget_w].min()
    assert pytest.approx(0.84, abs=0.002) == MARGIN_CONFIDENCE
    assert found.penalty_mean == pytest.approx(100 * (table.step_s[row] / best_s - 1))


@pytest.mark.parametrize("choice", CHOICE_RULES)
def test_rows_that_are_no_candidates_are_neither_chosen_nor_the_optimum(table, choice):
    learner, _ = learner_of(table, 1.0, profiled=(0, int(np.argmin(table.step_s))))
    candidates = np.ones(len(table.modes), dtype=np.bool_)
    candidates[np.argsort(table.step_s)[:60]] = False
    budget_w = float(table.power_w.max()) + 1000.0

    found = score_choice_rule(choice, learner, candidates, [budget_w])

    assert found.penalty_mean == pytest.approx(0.0), "the fastest of the candidates is the optimum"


def test_the_same_further_measurements_are_learnt_once(table):
    learner, predictor = learner_of(table, 1.0, profiled=(0, 1))
    board = learner.board
    two = board.measure_rows([7, 9])

    first = learner.predict_after(two)

    assert learner.predict_after(two[::-1]) is first
    assert learner.predict_after([*two, *board.measure_rows([0])]) is first, "row 0 was profiled before"
    assert learner.predict_after([]) is learner.predict_after(board.measure_rows([1]))
    assert predictor.fits == [2, 4]


def test_a_budget_below_every_mode_is_no_problem(table):
    learner, _ = learner_of(table, 1.0)

    found = score_choice_rule("verified", learner, np.ones(len(table.modes), dtype=np.bool_), [0.1])

    assert found.problems == 0
    assert found.penalty_median is None


WATTS = st.lists(st.floats(0.5, 90.0), min_size=1, max_size=30)


def test_a_board_that_reaches_fifty_watts_gets_the_papers_budgets():
    assert PAPER_BUDGETS_W[0] == 17.0
    assert PAPER_BUDGETS_W[-1] == 50.0
    assert len(PAPER_BUDGETS_W) == 34
    assert default_budgets(np.array([11.0, 51.0]), None) == PAPER_BUDGETS_W
    assert default_budgets(np.array([11.0, 24.5]), 60.0) == PAPER_BUDGETS_W


@given(WATTS, st.none() | st.floats(1.0, 80.0))
@settings(max_examples=200)
def test_default_budgets_are_few_rising_and_one_is_solvable(watts, largest_w):
    power_w = np.array(watts)

    budgets = default_budgets(power_w, largest_w)

    assert 1 <= len(budgets) <= MAX_BUDGETS
    assert list(budgets) == sorted(set(budgets))
    assert all(budget == round(budget) for budget in budgets)
    if budgets != PAPER_BUDGETS_W:
        assert filter_solvable_budgets(power_w, budgets) == budgets


@given(st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(1.0, 40.0), st.integers(0, 99)), min_size=1, max_size=12))
@settings(max_examples=100)
def test_costs_are_those_of_a_plain_search(rows):
    step_s, power_w = (np.array([row[i] for row in rows]) for i in (0, 1))
    budgets = filter_solvable_budgets(power_w, [5.0, 20.0, 35.0])
    chosen = [rows[i % len(rows)][2] % len(rows) for i in range(len(budgets))]
    extra = list(range(len(budgets)))

    found = score_budget_choices(step_s, power_w, budgets, chosen, extra)

    assert list(budgets) == [b for b in (5.0, 20.0, 35.0) if any(p <= b for _, p, _ in rows)]
    assert found.problems == len(budgets)
    if not budgets:
        assert found.penalty_mean is None
        return
    best = [min(t for t, p, _ in rows if p <= budget) for budget in budgets]
    penalties = [100 * (rows[i][0] / t - 1) for i, t in zip(chosen, best, strict=True)]
    over = [rows[i][1] - budget for i, budget in zip(chosen, budgets, strict=True)]
    assert found.penalty_mean == pytest.approx(sum(penalties) / len(budgets))
    assert found.penalty_median == pytest.approx(sorted(penalties)[len(budgets) // 2]) or len(budgets) % 2 == 0
    assert found.excess_w == pytest.approx(sum(max(0.0, w) for w in over) / len(budgets))
    assert found.over_limit == pytest.approx(100 * sum(w > 0 for w in over) / len(budgets))
    assert found.over_limit_1w == pytest.approx(100 * sum(w > 1 for w in over) / len(budgets))
    assert found.verify_modes == pytest.approx(sum(extra) / len(budgets))
