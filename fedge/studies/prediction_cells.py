"""One cell of a study: a target, a method, a number of modes and a seed; running it gives one row of figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.errors import FedgeError, UnknownName
from fedge.knowledge.table_background import TableBackground
from fedge.predictors import load_predictor
from fedge.predictors.explorers import find_method_explorer, load_explorer
from fedge.predictors.table_board import (
    TableBoard,
    check_predictions,
    profile_table,
    profiling_time_s,
    score_predictions,
)
from fedge.protocols import Clock
from fedge.studies.budget_choices import CHOICE_RULES, RefittingLearner, score_choice_rule
from fedge.types import Predictions, ProfileTable

METHOD_CHOICES = {"fedge": "verified"}
"""Choice rules of methods whose default is not ``plain``."""


@dataclass(frozen=True, slots=True, eq=False)
class PredictionTarget:
    """A table to predict, with its background knowledge, the mask of its plausible rows, and power budgets in watts."""

    table: ProfileTable
    background: TableBackground
    plausible: NDArray[np.bool_]
    budgets_w: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MethodSetup:
    """A predictor with the explorer that picks the modes to profile and the choice rule."""

    method: str
    explorer: str
    choice: str


@dataclass(frozen=True, slots=True)
class PredictionCell:
    """One cell; ``target`` is an index into the study's targets, ``modes`` the number of modes to profile."""

    target: int
    setup: MethodSetup
    modes: int
    seed: int

    def __str__(self) -> str:
        return f"{self.setup.method}, {self.modes} modes, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class PredictionRow:
    """A cell's figures. Errors, coverages, penalties and shares are in percent; None is a missing figure.

    Figures ending in ``_all`` include implausible rows, as optimum and as candidates; those without the ending leave
    them out. ``error`` says why a cell has no figures.
    """

    method: str
    target: str
    modes: int
    seed: int
    time_mape: float | None = None
    power_mape: float | None = None
    coverage90: float | None = None
    penalty_median: float | None = None
    penalty_mean: float | None = None
    excess_w: float | None = None
    over_limit: float | None = None
    over_limit_1w: float | None = None
    verify_modes: float | None = None
    fit_s: float | None = None
    predict_s: float | None = None
    profiling_s: float | None = None
    coverage90_time: float | None = None
    coverage90_power: float | None = None
    time_mape_plausible: float | None = None
    power_mape_plausible: float | None = None
    problems: int | None = None
    problems_all: int | None = None
    penalty_median_all: float | None = None
    penalty_mean_all: float | None = None
    excess_w_all: float | None = None
    over_limit_all: float | None = None
    over_limit_1w_all: float | None = None
    verify_modes_all: float | None = None
    explore_s: float | None = None
    profiled: int | None = None
    rows: int = 0
    implausible: int = 0
    device: str = ""
    workload: str = ""
    batch_size: int = 0
    explorer: str = ""
    choice: str = ""
    prior_tables: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CellResult:
    """The result of a cell: its row, and for plots the profiled rows and predictions; these are empty if it failed."""

    cell: PredictionCell
    row: PredictionRow
    profiled: tuple[int, ...] = ()
    predictions: Predictions | None = None


def resolve_setup(method: str, explorer: str | None = None, choice: str | None = None) -> MethodSetup:
    """Return the method's own setup, or the one given explicitly.

    Raises:
        UnknownName: For an unknown choice rule.
    """
    if choice is not None and choice not in CHOICE_RULES:
        raise UnknownName("--choice", choice, CHOICE_RULES)
    return MethodSetup(
        method, explorer or find_method_explorer(method), choice or METHOD_CHOICES.get(method, CHOICE_RULES[0])
    )


def run_cell(cell: PredictionCell, target: PredictionTarget, clock: Clock) -> CellResult:
    """Profile, fit, predict, choose and score one cell.

    Args:
        cell: The cell to run.
        target: Its target.
        clock: Measures the seconds of exploring, fitting and predicting.

    Returns:
        The result. Any exception of the method becomes the row's ``error``.
    """
    blank = _build_blank_row(cell, target)
    try:
        return _run_stages(cell, target, clock, blank)
    except FedgeError as error:
        return CellResult(cell, replace(blank, error=str(error)))
    except Exception as error:  # noqa: BLE001 - a predictor or explorer may be the user's own
        return CellResult(cell, replace(blank, error=f"{type(error).__name__}: {error}"))


def warm_up(setup: MethodSetup, target: PredictionTarget) -> None:
    """Fit the method to two rows and discard it, so that libraries are loaded and reference networks trained.

    Exceptions are ignored here, because they become the row of every cell.
    """
    try:
        predictor = load_predictor(setup.method, target.background.knowledge)
        predictor.fit(TableBoard(target.table).measure_rows((0, len(target.table.modes) - 1)))
        predictor.predict(target.table.modes)
    except Exception:  # noqa: BLE001 - the same error becomes the row of every cell
        return


def _run_stages(cell: PredictionCell, target: PredictionTarget, clock: Clock, blank: PredictionRow) -> CellResult:
    table, board = target.table, TableBoard(target.table)
    knowledge = replace(target.background.knowledge, seed=cell.seed)
    began = clock.now_s()
    rows = profile_table(load_explorer(cell.setup.explorer, table.modes, knowledge), board, cell.modes)
    explored = clock.now_s()
    predictor = load_predictor(cell.setup.method, knowledge).fit(board.measure_rows(rows))
    fitted = clock.now_s()
    predictions = predictor.predict(table.modes)
    predicted = clock.now_s()
    check_predictions(predictions, len(table.modes))
    learner = RefittingLearner(predictor, board, rows, predictions)
    every = np.ones(len(table.modes), dtype=np.bool_)
    with_all = score_choice_rule(cell.setup.choice, learner, every, target.budgets_w)
    scored = score_choice_rule(cell.setup.choice, learner, target.plausible, target.budgets_w)
    row = replace(
        blank,
        **asdict(score_predictions(predictions, table, rows, target.plausible)),
        **asdict(scored),
        **{f"{name}_all": value for name, value in asdict(with_all).items()},
        explore_s=explored - began,
        fit_s=fitted - explored,
        predict_s=predicted - fitted,
        profiling_s=profiling_time_s(table, rows),
        profiled=len(rows),
    )
    return CellResult(cell, row, rows, predictions)


def _build_blank_row(cell: PredictionCell, target: PredictionTarget) -> PredictionRow:
    """Return the row with all that is known before the cell is run."""
    table = target.table
    return PredictionRow(
        cell.setup.method,
        table.path,
        cell.modes,
        cell.seed,
        rows=len(table.modes),
        implausible=int((~target.plausible).sum()),
        device=table.device,
        workload=table.workload,
        batch_size=table.batch_size,
        explorer=cell.setup.explorer,
        choice=cell.setup.choice,
        prior_tables=target.background.prior_tables,
        references=target.background.references,
    )


def row_to_dict(row: Any) -> Mapping[str, Any]:
    """Return a study's row for JSON: its fields in their order; a number that is not finite becomes None."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: _finite_or_none(value) for name, value in values.items()}


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not np.isfinite(value) else value
