"""The options of a model fit: a measured table or an emulated board, the predictor, and the amount of profiling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedge.devices import catalogue
from fedge.devices.tables.mode_table import list_table_notes, read_mode_table
from fedge.errors import BadInput, UnknownName
from fedge.knowledge import model_training
from fedge.knowledge.model_file import BoardModel, predict_candidates
from fedge.knowledge.model_summary import ModelSummary, summarize_model
from fedge.knowledge.profiling_source import ProfilingSource, source_from_board, source_from_table
from fedge.knowledge.table_background import find_board_spec, read_reference_table
from fedge.modes import parse_mode_count
from fedge.predictors import PREDICTORS
from fedge.predictors.explorers import EXPLORERS, find_method_explorer
from fedge.registry import load_named
from fedge.types import ProfileTable

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
        raise BadInput("--modes", str(modes), f"at most {count}, the number of modes of {source.source}")
    request = _build_request(options, modes)
    notes = (*list_table_notes(source.truth), *source.background.notes, *model_training.list_notes(source, request))
    for note in notes:
        report_note(note)
    model, predictor = model_training.train_model(source, request)
    return FittedModel(model, summarize_model(model, predictor, predict_candidates(model, predictor)))


def _build_request(options: ModelFitOptions, modes: int | None) -> model_training.FitRequest:
    """Build the request: a table is used completely unless bounded; an emulated board is always explored."""
    if options.table is None and not options.has_budget:
        modes = EMULATED_MODES
    explores = options.table is None or options.has_budget
    return model_training.FitRequest(
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
    )


def _check_options(options: ModelFitOptions) -> None:
    """Raise ``BadInput`` for errors that are visible without reading a table."""
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
