"""Plays a run in its folder: goes on from the last checkpoint when there is one, leaves the final model behind."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedge.errors import BadInput, RunFailed
from fedge.experiment import Experiment
from fedge.fleetsim.client import task_of
from fedge.selection import selector_for
from fedge.telemetry.reading import played_rounds
from fedge.telemetry.rows import ClientRow, RoundRow
from fedge.telemetry.run_folder import CHECKPOINTS, MODEL, STORE, write_text
from fedge.telemetry.schema import BY_ROW
from fedge.telemetry.store import RunTables
from fedge.types import NamedArrays
from server import checkpoint
from server.aggregation import strategy_of
from server.asynchronous import AsyncCoordinator
from server.coordinator import Coordinator
from server.exporters.making import makers_of
from server.exporters.telling import Telling
from server.opening import Tables
from server.port import NOTHING_OVERDUE, ClientPort, Overdue
from server.reach import reach_of
from server.staleness import Asynchronous

KEPT = "what was told before is kept: mend that, then resume"
CLAIM = ".claim"
"""The file of a run's folder that tells its claim from those of all other runs."""
NAMES = {"all": "random"}
"""With fewer slots than boards, an asynchronous run cannot ask all; then which of the free ones is left to chance."""


def play(
    experiment: Experiment,
    port: ClientPort,
    folder: Path,
    on_round: Callable[[int], None] = lambda _: None,
    overdue: Overdue = NOTHING_OVERDUE,
) -> None:
    """Play every round that is left and write the model; raises ``RunFailed`` when the run cannot go on."""
    with _naming_the_disk(folder):
        tables = RunTables(folder)
        progress = checkpoint.latest(folder / CHECKPOINTS)
        tables.forget_after(progress.round if progress else -1)
        _check_rows(folder, progress.round if progress else 0)
        with Telling(tables, makers_of(experiment, folder)) as telling:
            coordinator = coordinator_of(experiment, port, telling, folder / CHECKPOINTS, on_round, overdue)
            arrays = coordinator.run(progress).arrays
        tables.close()
        save_model(folder / MODEL, arrays)


def claim_of(experiment: Experiment, folder: Path) -> str:
    """The name under which the run claims its boards: the same whenever it is resumed, and no other run's."""
    path = folder / CLAIM
    if not path.is_file():
        write_text(path, secrets.token_hex(4))
    return f"{experiment.name} ({folder.name}, {path.read_text(encoding='utf-8').strip()})"


def coordinator_of(
    experiment: Experiment,
    port: ClientPort,
    tables: Tables,
    checkpoints: Path | None = None,
    on_round: Callable[[int], None] = lambda _: None,
    overdue: Overdue = NOTHING_OVERDUE,
) -> Coordinator | AsyncCoordinator:
    """The loop that the experiment's strategy asks for; without ``checkpoints`` nothing is kept on disk."""
    task, strategy = task_of(experiment), strategy_of(experiment.strategy)
    if not isinstance(strategy, Asynchronous):
        return Coordinator(experiment, port, task, tables, checkpoints, on_round, overdue)
    name = experiment.selection.name
    selector, reach = selector_for(NAMES.get(name, name)), reach_of(experiment)
    return AsyncCoordinator(experiment, strategy, port, task, tables, selector, reach, checkpoints, on_round)


@contextmanager
def _naming_the_disk(folder: Path) -> Iterator[None]:
    """A file of the run folder that cannot be written ends the run with one line that says which and why."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) or not Path(error.filename).is_relative_to(folder):
            raise
        raise RunFailed(f"{error.filename}: {error.strerror}; {KEPT}") from error
    except SafetensorError as error:
        raise RunFailed(f"{folder}: {error}; {KEPT}") from error


def _check_rows(folder: Path, rounds: int) -> None:
    """Raise ``BadInput`` when rows of rounds that were played are gone: the run could not be told any more."""
    expected = set(range(1, rounds + 1))
    told = {name: played_rounds(folder, name) for name in (BY_ROW[RoundRow].name, BY_ROW[ClientRow].name)}
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
