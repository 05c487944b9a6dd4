"""The parts of a run that both loops share, and its start with the initial model and each client's prior front."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedge.errors import RunFailed
from fedge.experiment import Experiment, choose_training_device
from fedge.knowledge.recall import NO_KNOWLEDGE, RunKnowledge
from fedge.protocols import LearningTask
from fedge.telemetry.store import Row
from fedge.telemetry.store_records import NOT_REPRODUCIBLE, WAITING, EventRow
from server.aggregation.result_merger import describe_failures
from server.rounds.client_requests import FleetRequests, find_narrow_shapes
from server.state import checkpoint
from server.state.board_history import note_recorded
from server.state.checkpoint import ClientHistory, FleetState, RunState
from server.transport.client_port import NO_OVERDUE_REPLIES, ClientPort, OverdueReplies

MAX_START_WAIT_S = 300.0
"""Longest wait for boards that other runs hold. A default: it outlasts the claims of a run that has just died."""
MIN_START_WAIT_S = 1.0
"""Shortest wait before such boards are asked again."""
TRAINED_ON_CUDA = "the clients train on CUDA: losses, accuracies and model are not the same bits in another run"


class RowSink(Protocol):
    """Destination of rows."""

    def append(self, rows: Iterable[Row]) -> None: ...


def start_run(
    requests: FleetRequests,
    task: LearningTask,
    tables: RowSink,
    names: Sequence[str],
    *,
    overdue: OverdueReplies = NO_OVERDUE_REPLIES,
) -> RunState:
    """Build the state of a run before its first round; a client that fails is stored as an event.

    While other runs hold the clients, so that none is ready, it waits for the first that becomes free.

    Raises:
        RunFailed: All clients fail.
    """
    if choose_training_device(requests.experiment) != "cpu":
        tables.append([EventRow(0.0, round=0, board=None, kind=NOT_REPRODUCIBLE, message=TRAINED_ON_CUDA)])
    arrays = task.initial_arrays(requests.experiment.seed)
    left_s, waited_for = MAX_START_WAIT_S, ""
    while True:
        answers = {name: reply.answer for name, reply in requests.request_fronts(names, arrays).items()}
        failed = {name: answers[name].error or "no front" for name in names if answers[name].front is None}
        held_s = min((held_s for name in failed if (held_s := answers[name].held_s)), default=0.0)
        if len(failed) < len(names) or not held_s or left_s <= 0:
            break
        holders = dict.fromkeys(answer.held_by for answer in answers.values() if answer.held_s)
        runs = ", ".join(f'"{run}"' for run in holders)
        if runs != waited_for:
            message = f"no board is free: they work for run {runs}; waiting for at most {left_s:.0f} s"
            tables.append([EventRow(0.0, round=0, board=None, kind=WAITING, message=message)])
            waited_for = runs
        left_s -= max(MIN_START_WAIT_S, overdue.wait(min(max(held_s, MIN_START_WAIT_S), left_s)))
    tables.append(EventRow(0.0, round=0, board=name, kind="failed", message=error) for name, error in failed.items())
    if len(failed) == len(names):
        raise RunFailed(f"no board is ready: {describe_failures(failed)}")
    tables.append(note_recorded(FleetState(0.0), 0, answers.values()))
    fronts = {name: front for name in names if (front := answers[name].front) is not None}
    histories = {name: ClientHistory(samples=answers[name].samples) for name in names}
    return RunState(0, FleetState(0.0, fronts=fronts, histories=histories), arrays)


@dataclass(frozen=True, slots=True, eq=False)
class RunLoop:
    """The parts of a run, whose rounds a subclass runs.

    Attributes:
        checkpoints: Folder of the checkpoints; None keeps nothing on disk.
        overdue: Replies of real boards that the server stopped waiting for, and boards that other runs hold.
        knowledge: What the clients recall of earlier runs.
    """

    experiment: Experiment
    port: ClientPort
    task: LearningTask
    tables: RowSink
    checkpoints: Path | None = field(default=None, kw_only=True)
    on_round: Callable[[int], None] = field(default=lambda _: None, kw_only=True)
    overdue: OverdueReplies = field(default=NO_OVERDUE_REPLIES, kw_only=True)
    knowledge: RunKnowledge = field(default=NO_KNOWLEDGE, kw_only=True)
    encoder: checkpoint.RecordEncoder = field(default_factory=checkpoint.RecordEncoder, init=False)

    @property
    def requests(self) -> FleetRequests:
        """Return the sender of the run's requests."""
        narrow = find_narrow_shapes(self.experiment, self.task)
        return FleetRequests(self.experiment, self.port, narrow, self.knowledge)

    def start(self, names: Sequence[str]) -> RunState:
        """Return the state before the first round; raises ``RunFailed`` if all clients fail."""
        return start_run(self.requests, self.task, self.tables, names, overdue=self.overdue)

    def finish_round(self, state: RunState) -> None:
        """Keep the state after a round, and tell who listens."""
        if self.checkpoints is not None:
            checkpoint.save(self.checkpoints, state, self.encoder)
        self.on_round(state.round)
