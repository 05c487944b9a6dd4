"""Choose a mode for every power budget of a cell by one of three rules, refitting once per set of measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import compute_margin_z
from fedge.decisions.mode_objectives import find_fastest_within_power, find_largest_power_within
from fedge.decisions.verified_choice import choose_verified_within_power
from fedge.predictors.table_board import TableBoard, check_predictions
from fedge.protocols import Predictor
from fedge.studies.power_budgets import BudgetCost, filter_solvable_budgets, score_budget_choices
from fedge.types import Measurement, Predictions

CHOICE_RULES = ("plain", "margin", "verified")
MARGIN_CONFIDENCE = 0.84
"""Confidence with which ``margin`` keeps the limit, one standard deviation; more is slower and exceeds less often."""


class RefittingLearner:
    """A fitted predictor with its predictions of a table's modes after further measurements, cached by their rows."""

    def __init__(self, predictor: Predictor, board: TableBoard, profiled: Sequence[int], first: Predictions) -> None:
        self.board, self.profiled = board, tuple(profiled)
        self._predictor = predictor
        self._known: dict[frozenset[int], Predictions] = {frozenset(): first}

    def predict_after(self, measurements: Sequence[Measurement]) -> Predictions:
        """Return predictions for every row of the table after learning ``measurements`` and the profiled rows."""
        rows = frozenset(self.board.find_row(measurement.mode) for measurement in measurements) - {*self.profiled}
        if rows not in self._known:
            seen = self.board.measure_rows((*self.profiled, *sorted(rows)))
            predictions = self._predictor.fit(seen).predict(self.board.table.modes)
            check_predictions(predictions, len(self.board.table.modes))
            self._known[rows] = predictions
        return self._known[rows]


def score_choice_rule(
    choice: str, learner: RefittingLearner, candidates: NDArray[np.bool_], budgets_w: Sequence[float]
) -> BudgetCost:
    """Choose a mode for every power budget that can be kept, and score the choices.

    Args:
        choice: ``plain`` takes the point of largest power within the budget on the predicted front, the fastest of the
            modes predicted to keep it (PowerTrain, section 6); ``margin`` keeps it with ``MARGIN_CONFIDENCE``;
            ``verified`` measures up to two further modes and takes the fastest measured one that keeps it.
        learner: The fitted predictor on its table.
        candidates: Mask of the rows to choose from, shape (rows,).
        budgets_w: Power budgets in watts; those that no candidate keeps are left out.
    """
    rows = np.flatnonzero(candidates)
    table = learner.board.table
    step_s, power_w = table.step_s[rows], table.power_w[rows]
    budgets = filter_solvable_budgets(power_w, budgets_w)
    made = [_choose_mode(choice, learner, rows, budget_w) for budget_w in budgets]
    return score_budget_choices(
        step_s, power_w=power_w, budgets_w=budgets, chosen=[row for row, _ in made], extra=[extra for _, extra in made]
    )


def _choose_mode(choice: str, learner: RefittingLearner, rows: NDArray[np.intp], budget_w: float) -> tuple[int, int]:
    """Return the chosen one of ``rows`` (its place among them) and the number of modes measured for it."""
    if choice == "verified":
        return _choose_verified(learner, rows, budget_w)
    predictions = learner.predict_after(()).select_rows(rows)
    if choice == "margin":
        return find_fastest_within_power(predictions, budget_w, compute_margin_z(MARGIN_CONFIDENCE)).row, 0
    return find_largest_power_within(predictions, budget_w).row, 0


def _choose_verified(learner: RefittingLearner, rows: NDArray[np.intp], budget_w: float) -> tuple[int, int]:
    board = learner.board
    may = {*rows.tolist()}
    found = choose_verified_within_power(
        learner.predict_after(()).select_rows(rows),
        limit_w=budget_w,
        measure=board.measure,
        learn=lambda measurements: learner.predict_after(measurements).select_rows(rows),
        seen=board.measure_rows(row for row in learner.profiled if row in may),
    )
    return int(np.searchsorted(rows, board.find_row(found.mode))), len(found.extra)
