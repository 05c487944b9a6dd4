"""Run folders loaded for a report: experiment, rows and summary in one record."""

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
"""By fleet entry (in older runs, by device), the labels ``truth`` and ``prior``, each with ``label`` and ``source``."""


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """One run.

    Attributes:
        folder: The run folder.
        name: Display name, unique among the loaded runs.
        experiment: The experiment.
        rounds: Finished rounds.
        clients: Client rows of finished rounds; ``device`` is filled in for all of them.
        events: All events.
        summary: The stored summary, or one computed from the rows.
        labels: Provenance of costs and priors.
    """

    folder: Path
    name: str
    experiment: Experiment
    rounds: tuple[RoundRow, ...]
    clients: tuple[ClientRow, ...]
    events: tuple[EventRow, ...]
    summary: dict[str, Any]
    labels: LabelsByEntry
    device_by_board: dict[str, str]
    """Device by board name, in the order of the fleet."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Distinct devices, in the order of the fleet."""
        return tuple(dict.fromkeys(self.device_by_board.values()))

    @property
    def asynchronous(self) -> bool:
        """Whether clients started their tasks at individual times rather than with the round."""
        return bool(self.summary["asynchronous"])

    @property
    def compared_rounds(self) -> tuple[RoundRow, ...]:
        """Rounds that can be compared with MAXN and the oracle."""
        return select_comparable(self.rounds)

    @property
    def compared_note(self) -> str:
        """Number of rounds that savings refer to; empty if it is all of them."""
        count = len(self.compared_rounds)
        return f"over {count} of {len(self.rounds)} rounds" if 0 < count < len(self.rounds) else ""


def load_run(folder: Path) -> LoadedRun:
    """Load a run folder.

    Raises:
        BadInput: If it is not a run folder, or has no finished round.
    """
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
    """Load several runs and give each a unique name.

    Raises:
        BadInput: If a folder is not a run folder, or has no finished round.
    """
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
    """Map board names to devices by the stored rows, which may differ from the experiment for an alias or a file."""
    told = {row.board: row.device for row in read_rows(folder, ClientRow) if row.device}
    by_entry = {board.entry.device: told[board.name] for board in list_boards(experiment) if board.name in told}
    return {board.name: by_entry.get(board.entry.device, board.entry.device) for board in list_boards(experiment)}


def _read_clients(folder: Path, kinds: dict[str, str], rounds: set[int]) -> tuple[ClientRow, ...]:
    """Return the client rows of finished rounds; failed clients' rows get their device from the experiment."""
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
