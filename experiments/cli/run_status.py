"""``fedge status`` and ``fedge runs``: the state of a run and what can be done next, and the runs in a folder."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from experiments.cli.command_options import AsJson, Run, Tags
from experiments.cli.command_output import make_console, print_json, print_line
from experiments.fleet.inventory import format_names
from fedge.telemetry.run_folder import RUNS

if TYPE_CHECKING:
    from experiments.backends.run_list import ListedRun
    from experiments.report.tables import Table
    from fedge.experiment import Experiment
    from fedge.telemetry.store_records import ClientRow, EventRow


QUERY = "select board, sum(energy_j) from clients group by board"
START_FROM = "start the next run from what this one measured"
MAX_REASONS = 3
"""Reasons of failures that are listed, the most frequent first."""
MAX_BOARDS = 4
"""Boards that are named with a reason, before the rest is counted."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of a run.

    Attributes:
        rounds: Finished rounds (models of an asynchronous run).
        planned: Rounds of the experiment.
        summary: The run's summary so far (docs/reference/experiments.md).
        problems: What went wrong, one line each.
        next_steps: Pairs of a purpose and a command.
    """

    name: str
    state: Literal["not started", "running", "stopped", "finished"]
    rounds: int
    planned: int
    summary: Mapping[str, Any]
    problems: tuple[str, ...]
    next_steps: tuple[tuple[str, str], ...]


def status(folder: Run, *, as_json: AsJson = False) -> None:
    """Show how far a run is, what went wrong in it, and what can be done next.

    Example: fedge status runs/office
    """
    found = read_run_status(folder)
    if as_json:
        print_json(found)
        return
    print_line(f"{found.name}: {found.state}, {found.rounds} of {found.planned} rounds")
    if found.rounds:
        from experiments.report.run.live_terminal import print_run_summary

        print_run_summary(make_console(), dict(found.summary))
    if found.summary["labels"]:
        from experiments.report.run.run_tables import describe_estimates, describe_origins

        print_line(describe_origins(found.summary))
        for line in describe_estimates(found.summary["labels"]):
            print_line(f"note: {line}")
    for problem in found.problems:
        print_line(f"note: {problem}")
    for purpose, command in found.next_steps:
        print_line(f"{purpose}: {command}")


def read_run_status(folder: Path) -> RunStatus:
    """Read the state of a run from its folder.

    Raises:
        BadInput: The folder is not that of a run.
    """
    from experiments.backends import launcher
    from experiments.backends.run_list import find_state
    from experiments.report.run.run_summary import find_labels
    from fedge.telemetry.store_reader import read_rows
    from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow

    experiment = launcher.load_saved_experiment(folder)
    rounds, clients = read_rows(folder, RoundRow), read_rows(folder, ClientRow)
    summary = {**launcher.summarise_rows(experiment, folder), "labels": find_labels(experiment, folder)}
    state = find_state(folder, experiment, rounds)
    return RunStatus(
        experiment.name,
        state=state,
        rounds=len(rounds),
        planned=experiment.rounds,
        summary=summary,
        problems=tuple(_list_problems(summary, clients, read_rows(folder, EventRow))),
        next_steps=tuple(_list_next_steps(state, folder, experiment)),
    )


def list_failures(clients: Sequence[ClientRow], events: Sequence[EventRow]) -> Iterator[str]:
    """Yield the most frequent reasons for which boards failed, each with the boards."""
    failed = [(row.board, row.error) for row in clients if row.status == "failed" and row.error]
    asked = {row.board for row in clients}
    # Boards that failed before the first round, of which there may be none.
    failed += [
        (event.board, event.message)
        for event in events
        if event.kind == "failed" and event.board is not None and event.board not in asked
    ]
    boards_by_reason: dict[str, list[str]] = {}
    for board, error in failed:
        boards_by_reason.setdefault(error.splitlines()[0], []).append(board)
    reasons = sorted(boards_by_reason.items(), key=lambda pair: -len(pair[1]))
    for reason, boards in reasons[:MAX_REASONS]:
        yield f"{len(boards)} x failed: {reason} ({format_names(list(dict.fromkeys(boards)), MAX_BOARDS)})"
    if len(reasons) > MAX_REASONS:
        yield f"{len(reasons) - MAX_REASONS} more reasons of failures are among the report's events"


def _list_problems(
    summary: Mapping[str, Any], clients: Sequence[ClientRow], events: Sequence[EventRow]
) -> Iterator[str]:
    from experiments.report.run.run_tables import describe_problems

    yield from list_failures(clients, events)
    if problems := describe_problems(summary):
        yield problems
    if summary["late"] or summary["infeasible"]:
        yield "with a longer deadline or max_slowdown more boards are in time (docs/explanation/stragglers.md)"
    if summary["ended"]:
        yield f"the energy budget ended it: {summary['ended']}"


def _list_next_steps(state: str, folder: Path, experiment: Experiment) -> Iterator[tuple[str, str]]:
    run = shlex.quote(str(folder))
    if state == "running":
        yield "watch it", f"fedge board {run}"
        return
    if state != "finished" and experiment.backend != "flower":
        yield "go on with it", f"fedge resume {run}"
        return
    yield "see it", f"fedge report {run}"
    yield "ask for any figure", f"fedge query {run} {QUERY!r}"
    if experiment.backend == "flower":
        return
    if all(entry.loader is None for entry in experiment.fleet):
        other = "maxn" if experiment.policy.name != "maxn" else "balanced"
        yield "ask what another policy would have cost", f"fedge replay {run} --policy {other}"
    if experiment.knowledge is None and experiment.backend != "fleet":
        yield START_FROM, f"fedge knowledge import {run}, then fedge run FILE --set knowledge=auto"


MAX_DIFFERENCES = 4
"""Fields that the table shows of what differs; `--json` has all. A default that keeps a row short."""


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder with run folders.")] = RUNS,
    tags: Tags = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, the newest first: state, accuracy, energy, and what differs between them.

    Example: fedge runs --tag paper
    """
    from experiments.backends.run_list import list_runs

    found = list_runs(folder, tags or ())
    if as_json:
        print_json([{**dataclasses.asdict(one), "folder": str(one.folder)} for one in found])
        return
    if not found:
        print_line(f"no run in {folder}" + (f" with {', '.join(tags)}" if tags else ""))
        return
    build_runs_table(found, str(folder)).print(make_console())
    for one in found:
        if one.problem:
            print_line(f"note: {one.name}: {one.problem}")


