"""One cell of a study: a target, a method, a number of modes and a seed; running it gives one row of figures.

The figures of choices within power budgets: B a budget in watts; a problem is a budget at which the table has a mode of
at most B; t* the least measured step time of such a mode; t, p time and power of the chosen mode in the table.
Penalty = t / t* - 1, excess = max(0, p - B). One of three rules chooses, refitting once per set of measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import compute_margin_z
from fedge.decisions.mode_objectives import find_fastest_within_power, find_largest_power_within
from fedge.decisions.verified_choice import choose_verified_within_power
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
from fedge.protocols import Clock, Predictor
from fedge.types import Floats, Measurement, Predictions, ProfileTable

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

    Figures of choices that end in ``_all`` include implausible rows, as optimum and as candidates; those without the
    ending leave them out. Errors include them, except those that end in ``_plausible``.

    Attributes:
        time_mape: Mean absolute percentage error over the modes that were not profiled; ``power_mape`` likewise.
        coverage90: Share of these modes' values inside the predicted 90 % interval, m exp(+-1.645 s).
        penalty_median: The chosen mode's time over that of the fastest mode within the budget, less 1.
        excess_w: Mean excess over the budget, watts.
        over_limit: Share of ``problems`` whose chosen mode exceeds the budget; ``over_limit_1w``: by more than 1 W.
        verify_modes: Further measurements per problem.
        profiling_s: Time on the board; ``fit_s``, ``predict_s`` and ``explore_s`` are computing time.
        prior_tables: What the prior knew, with checksums; ``references`` likewise.
        error: Why a cell has no figures.
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


PAPER_BUDGETS_W = tuple(float(watts) for watts in range(17, 51))
"""PowerTrain's budgets for AGX Orin in watts (section 6 of the paper)."""
MAX_BUDGETS = 34
"""Number of budgets at most, as many as the paper has."""


@dataclass(frozen=True, slots=True)
class BudgetCost:
    """The cost of choices over several problems; all but ``problems`` are None if there is no problem.

    Attributes:
        penalty_median: Median penalty in percent.
        penalty_mean: Mean penalty in percent.
        excess_w: Mean excess in watts.
        over_limit: Share of the problems with an excess, in percent.
        over_limit_1w: Share of the problems with an excess above 1 W, in percent.
        verify_modes: Further measurements per problem.
    """

    problems: int
    penalty_median: float | None = None
    penalty_mean: float | None = None
    excess_w: float | None = None
    over_limit: float | None = None
    over_limit_1w: float | None = None
    verify_modes: float | None = None


def default_budgets(power_w: Floats, largest_w: float | None) -> tuple[float, ...]:
    """Return 17, 18 ... 50 W for a board that reaches 50 W, else a similar range over the table's own powers.

    That range goes from the least whole watt that a mode of the table keeps to the largest that one exceeds, in steps
    of as many whole watts as make at most ``MAX_BUDGETS`` of them.

    Args:
        power_w: Measured powers of the modes in watts, shape (modes,).
        largest_w: The catalogue's largest power of the board in watts, if known.
    """
    if max(float(power_w.max()), largest_w or 0.0) >= PAPER_BUDGETS_W[-1]:
        return PAPER_BUDGETS_W
    low, high = math.ceil(power_w.min()), math.floor(power_w.max())
    step = max(1, math.ceil((high - low + 1) / MAX_BUDGETS))
    return tuple(float(watts) for watts in range(low, max(low, high) + 1, step))


def filter_solvable_budgets(power_w: Floats, budgets_w: Sequence[float]) -> tuple[float, ...]:
    """Return the budgets that at least one of the modes keeps."""
    least_w = float(power_w.min()) if len(power_w) else math.inf
    return tuple(budget_w for budget_w in budgets_w if least_w <= budget_w)


def score_budget_choices(
    step_s: Floats, power_w: Floats, budgets_w: Sequence[float], chosen: Sequence[int], extra: Sequence[int]
) -> BudgetCost:
    """Score the chosen modes.

    Args:
        step_s: Measured seconds per step of the candidate modes, shape (modes,).
        power_w: Measured powers of these modes in watts, shape (modes,).
        budgets_w: Solvable budgets in watts.
        chosen: The chosen row for each budget.
        extra: Further measurements made for each budget.
    """
    if not budgets_w:
        return BudgetCost(0)
    budgets = np.array(budgets_w)
    best_s = np.array([step_s[power_w <= budget_w].min() for budget_w in budgets_w])
    rows = np.asarray(chosen, dtype=np.intp)
    penalty = 100.0 * (step_s[rows] / best_s - 1.0)
    over_w = power_w[rows] - budgets
    return BudgetCost(
        len(budgets_w),
        penalty_median=float(np.median(penalty)),
        penalty_mean=float(penalty.mean()),
        excess_w=float(np.maximum(over_w, 0.0).mean()),
        over_limit=100.0 * float((over_w > 0.0).mean()),
        over_limit_1w=100.0 * float((over_w > 1.0).mean()),
        verify_modes=float(np.mean(extra)),
    )
