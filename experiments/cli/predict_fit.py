"""``fedge predict fit``: fits a model of a board's time and power to a table or an emulated board, and saves it."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.cli.predict_use import as_data, print_facts
from fedge.costs.workload_sizes import load_workload_sizes
from fedge.devices import catalogue
from fedge.devices.tables.mode_table import read_mode_table
from fedge.devices.tables.table_checks import list_table_notes as table_notes
from fedge.errors import BadInput, UnknownName
from fedge.knowledge import model_training
from fedge.knowledge.model_file import load_model, predict_candidates, save_model
from fedge.knowledge.model_summary import summarize_model
from fedge.knowledge.model_training import FitRequest
from fedge.knowledge.profiling_source import ProfilingSource, source_from_board, source_from_table
from fedge.knowledge.table_background import find_board_spec
from fedge.predictors import PREDICTORS
from fedge.predictors.explorers import EXPLORERS
from fedge.registry import load_named as load_name
from fedge.studies.prediction_cells import resolve_setup
from fedge.types import ProfileTable

EMULATED_MODES = 10
"""Default number of profiled modes of an emulated board."""


@dataclass(frozen=True, slots=True)
class PredictFitOptions:
    """Command-line options."""

    table: Path | None = None
    method: str = "fedge"
    modes: int | None = None
    explorer: str | None = None
    cost_s: float | None = None
    cost_j: float | None = None
    references: tuple[Path, ...] = ()
    prior_without: tuple[str, ...] = ()
    device: str | None = None
    workload: str | None = None
    batch_size: int | None = None
    seed: int = 0

    @property
    def has_budget(self) -> bool:
        """Whether an option bounds the amount of profiling."""
        return any(given is not None for given in (self.modes, self.cost_s, self.cost_j))


def fit_model(asked: PredictFitOptions, out: Path, as_json: bool) -> None:
    """Fit a model, print its quality and save it.

    Args:
        asked: The command-line options.
        out: The model file.
        as_json: Whether to print JSON.

    Raises:
        BadInput: If the input is invalid.
    """
    _check_options(asked)
    _check_model_path(out)
    ground = _open_truth(asked)
    _check_modes(asked, ground)
    wanted = _build_request(asked)
    for note in (*table_notes(ground.truth), *ground.background.notes, *model_training.list_notes(ground, wanted)):
        sys.stderr.write(f"fedge: {note}\n")
    model, predictor = model_training.train_model(ground, wanted)
    facts = summarize_model(model, predictor, predict_candidates(model, predictor))
    save_model(out, model)
    if as_json:
        sys.stdout.write(json.dumps({**as_data(facts), "file": str(out)}) + "\n")
        return
    print_facts(facts)
    sys.stdout.write(f"written: {out}\n")


def _build_request(asked: PredictFitOptions) -> FitRequest:
    """Build the request: a table is used completely unless bounded; an emulated board is always explored."""
    modes = asked.modes
    if asked.table is None and not asked.has_budget:
        modes = EMULATED_MODES
    explores = asked.table is None or asked.has_budget
    explorer = resolve_setup(asked.method, asked.explorer).explorer if explores else None
    return FitRequest(
        asked.method, seed=asked.seed, explorer=explorer, modes=modes, cost_s=asked.cost_s, cost_j=asked.cost_j
    )


# What is learnt from --------------------------------------------------------------------------------------------------


def _open_truth(asked: PredictFitOptions) -> ProfilingSource:
    references = [_read_reference(path, asked.batch_size) for path in asked.references]
    if asked.table is not None:
        return _open_table_truth(asked, asked.table, references)
    if asked.device is None or asked.workload is None:
        right = "a TABLE, or --device NAME and --workload NAME, which profiles an emulated board"
        raise BadInput("fedge predict fit", "neither a table nor a whole board", right)
    size = load_workload_sizes().get(asked.workload)
    if size is not None and asked.batch_size not in (None, size.batch_size):
        right = f"{size.batch_size}, the batch size at which {asked.workload} was measured"
        raise BadInput("--batch-size", str(asked.batch_size), right)
    return source_from_board(
        asked.device, workload=asked.workload, seed=asked.seed, references=references, without=asked.prior_without
    )


def _open_table_truth(asked: PredictFitOptions, path: Path, references: list[ProfileTable]) -> ProfilingSource:
    own = catalogue.load_spec(asked.device) if asked.device and asked.device.endswith((".yaml", ".yml")) else None
    table = read_mode_table(path, own.name if own else asked.device, asked.workload, asked.batch_size)
    return source_from_table(
        table,
        spec=own or find_board_spec(table.device),
        name=path.name,
        references=references,
        without=asked.prior_without,
    )


def _read_reference(path: Path, batch_size: int | None) -> ProfileTable:
    """Read a reference at the requested batch size if available, otherwise at its only one."""
    try:
        return read_mode_table(path, batch_size=batch_size)
    except BadInput:
        if batch_size is None:
            raise
        return read_mode_table(path)


# What the options may be ----------------------------------------------------------------------------------------------


def _check_options(asked: PredictFitOptions) -> None:
    """Raise ``BadInput`` for errors that are visible without reading a table."""
    if ":" in asked.method:
        right = f"one of {', '.join(sorted(PREDICTORS))}: a model's file names no code of one's own"
        raise BadInput("--method", repr(asked.method), right)
    if asked.method not in PREDICTORS:
        raise UnknownName("--method", asked.method, tuple(sorted(PREDICTORS)))
    load_name("--explorer", resolve_setup(asked.method, asked.explorer).explorer, EXPLORERS)
    for option, value, unit in (("--cost-s", asked.cost_s, "seconds"), ("--cost-j", asked.cost_j, "joules")):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise BadInput(option, f"{value:g}", f"{unit}, above 0")
    if asked.seed < 0:
        raise BadInput("--seed", str(asked.seed), "a whole number, 0 or above")
    if asked.explorer is not None and asked.table is not None and not asked.has_budget:
        right = "it together with --modes, --cost-s or --cost-j; without them all rows are learnt from"
        raise BadInput("--explorer", repr(asked.explorer), right)


def _check_modes(asked: PredictFitOptions, ground: ProfilingSource) -> None:
    count = len(ground.truth.modes)
    if asked.modes is not None and asked.modes > count:
        raise BadInput("--modes", str(asked.modes), f"at most {count}, all that {ground.source} has")


def _check_model_path(out: Path) -> None:
    """Check that an existing file is replaced only if it is a model, not e.g. the measured table."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise BadInput("--out", str(out), "the path of a file in a folder that exists")
    if not out.exists():
        return
    try:
        load_model(out)
    except BadInput as error:
        raise BadInput("--out", f"{out}, a file that is no model", "a new file, or a model to replace") from error
