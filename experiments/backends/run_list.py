"""The runs in a folder: their names, tags, states and headline figures, and in what they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

from experiments.backends import launcher
from experiments.report.run.run_names import UNTOLD_FIELDS, find_differences
from experiments.report.run.run_summary import find_budget_end
from fedge.atomic_files import is_locked
from fedge.errors import BadInput, FedgeError
from fedge.experiment import Experiment
from fedge.groups import group_by
from fedge.telemetry import run_folder
from fedge.telemetry.store import LOCK
from fedge.telemetry.store_reader import compute_store_stamp, read_rows
from fedge.telemetry.store_records import EventRow, RoundRow

RunProgress = Literal["not started", "running", "stopped", "finished"]
UNLISTED_FIELDS = UNTOLD_FIELDS | {"knowledge"}
"""Keys that are left out of what differs between runs."""
MAX_KEPT = 512
"""Runs whose files are not read again as long as they do not change; a default that bounds memory."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in a list.

    Attributes:
        name: Name of its folder.
        experiment: Name of its experiment.
        differences: Fields in which it differs from the other runs of this experiment, with its values.
        rounds: Finished rounds.
        planned: Rounds of the experiment.
        metric: Name of its figure of merit.
        accuracy: Figure of merit after the last evaluated round; None if nothing was trained.
        energy_j: Energy of the selected clients so far, in joules.
        started: Time of its start, as ISO 8601 in UTC.
        problem: Why the run cannot be read; empty if it can.
    """

    folder: Path
    name: str
    experiment: str = ""
    tags: tuple[str, ...] = ()
    differences: Mapping[str, str] = field(default_factory=dict)
    state: RunProgress = "stopped"
    rounds: int = 0
    planned: int = 0
    metric: str = "accuracy"
    accuracy: float | None = None
    energy_j: float = 0.0
    started: str = ""
    problem: str = ""


def find_run_folders(folder: Path) -> list[Path]:
    """Return the run folders in a folder, the newest first; none if there is no such folder."""
    runs = [(path.stat().st_mtime, path.parent) for path in folder.glob(f"*/{run_folder.RUN_YAML}")]
    return [path for _, path in sorted(runs, key=lambda run: (-run[0], run[1].name))]


def list_runs(folder: Path, tags: Sequence[str] = ()) -> tuple[ListedRun, ...]:
    """List the runs in a folder, the newest first; only those with all ``tags``.

    Raises:
        BadInput: If there is no such folder.
    """
    if not folder.is_dir():
        raise BadInput(str(folder), "no such folder", "a folder with runs, such as the runs/ that `fedge run` makes")
    read = [(path, *_load_experiment(path)) for path in find_run_folders(folder)]
    kept = [(path, one, why) for path, one, why in read if set(tags) <= set(one.tags if one else ())]
    by_name = group_by((one for _, one, _ in kept if one is not None), lambda one: one.name)
    differences = {name: iter(find_differences(same, UNLISTED_FIELDS)) for name, same in by_name.items()}
    return tuple(
        ListedRun(path, path.name, problem=problem)
        if experiment is None
        else _describe_run(path, experiment, next(differences[experiment.name]))
        for path, experiment, problem in kept
    )


def _load_experiment(folder: Path) -> tuple[Experiment | None, str]:
    return _load_unchanged(folder, (folder / run_folder.RUN_YAML).stat().st_mtime_ns)


@lru_cache(maxsize=MAX_KEPT)
def _load_unchanged(folder: Path, modified_ns: int) -> tuple[Experiment | None, str]:
    """Load an experiment once, until its file changes: a page lists the same runs again and again."""
    try:
        return launcher.load_saved_experiment(folder), ""
    except BadInput as error:
        return None, str(error)


def _describe_run(folder: Path, experiment: Experiment, differences: Mapping[str, str]) -> ListedRun:
    made_s = (folder / run_folder.RUN_YAML).stat().st_mtime
    rounds: tuple[RoundRow, ...] = ()
    state: RunProgress = "stopped"
    problem = ""
    try:
        rounds = _read_unchanged(folder, compute_store_stamp(folder, RoundRow))
        state = find_state(folder, experiment, rounds)
    except FedgeError as error:
        problem = str(error)
    return ListedRun(
        folder,
        folder.name,
        experiment=experiment.name,
        tags=experiment.tags,
        differences=differences,
        state=state,
        rounds=len(rounds),
        planned=experiment.rounds,
        metric=experiment.workload.metric,
        accuracy=next((row.accuracy for row in reversed(rounds) if row.accuracy is not None), None),
        energy_j=sum(row.energy_j for row in rounds),
        started=datetime.fromtimestamp(made_s, UTC).isoformat(timespec="seconds"),
        problem=problem,
    )


@lru_cache(maxsize=MAX_KEPT)
def _read_unchanged(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> tuple[RoundRow, ...]:
    """Read the rounds of a run once, until its store changes."""
    return tuple(read_rows(folder, RoundRow))


def find_state(folder: Path, experiment: Experiment, rounds: Sequence[RoundRow] | None = None) -> RunProgress:
    """Return the state of a run; its ``rounds`` are read if they are not given."""
    if is_locked(folder / launcher.LOCK_FILE) or is_locked(folder / run_folder.STORE / LOCK):
        return "running"
    rows = read_rows(folder, RoundRow) if rounds is None else rounds
    ended = (folder / run_folder.MODEL).is_file() or experiment.backend == "flower"
    if ended and (len(rows) >= experiment.rounds or find_budget_end(rows, read_rows(folder, EventRow)) is not None):
        return "finished"
    return "stopped" if rows else "not started"
