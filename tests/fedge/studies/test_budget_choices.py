"""Choices of a cell are made among the candidates only, and every refit is made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pytest

from fedge.decisions.mode_objectives import find_fastest_within_power
from fedge.predictors.table_board import TableBoard
from fedge.studies.prediction_cells import CHOICE_RULES, MARGIN_CONFIDENCE, RefittingLearner, score_choice_rule
from fedge.types import Floats, Measurement, Modes, Predictions, ProfileTable


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


def test_who_knows_the_truth_chooses_the_optimum(table: ProfileTable) -> None:
    learner, _ = learner_of(table, 1.0)

    found = score_choice_rule("plain", learner, np.ones(len(table.modes), dtype=np.bool_), budgets_of(table))

    assert found.problems == 5
    assert found.penalty_mean == pytest.approx(0.0)
    assert found.over_limit == 0.0
    assert found.verify_modes == 0.0


def test_who_thinks_power_too_low_breaks_the_limit_unless_the_choice_is_verified(table: ProfileTable) -> None:
    learner, _ = learner_of(table, 0.8)
    every = np.ones(len(table.modes), dtype=np.bool_)

    costs = {choice: score_choice_rule(choice, learner, every, budgets_of(table)) for choice in CHOICE_RULES}

    over = {choice: cost.over_limit or 0.0 for choice, cost in costs.items()}
    assert over["plain"] == 100.0
    assert over["verified"] < over["plain"]
    assert (costs["margin"].excess_w or 0.0) < (costs["plain"].excess_w or 0.0)
    assert 1.0 <= (costs["verified"].verify_modes or 0.0) <= 2.0


def test_a_margin_keeps_the_limit_one_spread_above_the_prediction(table: ProfileTable) -> None:
    learner, _ = learner_of(table, 1.0)
    budget_w = float(np.median(table.power_w))
    every = np.ones(len(table.modes), dtype=np.bool_)

    found = score_choice_rule("margin", learner, every, [budget_w])

    row = find_fastest_within_power(learner.predict_after(()), budget_w, z=1.0).row
    best_s = table.step_s[table.power_w <= budget_w].min()
    assert pytest.approx(0.84, abs=0.002) == MARGIN_CONFIDENCE
    assert found.penalty_mean == pytest.approx(100 * (table.step_s[row] / best_s - 1))


@pytest.mark.parametrize("choice", CHOICE_RULES)
def test_rows_that_are_no_candidates_are_neither_chosen_nor_the_optimum(table: ProfileTable, choice: str) -> None:
    learner, _ = learner_of(table, 1.0, profiled=(0, int(np.argmin(table.step_s))))
    candidates = np.ones(len(table.modes), dtype=np.bool_)
    candidates[np.argsort(table.step_s)[:60]] = False
    budget_w = float(table.power_w.max()) + 1000.0

    found = score_choice_rule(choice, learner, candidates, [budget_w])

    assert found.penalty_mean == pytest.approx(0.0), "the fastest of the candidates is the optimum"


def test_the_same_further_measurements_are_learnt_once(table: ProfileTable) -> None:
    learner, predictor = learner_of(table, 1.0, profiled=(0, 1))
    board = learner.board
    two = board.measure_rows([7, 9])

    first = learner.predict_after(two)

    assert learner.predict_after(two[::-1]) is first
    assert learner.predict_after([*two, *board.measure_rows([0])]) is first, "row 0 was profiled before"
    assert learner.predict_after([]) is learner.predict_after(board.measure_rows([1]))
    assert predictor.fits == [2, 4]


def test_a_budget_below_every_mode_is_no_problem(table: ProfileTable) -> None:
    learner, _ = learner_of(table, 1.0)

    found = score_choice_rule("verified", learner, np.ones(len(table.modes), dtype=np.bool_), [0.1])

    assert found.problems == 0
    assert found.penalty_median is None
