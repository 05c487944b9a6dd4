"""Run folders loaded for a report: experiment, rows and summary in one record; their cost of a target accuracy; and
the part of a large run to draw.

A target is reached at the end of the first round at or above it of which the mean with the next two is so too.
Seconds are those of the fleet's clock. Joules are of the whole fleet, boards at rest and evaluations included.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from experiments.report.chart import SeriesStyle, assign_styles
from experiments.report.run.run_names import name_runs
from experiments.report.run.run_summary import LabelsByEntry, find_labels, summarise_run
from experiments.spec.experiment_loader import load_experiment
from fedge.errors import BadInput
from fedge.experiment import Experiment, list_boards
from fedge.telemetry import run_folder
from fedge.telemetry.savings import Baseline, SavingShare, select_comparable, share_of_saving
from fedge.telemetry.store_reader import read_rows
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """One run.

    Attributes:
        name: Display name, unique among the loaded runs.
        group_name: Display name of the runs that differ from this one only in the seed.
        clients: Client rows of finished rounds; ``device`` is filled in for all of them.
        summary: The stored summary, or one computed from the rows.
        labels: Provenance of costs and priors.
        device_by_board: Device by board name, in the order of the fleet.
        styles: Style of each distinct device, in the order of the fleet.
        style: Colour and line pattern in the charts of a comparison.
    """

    folder: Path
    name: str
    group_name: str
    experiment: Experiment
    rounds: tuple[RoundRow, ...]
    clients: tuple[ClientRow, ...]
    events: tuple[EventRow, ...]
    summary: dict[str, Any]
    labels: LabelsByEntry
    device_by_board: dict[str, str]
    styles: dict[str, SeriesStyle]
    style: SeriesStyle

    def style_of(self, board: str) -> SeriesStyle:
        """Return the style of a board's device."""
        return self.styles[self.device_by_board[board]]

    @property
    def asynchronous(self) -> bool:
        """Whether clients started their tasks at individual times rather than with the round."""
        return bool(self.summary["asynchronous"])

    @property
    def evaluated_rounds(self) -> tuple[RoundRow, ...]:
        """Rounds with an accuracy: all or none of them, except in a Flower app, which may leave some out."""
        return tuple(row for row in self.rounds if row.accuracy is not None)

    @property
    def accuracies(self) -> list[float]:
        """Accuracy after every evaluated round; empty if nothing was trained."""
        return [row.accuracy for row in self.rounds if row.accuracy is not None]

    def accumulate(self, column: str) -> list[float]:
        """Return the sums of a column over the rounds up to each evaluated one."""
        sums = accumulate(getattr(row, column) for row in self.rounds)
        return [total for row, total in zip(self.rounds, sums, strict=True) if row.accuracy is not None]

    @property
    def compared_rounds(self) -> tuple[RoundRow, ...]:
        """Rounds that can be compared with MAXN and the oracle."""
        return select_comparable(self.rounds)

    @property
    def compared_note(self) -> str:
        """Number of rounds that savings refer to; empty if it is all of them."""
        count = len(self.compared_rounds)
        return f"over {count} of {len(self.rounds)} rounds" if 0 < count < len(self.rounds) else ""

    @property
    def energy_with_idle_j(self) -> float:
        """Energy of all boards, idle and evaluating ones included, in joules."""
        return float(self.summary["energy_j"] + self.summary["resting_energy_j"] + self.evaluation_j)

    @property
    def evaluation_j(self) -> float:
        """Energy of evaluations by clients, in joules."""
        return float(self.summary.get("evaluation_energy_j") or 0.0)

    def share_of_oracle_saving(self, baseline: Baseline) -> SavingShare:
        """Return the saving against ``maxn`` or ``maxn_parked`` (waiting at low clocks) as a share of the oracle's."""
        saving, oracle = self.summary[f"saving_vs_{baseline}"], self.summary[f"oracle_saving_vs_{baseline}"]
        return share_of_saving(saving, oracle, self.experiment.policy.name)


TARGET_WINDOW = 3
"""Evaluations whose mean must not be below the target, so that one lucky evaluation does not count."""


