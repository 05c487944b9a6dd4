"""``fedge status``: the state of a run, what went wrong in it, and what can be done next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments.cli.command_options import AsJson, Run
from experiments.cli.command_output import make_console, print_json, print_line

if TYPE_CHECKING:
    from fedge.experiment import Experiment
    from fedge.telemetry.store_records import ClientRow

QUERY = "select board, sum(energy_j) from clients group by board"
START_FROM = "start the next run from what this one measured"
MAX_REASONS = 3
"""Reasons of failures that are listed, the most frequent first."""


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
        from experiments.report.run.live_terminal import summary_table

        make_console().print(summary_table(dict(found.summary)))
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
    from fedge.telemetry.store_reader import read_rows
    from fedge.telemetry.store_records import ClientRow, RoundRow

    experiment = launcher.load_saved_experiment(folder)
    rounds, clients = read_rows(folder, RoundRow), read_rows(folder, ClientRow)
    summary = launcher.summarise_rows(experiment, folder)
    state = find_state(folder, experiment, rounds)
    return RunStatus(
        experiment.name,
        state=state,
        rounds=len(rounds),
        planned=experiment.rounds,
        summary=summary,
        problems=tuple(_list_problems(summary, clients)),
        next_steps=tuple(_list_next_steps(state, folder, experiment)),
    )


def _list_problems(summary: Mapping[str, Any], clients: Sequence[ClientRow]) -> Iterator[str]:
    reasons = Counter(row.error.splitlines()[0] for row in clients if row.status == "failed" and row.error)
    for reason, count in reasons.most_common(MAX_REASONS):
        yield f"{count} x failed: {reason}"
    if summary["late"]:
        yield f"{summary['late']} replies came after the deadline (docs/explanation/stragglers.md)"
    if summary["infeasible"]:
        yield f"{summary['infeasible']} times no mode met the goal: a longer deadline or max_slowdown allows more"
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
