"""Chooses a mode for every power budget of a cell, in one of three ways, and refits once per set of measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedge.choice.objectives import fastest_within_power, largest_power_within
from fedge.choice.picking import margin_z
from fedge.choice.verified import verified_within_power
from fedge.evaluation.accuracy import check_predictions
from fedge.evaluation.budgets import Cost, cost_of_choices, solvable
from fedge.evaluation.profiling import TableBoard
from fedge.interfaces import Predictor
from fedge.types import Measurement, Modes, Predictions

CHOICES = ("plain", "margin", "verified")
CONFIDENCE = 0.84
"""How surely ``margin`` keeps the limit by the predictor's own spread: one standard deviation. Chosen by us."""


class Learner:
    """A fitted predictor, and what it predicts of a table's modes after further measurements; kept per set of them."""

    def __init__(self, predictor: Predictor, board: TableBoard, profiled: Sequence[int], first: Predictions) -> None:
        self.board, self.profiled = board, tuple(profiled)
        self._predictor = predictor
        self._known: dict[frozenset[int], Predictions] = {frozenset(): first}

    def after(self, measurements: Sequence[Measurement]) -> Predictions:
        """Predictions for every row of the table once ``measurements`` are learnt beside the profiled ones."""
        rows = frozenset(self.board.row(measurement.mode) for measurement in measurements) - {*self.profiled}
        if rows not in self._known:
            seen = self.board.measured((*self.profiled, *sorted(rows)))
            predictions = self._predictor.fit(seen).predict(self.board.table.modes)
            check_predictions(predictions, len(self.board.table.modes))
            self._known[rows] = predictions
        return self._known[rows]


def cost_of_choosing(choice: str, learner: Learner, candidates: NDArray[np.bool_], budgets_w: Sequence[float]) -> Cost:
    """Choose among the rows ``candidates`` for every budget that one of them keeps, and score the choices.

    ``plain`` takes from the predicted front the point of largest power within the budget, which is the fastest of the
    modes predicted to keep it (PowerTrain, section 6); ``margin`` asks that it be kept with ``CONFIDENCE``;
    ``verified`` measures up to two modes more and takes the fastest measured one that keeps it.
    """
    rows = np.flatnonzero(candidates)
    table = learner.board.table
    step_s, power_w = table.step_s[rows], table.power_w[rows]
    budgets = solvable(power_w, budgets_w)
    made = [_choose(choice, learner, rows, budget_w) for budget_w in budgets]
    return cost_of_choices(step_s, power_w, budgets, [row for row, _ in made], [extra for _, extra in made])


def _choose(choice: str, learner: Learner, rows: NDArray[np.intp], budget_w: float) -> tuple[int, int]:
    """The chosen one of ``rows`` (its place among them), and how many further modes were measured for it."""
    if choice == "verified":
        return _verified(learner, rows, budget_w)
    predictions = _of(learner.after(()), rows)
    if choice == "margin":
        return fastest_within_power(predictions, budget_w, margin_z(CONFIDENCE)).row, 0
    return largest_power_within(predictions, budget_w).row, 0


def _verified(learner: Learner, rows: NDArray[np.intp], budget_w: float) -> tuple[int, int]:
    board = learner.board
    may = {*rows.tolist()}
    found = verified_within_power(
        _of(learner.after(()), rows),
        budget_w,
        board.measure,
        lambda measurements: _of(learner.after(measurements), rows),
        board.measured(row for row in learner.profiled if row in may),
    )
    return int(np.searchsorted(rows, board.row(found.mode))), len(found.extra)


def _of(predictions: Predictions, rows: NDArray[np.intp]) -> Predictions:
    return Predictions(
        Modes(predictions.modes.knobs[rows]),
        predictions.step_s[rows],
        predictions.power_w[rows],
        predictions.step_s_sd_log[rows],
        predictions.power_w_sd_log[rows],
    )