@dataclass(frozen=True, slots=True)
class Course:
    """A run's accuracy over what it had spent: per evaluated round accuracy, and seconds and joules until its end.

    ``costs`` are those of the joules by the given signal; empty without one.
    """

    accuracy: tuple[float, ...]
    seconds: tuple[float, ...]
    joules: tuple[float, ...]
    costs: tuple[float, ...] = ()


def build_course(rounds: Sequence[RoundRow]) -> Course:
    """Return the course of a run; it is empty if no model was evaluated."""
    points, joules, cost = list[tuple[float, float, float, float]](), 0.0, 0.0
    for row in rounds:
        joules += row.energy_j + (row.resting_energy_j or 0.0) + (row.evaluation_energy_j or 0.0)
        cost += row.energy_cost or 0.0
        if row.accuracy is not None:
            points.append((row.accuracy, row.end_s, joules, cost))
    course = Course(*zip(*points, strict=True)) if points else Course((), (), ())
    return course if all(row.energy_cost is not None for row in rounds) else dataclasses.replace(course, costs=())


def find_cost(course: Course, target: float) -> tuple[float, float, float | None] | None:
    """Return seconds and joules until the target is reached, and the joules' cost; None if it never is."""
    for place, reached in enumerate(_list_reached(course)):
        if reached >= target:
            return course.seconds[place], course.joules[place], course.costs[place] if course.costs else None
    return None


def find_highest_target(course: Course) -> float | None:
    """Return the highest target that the run reaches, or None if no model was evaluated."""
    return max(_list_reached(course), default=None)


def _list_reached(course: Course) -> Iterator[float]:
    """Yield the highest target that each round reaches; a run shorter than the window is judged by its first round."""
    places = len(course.accuracy) - TARGET_WINDOW + 1
    for place in range(max(min(1, len(course.accuracy)), places)):
        window = course.accuracy[place : place + TARGET_WINDOW]
        yield min(window[0], statistics.mean(window))


@dataclass(frozen=True, slots=True)
class AccuracyGoal:
    """An accuracy that every run reaches."""

    accuracy: float

    def time_to_goal_s(self, run: LoadedRun) -> float | None:
        """Return the simulated time until the run reaches it, in seconds."""
        return (find_cost(build_course(run.rounds), self.accuracy) or (None,))[0]

    def energy_to_goal_j(self, run: LoadedRun) -> float | None:
        """Return the whole fleet's energy up to that time, in joules."""
        return (find_cost(build_course(run.rounds), self.accuracy) or (None, None))[1]


def find_metric(runs: Sequence[LoadedRun]) -> str:
    """Return the name of the runs' figure of merit; of several ones the plain word."""
    names = {run.experiment.workload.metric for run in runs}
    return names.pop() if len(names) == 1 else "metric"


def find_common_goal(runs: Sequence[LoadedRun]) -> AccuracyGoal | None:
    """Return the highest accuracy that all runs reach; None if one of them trained nothing."""
    best = [find_highest_target(build_course(run.rounds)) for run in runs]
    known = [accuracy for accuracy in best if accuracy is not None]
    return AccuracyGoal(min(known)) if len(known) == len(runs) else None


def load_run(folder: Path) -> LoadedRun:
    """Load a run folder.

    Raises:
        BadInput: If it is not a run folder, or has no finished round.
    """
    if not (folder / run_folder.RUN_YAML).is_file():
        raise run_folder.build_absence_error(folder)
    experiment = load_experiment(folder / run_folder.RUN_YAML)
    rounds = tuple(sorted(read_rows(folder, RoundRow), key=lambda row: row.round))
    if not rounds:
        raise BadInput(str(folder), "a run without a finished round", "a run with at least one finished round")
    kinds = _map_devices(folder, experiment)
    clients = _read_clients(folder, kinds, {row.round for row in rounds})
    stored = run_folder.read_summary(folder)
    events = tuple(sorted(read_rows(folder, EventRow), key=lambda row: row.at_s))
    summary = {
        **summarise_run(experiment, rounds=rounds, clients=clients, wall_s=0.0, events=events),
        "wall_s": stored.get("wall_s"),
        "knowledge": stored["knowledge"],
    }
    known = {**kinds, **{row.board: row.device for row in clients if row.board not in kinds}}
    return LoadedRun(
        folder,
        name=experiment.name,
        group_name=experiment.name,
        experiment=experiment,
        rounds=rounds,
        clients=clients,
        events=events,
        summary=summary,
        labels=find_labels(experiment, folder),
        device_by_board=known,
        styles=assign_styles(known.values()),
        style=SeriesStyle(),
    )


