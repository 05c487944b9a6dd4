"""A run in its folder: resume from the last checkpoint if there is one, and save the final model."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedge.atomic_files import is_locked, replace_file, write_text
from fedge.decisions.selection import load_selector
from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment
from fedge.knowledge.recall import read_run_knowledge
from fedge.telemetry.run_folder import CHECKPOINTS, MODEL, STORE
from fedge.telemetry.store import LOCK, RunTables
from fedge.telemetry.store_reader import list_rounds
from fedge.telemetry.store_records import ClientRow, RoundRow
from fedge.telemetry.store_schema import BY_ROW
from fedge.types import NamedArrays
from fedge.workloads import load_experiment_task
from server.aggregation.aggregator import build_strategy
from server.aggregation.async_strategies import AsyncStrategy
from server.exporters.exporting_tables import ExportingTables, build_factories
from server.rounds.async_coordinator import AsyncCoordinator
from server.rounds.coordinator import Coordinator
from server.rounds.run_start import RowSink
from server.state import checkpoint
from server.state.fleet_availability import build_availability
from server.transport.client_port import NO_OVERDUE_REPLIES, ClientPort, OverdueReplies

RESUME_ADVICE = "finished rounds are kept: mend that, then resume the run"
PREDECESSOR_WAIT_S = 60.0
"""Wait of a resumed run for the server process before it, which outlives a killed SuperLink for some seconds."""
CLAIM_FILE = ".claim"
"""File of the run folder with a random part of the claim name, so that runs with the same name differ."""
CLAIM_NAME = re.compile(r".* \((?P<folder>/.*), (?P<token>[0-9a-f]+)\)", re.DOTALL)
ASYNC_SELECTORS = {"all": "random"}
"""Selector that replaces another one in an asynchronous run: with fewer slots than clients, it cannot select all of
them.
"""


def run_experiment(
    experiment: Experiment,
    port: ClientPort,
    folder: Path,
    on_round: Callable[[int], None] = lambda _: None,
    overdue: OverdueReplies = NO_OVERDUE_REPLIES,
) -> None:
    """Run all remaining rounds and save the model.

    Raises:
        RunFailed: The run cannot continue, or a file of the run folder cannot be written.
        BadInput: Rows of finished rounds are missing.
    """
    with _report_disk_errors(folder):
        tables = RunTables(folder, wait_s=PREDECESSOR_WAIT_S)
        try:
            state = checkpoint.load_latest(folder / CHECKPOINTS)
            tables.forget_after(state.round if state else -1)
            _check_rows(folder, state.round if state else 0)
            with ExportingTables(tables, build_factories(experiment, folder)) as exported:
                coordinator = build_coordinator(
                    experiment,
                    port=port,
                    tables=exported,
                    checkpoints=folder / CHECKPOINTS,
                    on_round=on_round,
                    overdue=overdue,
                    knowledge=read_run_knowledge(folder),
                )
                arrays = coordinator.run(state).arrays
            tables.seal()
        finally:
            tables.release()  # a failed run can be resumed by the same process
        save_model(folder / MODEL, arrays)


def read_claim_name(experiment: Experiment, folder: Path) -> str:
    """Return the name under which the run claims its boards; unique to the run, and the same when it is resumed."""
    path = folder / CLAIM_FILE
    if not path.is_file():
        write_text(path, secrets.token_hex(4))
    return f"{experiment.name} ({folder.resolve()}, {path.read_text(encoding='utf-8').strip()})"


def is_run_over(claim: str) -> bool:
    """Return whether the run with a claim name is over: no process writes its store any more, or its folder is another
    run's by now.

    Every run's server process is on the SuperLink's machine, so this sees all of them, also those that were killed. A
    run whose folder is not found, or whose lock cannot be read, counts as going on: its claims expire.
    """
    found = CLAIM_NAME.fullmatch(claim)
    if found is None:
        return False
    folder = Path(found["folder"])
    try:
        written = (folder / CLAIM_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return False
    return written != found["token"] or is_locked(folder / STORE / LOCK) is False


def build_coordinator(
    experiment: Experiment, port: ClientPort, tables: RowSink, **options: Any
) -> Coordinator | AsyncCoordinator:
    """Build the synchronous or asynchronous loop that the experiment's strategy needs.

    ``options`` are the keywords of ``RunLoop``; without ``checkpoints``, nothing is kept on disk.
    """
    task, strategy = load_experiment_task(experiment), build_strategy(experiment.strategy)
    if not isinstance(strategy, AsyncStrategy):
        return Coordinator(experiment, port, task, tables, **options)
    name = experiment.selection.name
    return AsyncCoordinator(
        experiment,
        port,
        task,
        tables,
        strategy=strategy,
        selector=load_selector(ASYNC_SELECTORS.get(name, name)),
        availability=build_availability(experiment),
        **options,
    )


@contextmanager
def _report_disk_errors(folder: Path) -> Iterator[None]:
    """Convert an error on a file of the run folder to ``RunFailed``, with the file and the reason."""
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
    """Raise ``BadInput`` if rows of finished rounds are missing, since results could not be reported completely."""
    expected = set(range(1, rounds + 1))
    stored = {name: list_rounds(folder, name) for name in (BY_ROW[RoundRow].name, BY_ROW[ClientRow].name)}
    for name, rounds_stored in stored.items():
        if expected - rounds_stored:
            right = f"the rows of the {rounds} rounds played; start the run anew"
            raise BadInput(str(folder / STORE / name), f"no row of round {min(expected - rounds_stored)}", right)


def save_model(path: Path, arrays: NamedArrays) -> None:
    """Save the global model as safetensors, atomically."""
    from safetensors.numpy import save_file

    with replace_file(path) as part:
        save_file({name: np.asarray(value, order="C") for name, value in arrays.items()}, part)
        part.chmod(0o644)  # safetensors creates files that only their owner can read
