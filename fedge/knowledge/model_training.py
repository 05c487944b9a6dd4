"""Training of a model: profile the modes that an explorer requests within a budget, fit, and score on other modes.

The options are a measured table or an emulated board, the predictor, and the amount of profiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedge.costs.cost_profile import WorkloadKind
from fedge.devices import catalogue
from fedge.devices.tables.mode_table import list_table_notes, read_mode_table
from fedge.errors import BadInput, UnknownName
from fedge.knowledge.evidence_files import read_table_kind
from fedge.knowledge.model_file import (
    BoardModel,
    HeldOutErrors,
    ModelInfo,
    ModelOrigin,
    fit_model_predictor,
    predict_candidates,
)
from fedge.knowledge.model_summary import ModelSummary, summarize_model
from fedge.knowledge.profiling_source import ProfilingSource, source_from_board, source_from_table
from fedge.knowledge.table_background import find_board_spec, read_reference_table
from fedge.modes import parse_mode_count
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors import PREDICTORS, load_predictor
from fedge.predictors.explorers import EXPLORERS, find_method_explorer, load_explorer
from fedge.predictors.explorers.budgeted_explorer import (
    POWER_SETTLE_S,
    BudgetedExplorer,
    compute_profiling_j,
    compute_profiling_s,
)
from fedge.predictors.explorers.profiling_order import sort_high_to_low
from fedge.predictors.table_board import score_predictions
from fedge.protocols import Explorer, Predictor
from fedge.registry import load_named
from fedge.seeds import make_generator
from fedge.types import Floats, Measurement, Modes, PowerMode, ProfileTable

MAX_MODES = 100
# Default number of modes to profile if only their cost is limited.
MAX_ROWS = 300
# Default number of a table's rows that ``CUBIC_METHODS`` learn from; fits and loads become slow beyond it.
MODES_PER_BATCH = 5
# Modes requested at once within a budget: fewer improve the cost estimates more often, more need fewer fits. Default.
CUBIC_METHODS = ("fedge", "physical")
"""Methods whose cost grows with the cube of the number of measurements, both when fitting and when loading."""


@dataclass(frozen=True, slots=True)
class FitRequest:
    """The settings of a training.

    Attributes:
        explorer: Name of the explorer; None uses all rows.
        modes: Number of modes to profile; None for the default.
        cost_s: Limit on the profiling time in seconds, settling included; None for no limit.
        cost_j: Limit on the profiling energy in joules, settling included; None for no limit.
    """

    method: str
    seed: int = 0
    explorer: str | None = None
    modes: int | None = None
    cost_s: float | None = None
    cost_j: float | None = None


def train_model(source: ProfilingSource, request: FitRequest) -> tuple[BoardModel, Predictor]:
    """Profile, fit and score a model.

    Returns:
        The model and its fitted predictor.

    Raises:
        BadInput: If the budget does not suffice for a single mode.
    """
    idle_w = source.idle.value if source.idle else source.background.knowledge.idle_w
    knowledge = replace(source.background.knowledge, seed=request.seed, idle_w=idle_w)
    if request.explorer is None:
        profiled = _measure_all_rows(source, request)
    else:
        profiled = _profile_modes(_build_explorer(source, request, request.explorer, knowledge), source, request)
    seen = profiled.seen
    if not seen:
        right = "more: profiling none of the modes that the explorer asked for ends within it"
        raise BadInput("--budget-s, --budget-j", "too little", right)
    about = ModelInfo(
        method=request.method,
        device=source.truth.device,
        workload=source.truth.workload,
        batch_size=source.truth.batch_size,
        origin=_build_origin(source, request, profiled),
        candidates=source.candidates_from,
        idle=source.idle,
        prior_tables=source.background.prior_tables,
    )
    model = BoardModel(about, tuple(seen), source.candidates, knowledge)
    predictor = fit_model_predictor(model)
    return replace(model, about=replace(about, held_out=score_held_out(source.truth, seen, predictor))), predictor


def list_notes(source: ProfilingSource, request: FitRequest) -> tuple[str, ...]:
    """Return notes for the user before a long training, one sentence each."""
    count = len(source.truth.modes)
    if request.explorer is not None or request.method not in CUBIC_METHODS or count <= MAX_ROWS:
        return ()
    why = "its cost grows with the cube of their number (--modes takes another)"
    return (f"{request.method} learns from {MAX_ROWS} of the {count:,} modes, drawn at random: {why}",)


def score_held_out(truth: ProfileTable, seen: Sequence[Measurement], predictor: Predictor) -> HeldOutErrors | None:
    """Return the errors over the modes of ``truth`` that were not profiled, or None if there are none."""
    profiled = {measurement.mode for measurement in seen}
    rows = tuple(row for row, mode in enumerate(truth.modes) if mode in profiled)
    left = len(truth.modes) - len(rows)
    if left == 0:
        return None
    everything = np.ones(len(truth.modes), dtype=np.bool_)
    scored = score_predictions(predictor.predict(truth.modes), truth, rows, everything)
    figures = (scored.time_mape, scored.power_mape, scored.coverage90_time, scored.coverage90_power)
    time_mape, power_mape, time_held, power_held = (float(value or 0.0) / 100.0 for value in figures)
    return HeldOutErrors(
        left, time_mape=time_mape, power_mape=power_mape, time_coverage90=time_held, power_coverage90=power_held
    )


@dataclass(frozen=True, slots=True)
class _ProfiledModes:
    """The measurements, and the cost of a last one that was broken off at the end of the budget."""

    seen: list[Measurement]
    lost_s: float = 0.0
    lost_j: float = 0.0


class _CostEstimatingExplorer:
    """An explorer that also estimates what profiling a mode costs, from prior knowledge and earlier measurements.

    For methods without a prior, the costs are predicted by ``fedge``. Without any prior knowledge, every mode is
    expected to cost as much as the most expensive one measured so far; before the first measurement, only the settling
    time.
    """

    def __init__(self, explorer: Explorer, request: FitRequest, knowledge: PriorKnowledge) -> None:
        self._explorer, self._request = explorer, request
        self._seen: list[Measurement] = []
        method = "physical" if request.method == "physical" else "fedge"
        known = knowledge.priors or (method == "fedge" and knowledge.references)
        self._predictor = load_predictor(method, knowledge).fit([]) if known else None

    def ask(self, count: int) -> Modes:
        return self._explorer.ask(count)

    def tell(self, measurements: Sequence[Measurement]) -> None:
        self._seen += measurements
        if self._predictor is not None:
            self._predictor.fit(self._seen)
        self._explorer.tell(measurements)

    def estimate(self, modes: Modes) -> tuple[Floats, Floats]:
        """Return the expected seconds and joules of every mode, both (n,)."""
        if self._predictor is not None:
            expected = self._predictor.predict(modes)
            return compute_profiling_s(expected.step_s), compute_profiling_j(expected.step_s, expected.power_w)
        largest_s = max((_profiling_time_s(seen) for seen in self._seen), default=POWER_SETTLE_S)
        largest_j = max((_profiling_energy_j(seen) for seen in self._seen), default=0.0)
        return np.full(len(modes), largest_s), np.full(len(modes), largest_j)

    def estimate_shares(self, modes: Modes) -> Floats:
        """Return the expected shares of the budget, (n,)."""
        return _budget_shares(self._request, *self.estimate(modes))


def _build_explorer(source: ProfilingSource, request: FitRequest, name: str, knowledge: PriorKnowledge) -> Explorer:
    """Create the explorer, limited to the budget by expected costs."""
    modes = source.truth.modes
    explorer = load_explorer(name, modes, knowledge, "--explorer")
    if not _has_budget(request):
        return explorer
    costs = _CostEstimatingExplorer(explorer, request, knowledge)
    seconds, joules = costs.estimate(modes)
    _check_budget("--budget-s", request.cost_s, seconds, "s")
    _check_budget("--budget-j", request.cost_j, joules, "J")
    return BudgetedExplorer(costs, costs.estimate_shares, 1.0, lambda seen: _budget_share(request, seen))


def _has_budget(request: FitRequest) -> bool:
    return request.cost_s is not None or request.cost_j is not None


def _check_budget(option: str, budget: float | None, costs: Floats, unit: str) -> None:
    if budget is not None and budget < costs.min():
        least = f"at least {costs.min():.3g} {unit}, what profiling one mode is expected to take"
        raise BadInput(option, f"{budget:g} {unit}", least)


def _budget_shares(request: FitRequest, seconds: Floats, joules: Floats) -> Floats:
    """Return the larger of the two shares of the budgets; as long as they sum to at most 1, neither is exceeded."""
    of_time: Floats = seconds / (request.cost_s or np.inf)
    return np.maximum(of_time, joules / (request.cost_j or np.inf))


def _budget_share(request: FitRequest, seen: Measurement) -> float:
    """Return the share of the budget that a measurement took."""
    return float(_budget_shares(request, np.array(_profiling_time_s(seen)), np.array(_profiling_energy_j(seen))))


def _profiling_time_s(seen: Measurement) -> float:
    """Return the seconds of profiling a mode: settling, then the steps."""
    return POWER_SETTLE_S + seen.work_s


def _profiling_energy_j(seen: Measurement) -> float:
    return _profiling_time_s(seen) * seen.power_w


def _profile_modes(explorer: Explorer, source: ProfilingSource, request: FitRequest) -> _ProfiledModes:
    """Profile the modes that the explorer requests, all at once or in small batches within a budget.

    Each batch is measured in descending order. A measurement during which the budget ends is broken off: it uses up the
    rest of the budget, and nothing is learnt from it.
    """
    count = min(request.modes or MAX_MODES, len(source.truth.modes))
    seen: dict[PowerMode, Measurement] = {}
    left = 1.0
    while len(seen) < count:
        asked = explorer.ask(min(count - len(seen), MODES_PER_BATCH) if _has_budget(request) else count - len(seen))
        fresh: dict[PowerMode, Measurement] = {}
        for mode in sort_high_to_low(asked):
            if mode in seen:
                continue
            measurement = source.measure(mode)
            share = _budget_share(request, measurement)
            if share > left:
                done = left / share
                kept = [*seen.values(), *fresh.values()]
                return _ProfiledModes(
                    kept, done * _profiling_time_s(measurement), done * _profiling_energy_j(measurement)
                )
            left -= share
            fresh[mode] = measurement
        if not fresh:
            break
        seen |= fresh
        explorer.tell(list(fresh.values()))
    return _ProfiledModes(list(seen.values()))


def _measure_all_rows(source: ProfilingSource, request: FitRequest) -> _ProfiledModes:
    """Measure every row of the table, or ``MAX_ROWS`` random ones for methods of cubic cost."""
    count = len(source.truth.modes)
    rows = np.arange(count)
    if request.method in CUBIC_METHODS and count > MAX_ROWS:
        rows = np.sort(make_generator(request.seed, "rows").permutation(count)[:MAX_ROWS])
    return _ProfiledModes([source.measure(source.truth.modes[int(row)]) for row in rows])


def _build_origin(source: ProfilingSource, request: FitRequest, profiled: _ProfiledModes) -> ModelOrigin:
    seconds = profiled.lost_s + sum(_profiling_time_s(measurement) for measurement in profiled.seen)
    joules = profiled.lost_j + sum(_profiling_energy_j(measurement) for measurement in profiled.seen)
    return ModelOrigin(
        label=source.label,
        source=source.source,
        rows=len(source.truth.modes),
        sha256=source.sha256,
        explorer=request.explorer,
        profiling_s=min(seconds, request.cost_s or np.inf),  # can exceed it only by rounding
        profiling_j=min(joules, request.cost_j or np.inf),
    )


EMULATED_MODES = 10
"""Default number of profiled modes of an emulated board."""


@dataclass(frozen=True, slots=True)
class ModelFitOptions:
    """Options of a model fit.

    Attributes:
        table: The measured table; None profiles an emulated board.
        modes: Number of modes to profile, or ``all``; None for all rows of a table, or ``EMULATED_MODES``.
        explorer: Name of the explorer; None for the predictor's own.
        budget_s: Limit on the profiling time in seconds; None for no limit.
        budget_j: Limit on the profiling energy in joules; None for no limit.
        prior_without: Workloads and boards whose calibrated profiles are left out of the prior.
        board: The board; None takes it from the table's path.
        workload: The workload; None takes it from the table's name.
        batch_size: Batch size, if a table holds several.
        kind: Kind of the table's steps; None takes it from the table's record or folder.
    """

    table: Path | None = None
    method: str = "fedge"
    modes: int | str | None = None
    explorer: str | None = None
    budget_s: float | None = None
    budget_j: float | None = None
    references: tuple[Path, ...] = ()
    prior_without: tuple[str, ...] = ()
    board: str | None = None
    workload: str | None = None
    batch_size: int | None = None
    kind: WorkloadKind | None = None
    seed: int = 0

    @property
    def has_budget(self) -> bool:
        """Whether an option bounds the amount of profiling."""
        return any(bound is not None for bound in (self.modes, self.budget_s, self.budget_j))


@dataclass(frozen=True, slots=True, eq=False)
class FittedModel:
    """A fitted model and its summary."""

    model: BoardModel
    summary: ModelSummary


def fit_model(options: ModelFitOptions, report_note: Callable[[str], None] = lambda _: None) -> FittedModel:
    """Fit a model to a measured table or to an emulated board.

    Notes on the input are reported before the fit.

    Raises:
        BadInput: If an option or a table is invalid, or the budget does not suffice for a single mode.
    """
    _check_options(options)
    source = _open_source(options)
    count = len(source.truth.modes)
    modes = None if options.modes is None else parse_mode_count(options.modes) or count
    if modes is not None and modes > count:
        raise BadInput("--modes", str(modes), f"from 1 to {count}, the number of modes of {source.source}")
    request = _build_request(options, modes)
    notes = (*list_table_notes(source.truth), *source.background.notes, *list_notes(source, request))
    for note in notes:
        report_note(note)
    model, predictor = train_model(source, request)
    return FittedModel(model, summarize_model(model, predictor, predict_candidates(model, predictor)))


def _build_request(options: ModelFitOptions, modes: int | None) -> FitRequest:
    """Build the request: a table is used completely unless bounded; an emulated board is always explored."""
    if options.table is None and not options.has_budget:
        modes = EMULATED_MODES
    explores = options.table is None or options.has_budget
    return FitRequest(
        options.method,
        seed=options.seed,
        explorer=(options.explorer or find_method_explorer(options.method)) if explores else None,
        modes=modes,
        cost_s=options.budget_s,
        cost_j=options.budget_j,
    )


def _open_source(options: ModelFitOptions) -> ProfilingSource:
    references = [read_reference_table(path, options.batch_size) for path in options.references]
    if options.table is not None:
        return _open_table(options, options.table, references)
    if options.board is None or options.workload is None:
        right = "a TABLE, or --board NAME and --workload NAME, which profiles an emulated board"
        raise BadInput("fedge predict fit", "neither a table nor a whole board", right)
    return source_from_board(
        options.board,
        workload=options.workload,
        batch_size=options.batch_size,
        seed=options.seed,
        references=references,
        without=options.prior_without,
    )


def _open_table(options: ModelFitOptions, path: Path, references: list[ProfileTable]) -> ProfilingSource:
    device = options.board
    own = catalogue.load_spec(device) if device and device.endswith((".yaml", ".yml")) else None
    table = read_mode_table(path, own.name if own else device, options.workload, options.batch_size)
    return source_from_table(
        table,
        spec=own or find_board_spec(table.device),
        name=path.name,
        references=references,
        without=options.prior_without,
        kind=options.kind or read_table_kind(path),
    )


def _check_options(options: ModelFitOptions) -> None:
    """Raise ``BadInput`` for errors that are visible without reading a table."""
    if options.kind is not None and options.table is None:
        raise BadInput("--kind", f"{options.kind} without a table", "it with a TABLE: an emulated board trains")
    if ":" in options.method:
        right = f"one of {', '.join(sorted(PREDICTORS))}: a model file cannot name code of your own"
        raise BadInput("--method", repr(options.method), right)
    if options.method not in PREDICTORS:
        raise UnknownName("--method", options.method, tuple(sorted(PREDICTORS)))
    load_named("--explorer", options.explorer or find_method_explorer(options.method), EXPLORERS)
    for option, value, unit in (
        ("--budget-s", options.budget_s, "seconds"),
        ("--budget-j", options.budget_j, "joules"),
    ):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadInput(option, f"{value:g}", f"{unit}, above 0")
    if options.seed < 0:
        raise BadInput("--seed", str(options.seed), "a whole number, 0 or above")
    if options.explorer is not None and options.table is not None and not options.has_budget:
        right = "it together with --modes, --budget-s or --budget-j; without them the fit uses all rows"
        raise BadInput("--explorer", repr(options.explorer), right)