def load_runs(folders: Sequence[Path]) -> tuple[LoadedRun, ...]:
    """Load several runs and give each a unique, short name.

    Raises:
        BadInput: If a folder is not a run folder, or has no finished round.
    """
    runs = [load_run(folder) for folder in folders]
    names = name_runs([run.experiment for run in runs], [run.folder for run in runs])
    styles = assign_styles(name.run for name in names)
    return tuple(
        dataclasses.replace(run, name=name.run, group_name=name.group, style=styles[name.run])
        for run, name in zip(runs, names, strict=True)
    )


def _map_devices(folder: Path, experiment: Experiment) -> dict[str, str]:
    """Map board names to devices by the stored rows, which may differ from the experiment for an alias or a file."""
    stored = {row.board: row.device for row in read_rows(folder, ClientRow) if row.device}
    by_entry = {board.entry.device: stored[board.name] for board in list_boards(experiment) if board.name in stored}
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


MAX_BOARDS = 40
MAX_CELLS = 1_600
"""Largest number of board-rounds in a timeline: with four bars each, about as many as a browser draws without delay."""
MAX_POINTS = 3_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunSample:
    """The part of a run that is drawn.

    Attributes:
        boards: Board names, in the order of the fleet.
        rounds: The latest rounds.
        note: How the part was selected; empty if it is the whole run.
    """

    boards: tuple[str, ...]
    rounds: tuple[RoundRow, ...]
    note: str

    def select_rows(self, run: LoadedRun) -> tuple[ClientRow, ...]:
        boards, numbers = set(self.boards), {row.round for row in self.rounds}
        return tuple(row for row in run.clients if row.board in boards and row.round in numbers)


def sample_run(run: LoadedRun) -> RunSample:
    """Select as much of the run as stays readable."""
    boards = _sample_boards(run)
    rounds = run.rounds[-max(1, MAX_CELLS // len(boards)) :]
    parts = []
    if len(boards) < len(run.device_by_board):
        count = f"{len(boards)} of {len(run.device_by_board)} boards"
        parts.append(f"{count} (the most frequent stragglers, then some of every kind)")
    if len(rounds) < len(run.rounds):
        parts.append(f"the last {len(rounds)} of {len(run.rounds)} rounds")
    note = f"Shown here: {' and '.join(parts)}; the Parquet tables contain everything." if parts else ""
    return RunSample(boards, rounds, note)


def _sample_boards(run: LoadedRun) -> tuple[str, ...]:
    if len(run.device_by_board) <= MAX_BOARDS:
        return tuple(run.device_by_board)
    late = Counter(row.straggler for row in run.rounds if row.straggler in run.device_by_board)
    stragglers = [board for board, _ in late.most_common(MAX_BOARDS // 4)]
    by_kind = [[board for board, kind in run.device_by_board.items() if kind == device] for device in run.styles]
    turns = (board for board in chain.from_iterable(zip_longest(*by_kind)) if board is not None)
    chosen = set(list(dict.fromkeys(chain(stragglers, turns)))[:MAX_BOARDS])
    return tuple(board for board in run.device_by_board if board in chosen)


def thin_points(rows: Sequence[T]) -> tuple[Sequence[T], str]:
    """Return every n-th row, so that at most ``MAX_POINTS`` remain, and a note if rows were left out."""
    step = -(-len(rows) // MAX_POINTS) if rows else 1
    return rows[::step], "" if step <= 1 else f"One in {step} of {len(rows):,} points is shown."
