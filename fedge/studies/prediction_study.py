"""A study of predictors: its cells, each a row of figures, with equal rows for any number of workers.

A cell is a target, a method, a number of modes and a seed. The figures of choices within power budgets: B a budget in
watts; a problem is a budget at which the table has a mode of at most B; t* the least measured step time of such a mode;
t, p time and power of the chosen mode in the table. Penalty = t / t* - 1, excess = max(0, p - B). One of three rules
chooses, refitting once per set of measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge import registry
from fedge.child_processes import limit_to_one_thread
from fedge.clock import RealClock
from fedge.decisions.limits import compute_margin_z
from fedge.decisions.mode_objectives import find_fastest_within_power, find_largest_power_within
from fedge.decisions.verified_choice import choose_verified_within_power
from fedge.devices.tables.mode_table import list_table_notes, read_mode_table
from fedge.errors import BadInput, UnknownName, describe_error
from fedge.json_reader import to_json_value
from fedge.knowledge.evidence_files import read_table_kind
from fedge.knowledge.table_background import TableBackground, build_background, find_board_spec, read_reference_table
from fedge.predictors import PREDICTORS, load_predictor
from fedge.predictors.explorers import EXPLORERS, find_method_explorer, load_explorer
from fedge.predictors.table_board import (
    TableBoard,
    check_predictions,
    profile_table,
    profiling_time_s,
    score_predictions,
)
from fedge.protocols import Clock, Predictor
from fedge.studies.implausible_rows import find_plausible_rows
from fedge.studies.task_pool import run_jobs
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
    except Exception as error:  # noqa: BLE001 - a predictor or explorer may be the user's own
        return CellResult(cell, replace(blank, error=describe_error(error)))


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
    values: dict[str, Any] = to_json_value({field.name: getattr(row, field.name) for field in fields(row)})
    return values


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
MAX_DEFAULT_BUDGETS = 34
"""Number of budgets at most, as many as the paper has."""


@dataclass(frozen=True, slots=True)
class BudgetCost:
    """The cost of choices over several problems, shares and penalties in percent; None if there is no problem.

    ``verify_modes`` are the further measurements per problem.
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
    of as many whole watts as make at most ``MAX_DEFAULT_BUDGETS`` of them.

    Args:
        power_w: Measured powers of the modes in watts, shape (modes,).
        largest_w: The catalogue's largest power of the board in watts, if known.
    """
    if max(float(power_w.max()), largest_w or 0.0) >= PAPER_BUDGETS_W[-1]:
        return PAPER_BUDGETS_W
    low, high = math.ceil(power_w.min()), math.floor(power_w.max())
    step = max(1, math.ceil((high - low + 1) / MAX_DEFAULT_BUDGETS))
    return tuple(float(watts) for watts in range(low, max(low, high) + 1, step))


def filter_solvable_budgets(power_w: Floats, budgets_w: Sequence[float]) -> tuple[float, ...]:
    """Return the budgets that at least one of the modes keeps."""
    least_w = float(power_w.min()) if len(power_w) else math.inf
    return tuple(budget_w for budget_w in budgets_w if least_w <= budget_w)


def score_budget_choices(
    step_s: Floats, power_w: Floats, budgets_w: Sequence[float], chosen: Sequence[int], extra: Sequence[int]
) -> BudgetCost:
    """Score the row chosen for each solvable budget, with its number of further measurements.

    Times and powers are those of the candidate modes, shape (modes,).
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