def build_runs_table(found: Sequence[ListedRun], title: str) -> Table:
    """Build a table with one row per run."""
    from experiments.report.quantities import energy, format_metric
    from experiments.report.tables import Column, build_table, number_cell, text_cell

    metrics = {one.metric for one in found if one.accuracy is not None} or {"accuracy"}

    tags: list[Column[ListedRun]] = [("tags", lambda one: text_cell(", ".join(one.tags)))]
    columns: list[Column[ListedRun]] = [
        ("run", lambda one: text_cell(one.name)),
        *(tags if any(one.tags for one in found) else []),
        ("differs in", lambda one: text_cell(describe_differences(one))),
        ("state", lambda one: text_cell("unreadable" if one.problem else one.state)),
        ("rounds", lambda one: number_cell(f"{one.rounds}/{one.planned}", one.rounds)),
        (
            "metric" if len(metrics) > 1 else metrics.pop(),
            lambda one: number_cell(format_metric(one.metric, one.accuracy), one.accuracy),
        ),
        ("energy", lambda one: number_cell(energy(one.energy_j if one.rounds else None), one.energy_j)),
    ]
    return build_table("runs", columns, found, title)


def describe_differences(one: ListedRun) -> str:
    """Describe the first fields in which a run differs from the others, such as ``policy maxn, seed 3``."""
    parts = []
    for key, value in list(one.differences.items())[:MAX_DIFFERENCES]:
        owner, _, field = key.rpartition(".")
        parts.append(f"{owner or 'name'} {value}" if field == "name" else f"{field} {value}")
    more = len(one.differences) - MAX_DIFFERENCES
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")
