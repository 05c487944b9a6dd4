"""A run as a report reads it: its folder's experiment, rows and summary in one record."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.report.run.run_summary import select_comparable, summarise_run
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput
from fedge.experiment import Experiment, list_boards
from fedge.telemetry import run_folder
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow

LabelsByEntry = dict[str, dict[str, Any]]
"""Fleet entry -> ``truth`` and ``prior``, each with ``label`` and ``source``; in older runs, the device -> the same."""


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """One run; ``clients`` holds finished rounds only, and every row of it knows its board's kind."""

    folder: Path
    name: str
    experiment: Experiment
    rounds: tuple[RoundRow, ...]
    clients: tuple[ClientRow, ...]
    events: tuple[EventRow, ...]
    summary: dict[str, Any]
    labels: LabelsByEntry
    device_by_board: dict[str, str]
    """Board -> device, in the order of the fleet."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of board, in the order of the fleet."""
        return tuple(dict.fromkeys(self.device_by_board.values()))

    @property
    def asynchronous(self) -> bool:
        """Whether boards began their tasks at times of their own, not at the round's start."""
        return bool(self.summary["asynchronous"])

    @property
    def compared_rounds(self) -> tuple[RoundRow, ...]:
        """The rounds that can be held against MAXN and the oracle."""
        return select_comparable(self.rounds)

    @property
    def compared_note(self) -> str:
        """Over how many rounds a saving is, where that is not all of them."""
        count = len(self.compared_rounds)
        return f"over {count} of {len(self.rounds)} rounds" if 0 < count < len(self.rounds) else ""


def load_run(folder: Path) -> LoadedRun:
    """Read a run folder; raises ``BadInput`` when it is none, or has no finished round yet."""
    if not (folder / run_folder.RUN_YAML).is_file():
        raise BadInput(str(folder), f"no {run_folder.RUN_YAML} in it", "the folder of a run")
    experiment = load_experiment(folder / run_folder.RUN_YAML)
    rounds = tuple(sorted(read_rows(folder, RoundRow), key=lambda row: row.round))
    if not rounds:
        raise BadInput(str(folder), "a run without a finished round", "a run that has played at least one round")
    kinds = _map_devices(folder, experiment)
    clients = _read_clients(folder, kinds, {row.round for row in rounds})
    stored = _read_stored_summary(folder)
    events = tuple(sorted(read_rows(folder, EventRow), key=lambda row: row.at_s))
    summary = {
        **summarise_run(experiment, rounds=rounds, clients=clients, wall_s=0.0, events=events),
        "wall_s": stored.get("wall_s"),
    }
    labels = stored.get("labels") or {}
    known = {**kinds, **{row.board: row.device for row in clients if row.board not in kinds}}
    return LoadedRun(
        folder,
        name=experiment.name,
        experiment=experiment,
        rounds=rounds,
        clients=clients,
        events=events,
        summary=summary,
        labels=labels,
        device_by_board=known,
    )


def load_runs(folders: Sequence[Path]) -> tuple[LoadedRun, ...]:
    """Several runs, each with a name that none of the others has."""
    runs = [load_run(folder) for folder in folders]
    by_strategy = len({run.experiment.strategy.name for run in runs}) > 1
    for name_of in ((_name_by_strategy if by_strategy else _name_by_policy), _name_by_folder, _name_by_path):
        names = [name_of(run) for run in runs]
        if max(Counter(names).values(), default=1) == 1:
            break
    else:
        names = [f"{i}: {name}" for i, name in enumerate(names, 1)]
    return tuple(dataclasses.replace(run, name=name) for run, name in zip(runs, names, strict=True))


def _name_by_policy(run: LoadedRun) -> str:
    return f"{run.experiment.name} ({run.experiment.policy.name})"


def _name_by_strategy(run: LoadedRun) -> str:
    return f"{run.experiment.name} ({run.experiment.policy.name}, {run.experiment.strategy.name})"


def _name_by_folder(run: LoadedRun) -> str:
    return f"{_name_by_policy(run)}, {run.folder.resolve().name}"


def _name_by_path(run: LoadedRun) -> str:
    return f"{_name_by_policy(run)}, {run.folder}"


def _map_devices(folder: Path, experiment: Experiment) -> dict[str, str]:
    """Board -> device: by the name that its rows have, which is not that of the experiment for an alias or a file."""
    told = {row.board: row.device for row in read_rows(folder, ClientRow) if row.device}
    by_entry = {board.entry.device: told[board.name] for board in list_boards(experiment) if board.name in told}
    return {board.name: by_entry.get(board.entry.device, board.entry.device) for board in list_boards(experiment)}


def _read_clients(folder: Path, kinds: dict[str, str], rounds: set[int]) -> tuple[ClientRow, ...]:
    """The rows of finished rounds; a failed board's row does not say its kind, the experiment does."""
    place = {board: i for i, board in enumerate(kinds)}
    rows = [
        row if row.device else dataclasses.replace(row, device=kinds.get(row.board, ""))
        for row in read_rows(folder, ClientRow)
        if row.round in rounds
    ]
    return tuple(sorted(rows, key=lambda row: (row.round, place.get(row.board, len(place)), row.board)))


def _read_stored_summary(folder: Path) -> dict[str, Any]:
    path = folder / run_folder.SUMMARY
    if not path.is_file():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise BadInput(str(path), f"no JSON ({error})", "the summary that the run wrote") from error
    return stored if isinstance(stored, dict) else {}