@dataclass(frozen=True, slots=True, eq=False)
class PredictionStudy:
    """A full grid: every setup on every target with every number of modes and every seed from 0 to ``seeds`` - 1."""

    targets: tuple[PredictionTarget, ...]
    setups: tuple[MethodSetup, ...]
    modes: tuple[int, ...]
    seeds: int

    @property
    def cells(self) -> tuple[PredictionCell, ...]:
        """The cells in the order of the rows."""
        return tuple(
            PredictionCell(target, setup, count, seed)
            for target in range(len(self.targets))
            for setup in self.setups
            for count in self.modes
            for seed in range(self.seeds)
        )

    @property
    def step_count(self) -> int:
        """Number of steps that are reported while it runs: preparations of methods, then cells."""
        return len(_list_preparations(self)) + len(self.cells)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the tables and on the available priors, each once."""
        notes = [
            note
            for target in self.targets
            for note in (
                *(f"{target.table.path}: {note}" for note in list_table_notes(target.table)),
                *target.background.notes,
            )
        ]
        return tuple(dict.fromkeys(notes))


def run_prediction_study(
    study: PredictionStudy, workers: int | None = None, report: Callable[[str], None] = lambda _: None
) -> list[CellResult]:
    """Run every cell.

    Args:
        study: The grid of cells.
        workers: Number of cells at a time; None for the cores that this process may use, or the cluster's. 1 runs in
            this process, with as many threads as its libraries were loaded for; sums split over threads round
            differently.
        report: Called with a description of each finished step.

    Returns:
        Results in the order of ``PredictionStudy.cells``; predictions are kept for seed 0 only.

    Raises:
        RunFailed: If a worker dies.
    """
    with limit_to_one_thread():
        for setup, target in _list_preparations(study):
            report(f"prepare {setup.method}")
            warm_up(setup, target)
            _warm.add(_preparation_key(setup, target))
        return run_jobs(partial(_run_study_cell, study), study.cells, report, workers)


def _list_preparations(study: PredictionStudy) -> list[tuple[MethodSetup, PredictionTarget]]:
    """Return every method with every set of references, on which reference networks are trained."""
    preparations: dict[tuple[str, tuple[str, ...]], tuple[MethodSetup, PredictionTarget]] = {}
    for target in study.targets:
        for setup in study.setups:
            preparations.setdefault(_preparation_key(setup, target), (setup, target))
    return list(preparations.values())


def _preparation_key(setup: MethodSetup, target: PredictionTarget) -> tuple[str, tuple[str, ...]]:
    return setup.method, target.background.references


_warm: set[tuple[str, tuple[str, ...]]] = set()
"""Preparations made in this process."""


def _run_study_cell(study: PredictionStudy, cell: PredictionCell) -> CellResult:
    """Run one cell, in a worker process if there are several."""
    target = study.targets[cell.target]
    key = _preparation_key(cell.setup, target)
    if key not in _warm:  # loading a library is not fitting
        _warm.add(key)
        warm_up(cell.setup, target)
    outcome = run_cell(cell, target, RealClock())
    return outcome if cell.seed == 0 else replace(outcome, predictions=None)


MAX_BUDGETS = 1000
MIN_ROWS = 2
"""Fewest rows of a table: one to profile and one to predict."""


@dataclass(frozen=True, slots=True)
class PredictionStudyOptions:
    """Options of a study of predictors.

    Attributes:
        methods: Predictors, separated by commas; by default fedge, and powertrain if there is a reference.
        modes: Numbers of profiled modes, separated by commas.
        budgets: Power budgets in watts as ``LOW:HIGH:STEP``; None for those of the table.
        explorer: Name of the explorer; None for each method's own.
        choice: Name of the choice rule; None for each method's own.
        prior_without: Workloads and boards whose calibrated profiles are left out of the prior.
        board: The board; None takes it from the table's path.
        workload: The workload; None takes it from the table's name.
        batch_size: Batch size, if a table holds several.
    """

    targets: tuple[Path, ...]
    references: tuple[Path, ...] = ()
    methods: str | None = None
    modes: str = "10,20,50"
    seeds: int = 5
    budgets: str | None = None
    explorer: str | None = None
    choice: str | None = None
    prior_without: tuple[str, ...] = ()
    board: str | None = None
    workload: str | None = None
    batch_size: int | None = None


def build_prediction_study(options: PredictionStudyOptions) -> PredictionStudy:
    """Build the study from the options.

    Raises:
        BadInput: If an option or table is invalid.
    """
    setups = _parse_setups(options)
    counts = registry.split_counts("--modes", options.modes, "10,20,50")
    budgets = None if options.budgets is None else _parse_budgets(options.budgets)
    if options.workload is not None and len(options.targets) > 1:
        raise BadInput(
            "--workload", f"{len(options.targets)} targets", "one target (names come from the tables' paths)"
        )
    if len(set(options.targets)) < len(options.targets):
        raise BadInput("--target", "the same table twice", "each table once")
    tables = [_read_target_table(path, options, max(counts)) for path in options.targets]
    references = [read_reference_table(path, options.batch_size) for path in options.references]
    targets = tuple(_build_target(table, references, options.prior_without, budgets) for table in tables)
    return PredictionStudy(targets, setups, counts, options.seeds)


def _parse_setups(options: PredictionStudyOptions) -> tuple[MethodSetup, ...]:
    methods = options.methods or ("powertrain,fedge" if options.references else "fedge")
    names = registry.split_names("--methods", methods, "names of predictors, separated by commas")
    setups = tuple(resolve_setup(name, options.explorer, options.choice) for name in names)
    for setup in setups:
        registry.load_named("--methods", setup.method, PREDICTORS)
        registry.load_named("--explorer", setup.explorer, EXPLORERS)
    return setups


def _parse_budgets(text: str) -> tuple[float, ...]:
    right = f"LOW:HIGH:STEP in watts, e.g. 17:50:1, at most {MAX_BUDGETS} budgets"
    try:
        low, high, step = (float(word) for word in text.split(":"))
    except ValueError as error:
        raise BadInput("--budgets", repr(text), right) from error
    good = all(math.isfinite(v) and v > 0 for v in (low, high, step)) and low <= high
    if not good or (high - low) / step >= MAX_BUDGETS:
        raise BadInput("--budgets", repr(text), right)
    return tuple(low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1))


def _read_target_table(path: Path, options: PredictionStudyOptions, most_modes: int) -> ProfileTable:
    table = read_mode_table(path, options.board, options.workload, options.batch_size)
    if len(table.modes) < MIN_ROWS:
        raise BadInput(str(path), "one power mode", "a table of several: some are profiled, the others predicted")
    if most_modes >= len(table.modes):
        right = f"fewer than the {len(table.modes)} modes of {path}: the others are to be predicted"
        raise BadInput("--modes", str(most_modes), right)
    return table


def _build_target(
    table: ProfileTable, references: Sequence[ProfileTable], without: Sequence[str], budgets: tuple[float, ...] | None
) -> PredictionTarget:
    background = build_background(table, references, without, kind=read_table_kind(Path(table.path)))
    plausible = find_plausible_rows(table, background.knowledge.maxn)
    spec = find_board_spec(table.device)
    usual = default_budgets(table.power_w[plausible], spec.max_w.value if spec else None)
    return PredictionTarget(table, background, plausible, usual if budgets is None else budgets)
