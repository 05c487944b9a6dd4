"""Plays a run in its folder: goes on from the last checkpoint when there is one, leaves the final model behind."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedge.client.emulated import load_experiment_task
from fedge.decisions.selection import load_selector
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment
from fedge.telemetry.run_folder import CHECKPOINTS, MODEL, STORE, write_text
from fedge.telemetry.store import RunTables
from fedge.telemetry.store_reader import list_rounds
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.telemetry.store_schema import BY_ROW
from fedge.types import NamedArrays
from server.aggregation.aggregator import build_strategy
from server.aggregation.async_strategies import AsyncStrategy
from server.exporters.exporter_factory import build_factories
from server.exporters.exporting_tables import ExportingTables
from server.rounds.async_coordinator import AsyncCoordinator
from server.rounds.coordinator import Coordinator
from server.rounds.run_start import RowSink
from server.state import checkpoint
from server.state.fleet_availability import build_availability
from server.transport.client_port import NO_OVERDUE_REPLIES, ClientPort, OverdueReplies

RESUME_ADVICE = "what was told before is kept: mend that, then resume"
CLAIM_FILE = ".claim"
"""The file of a run's folder that tells its claim from those of all other runs."""
ASYNC_SELECTORS = {"all": "random"}
"""With fewer slots than boards, an asynchronous run cannot ask all; then which of the free ones is left to chance."""


def run_experiment(
    experiment: Experiment,
    port: ClientPort,
    folder: Path,
    on_round: Callable[[int], None] = lambda _: None,
    overdue: OverdueReplies = NO_OVERDUE_REPLIES,
) -> None:
    """Play every round that is left and write the model; raises ``RunFailed`` when the run cannot go on."""
    with _report_disk_errors(folder):
        tables = RunTables(folder)
        progress = checkpoint.load_latest(folder / CHECKPOINTS)
        tables.forget_after(progress.round if progress else -1)
        _check_rows(folder, progress.round if progress else 0)
        with ExportingTables(tables, build_factories(experiment, folder)) as telling:
            coordinator = build_coordinator(
                experiment,
                port=port,
                tables=telling,
                checkpoints=folder / CHECKPOINTS,
                on_round=on_round,
                overdue=overdue,
            )
            arrays = coordinator.run(progress).arrays
        tables.close()
        save_model(folder / MODEL, arrays)


def read_claim_name(experiment: Experiment, folder: Path) -> str:
    """The name under which the run claims its boards: the same whenever it is resumed, and no other run's."""
    path = folder / CLAIM_FILE
    if not path.is_file():
        write_text(path, secrets.token_hex(4))
    return f"{experiment.name} ({folder.name}, {path.read_text(encoding='utf-8').strip()})"


def build_coordinator(
    experiment: Experiment,
    port: ClientPort,
    tables: RowSink,
    checkpoints: Path | None = None,
    on_round: Callable[[int], None] = lambda _: None,
    overdue: OverdueReplies = NO_OVERDUE_REPLIES,
) -> Coordinator | AsyncCoordinator:
    """The loop that the experiment's strategy asks for; without ``checkpoints`` nothing is kept on disk."""
    task, strategy = load_experiment_task(experiment), build_strategy(experiment.strategy)
    if not isinstance(strategy, AsyncStrategy):
        return Coordinator(
            experiment, port=port, task=task, tables=tables, checkpoints=checkpoints, on_round=on_round, overdue=overdue
        )
    name = experiment.selection.name
    selector, reach = load_selector(ASYNC_SELECTORS.get(name, name)), build_availability(experiment)
    return AsyncCoordinator(
        experiment,
        strategy=strategy,
        port=port,
        task=task,
        tables=tables,
        selector=selector,
        reach=reach,
        checkpoints=checkpoints,
        on_round=on_round,
    )


@contextmanager
def _report_disk_errors(folder: Path) -> Iterator[None]:
    """A file of the run folder that cannot be written ends the run with one line that says which and why."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) or not Path(error.filename).is_relative_to(folder):
            raise
        raise RunFailed(f"{error.filename}: {error.strerror}; {RESUME_ADVICE}") from error
    except SafetensorError as error:
        raise RunFailed(f"{folder}: {error}; {RESUME_ADVICE}") from error


def _check_rows(folder: Path, rounds: int) -> None:
    """Raise ``BadInput`` when rows of rounds that were played are gone: the run could not be told any more."""
    expected = set(range(1, rounds + 1))
    told = {name: list_rounds(folder, name) for name in (BY_ROW[RoundRow].name, BY_ROW[ClientRow].name)}
    for name, seen in told.items():
        if expected - seen:
            right = f"the rows of the {rounds} rounds played; start the run anew"
            raise BadInput(str(folder / STORE / name), f"no row of round {min(expected - seen)}", right)


def save_model(path: Path, arrays: NamedArrays) -> None:
    """The global model as safetensors, by a temporary name and a rename."""
    from safetensors.numpy import save_file

    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    save_file({name: np.asarray(value, order="C") for name, value in arrays.items()}, part)
    part.chmod(0o644)  # safetensors keeps its files to their owner
    part.replace(path)
