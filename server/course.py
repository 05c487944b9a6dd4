"""Where an asynchronous run stands between two events: the clock, the model, the boards, what is under way; mutable."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedge.experiment import Board
from fedge.fleetsim import battery
from fedge.fleetsim.battery import Charge
from fedge.telemetry.rows import ClientRow, EventRow, Traced
from fedge.types import Client, Front, NamedArrays
from fedge.wire import BoardState
from server.async_books import Booked, Start, cancelled, landed
from server.checkpoint import History, Pending, Progress
from server.reach import Reach, charge_of
from server.resting import payable_j
from server.selecting import clients_of


@dataclass(slots=True, eq=False)
class Course:
    """The asynchronous loop's own record, changed by it as it goes on; ``version`` models were made so far.

    A board's history says up to when its rows reach (``free_at_s``) and what its battery held then.
    """

    reach: Reach
    boards: Mapping[str, Board]
    version: int
    clock_s: float
    arrays: NamedArrays
    states: dict[str, BoardState]
    fronts: dict[str, Front]
    histories: dict[str, History]
    selection: dict[str, float]
    spent_j: float
    opened_s: float
    """When the present model was ready."""
    flying: dict[str, Pending] = field(default_factory=dict)
    ends: list[tuple[float, str]] = field(default_factory=list)
    """A heap of when the tasks under way end."""
    waiting: list[Pending] = field(default_factory=list)
    """The buffer, in the order of completion; empty whenever a model is new."""
    failed: list[str] = field(default_factory=list)
    """Boards that failed since the last result."""
    refused: list[str] = field(default_factory=list)
    """Why the selector chose nobody while no task was under way, since it last chose somebody."""
    rows: list[ClientRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    traces: list[Traced] = field(default_factory=list)
    """Those of ``rows``."""

    @property
    def next_s(self) -> float:
        """When the next task ends; infinity when none is under way."""
        return self.ends[0][0] if self.ends else math.inf

    @property
    def asked(self) -> int:
        """Tasks that were begun."""
        return sum(history.rounds for history in self.histories.values())

    def available(self) -> tuple[str, ...]:
        """The boards that can be given a task now."""
        return self._free.available(self._now)

    def next_ready_s(self) -> float | None:
        """When, after now, the next free board can be given a task; None when none ever comes."""
        now = self._now
        later = [Reach((board,), self.reach.presences).next_s(now) for board in self._free.boards]
        return min((at_s for at_s in later if at_s is not None and at_s > self.clock_s), default=None)

    def clients(self, names: tuple[str, ...]) -> list[Client]:
        """The boards as a selector sees them."""
        return clients_of(self.reach, self._now, names)

    def start(self, board: str, at_s: float) -> Start:
        """How a task of ``board`` begins at ``at_s``."""
        leaves_s, waited_s = self.reach.presences[board].until_s(at_s), at_s - self.histories[board].free_at_s
        charge, waited_j = self._charge(board, at_s), self._waited_j(board, at_s)
        return Start(at_s, self._idle_w(board), leaves_s, charge, waited_s, waited_j)

    def take_off(self, pending: Pending) -> None:
        """A task is under way."""
        self.flying[pending.answer.board] = pending
        heapq.heappush(self.ends, (pending.end_s, pending.answer.board))

    def land(self) -> bool:
        """The task that ends next: the clock goes there, its row is kept; whether there is a result in the buffer."""
        self.clock_s, board = heapq.heappop(self.ends)
        pending = self.flying.pop(board)
        start = self.start(board, pending.start_s)
        booked = landed(self.version + 1, start, pending.answer, pending.end_s)
        done = booked.row.status == "done"
        if done:
            row = dataclasses.replace(booked.row, staleness=self.version - pending.round)
            booked = dataclasses.replace(booked, row=row)
        self._book(booked)
        self._learn(pending, done)
        return done

    def close(self) -> float:
        """The rows of what is under way when the run ends; gives the joules of all boards from their last row on."""
        for _, board in sorted(self.ends):
            pending = self.flying[board]
            start = self.start(board, pending.start_s)
            self._book(cancelled(self.version + 1, start, pending.answer, self.clock_s))
        return sum(self._waited_j(name, self.clock_s) for name in self.reach.names)

    def publish(self, arrays: NamedArrays, spent_j: float) -> None:
        """A new model is there; the next one's buffer and rows are empty."""
        self.version, self.arrays, self.opened_s = self.version + 1, arrays, self.clock_s
        self.spent_j += spent_j
        self.waiting, self.rows, self.events, self.traces = [], [], [], []

    def progress(self, memory: Mapping[str, NDArray[np.generic]]) -> Progress:
        """The run as a checkpoint keeps it, when a model is new."""
        return Progress(
            self.version,
            self.clock_s,
            self.arrays,
            memory=memory,
            states=dict(self.states),
            fronts=dict(self.fronts),
            histories=dict(self.histories),
            selection=dict(self.selection),
            spent_j=self.spent_j,
            pending=tuple(self.flying[board] for _, board in sorted(self.ends)),
        )

    @property
    def _now(self) -> Progress:
        """What is known now, as synchronous rounds know it: batteries as they are, after waiting."""
        charged = {
            board.name: dataclasses.replace(self.histories[board.name], charge_j=charge.left_j)
            for board in self.reach.boards
            if board.name not in self.flying and (charge := self._charge(board.name, self.clock_s)) is not None
        }
        histories = self.histories | charged if charged else self.histories
        return Progress(
            self.version, self.clock_s, self.arrays, states=self.states, fronts=self.fronts, histories=histories
        )

    @property
    def _free(self) -> Reach:
        return Reach(tuple(b for b in self.reach.boards if b.name not in self.flying), self.reach.presences)

    def _idle_w(self, board: str) -> float:
        front = self.fronts.get(board)
        return 0.0 if front is None else front.idle_w

    def _charge(self, board: str, at_s: float) -> Charge | None:
        """Its battery at ``at_s``, having waited since its last row; None on mains."""
        charge = self._kept(board)
        waited_s = at_s - self.histories[board].free_at_s
        return None if charge is None else battery.after(charge, self._waited_j(board, at_s), waited_s)

    def _waited_j(self, board: str, at_s: float) -> float:
        """What it drew until ``at_s``, waiting since its last row, as far as its battery went."""
        waited_s = at_s - self.histories[board].free_at_s
        return payable_j(self._idle_w(board) * waited_s, waited_s, self._kept(board))

    def _kept(self, board: str) -> Charge | None:
        """Its battery at the end of its last row; None on mains."""
        return charge_of(self.boards[board], self.histories[board])

    def _book(self, booked: Booked) -> None:
        """Keep a row, which reaches up to its end."""
        row = booked.row
        self.rows.append(row)
        self.events.extend(booked.events)
        self.traces.extend(booked.traces)
        charge_j = None if booked.charge is None else booked.charge.left_j
        known = self.histories[row.board]
        self.histories[row.board] = dataclasses.replace(known, free_at_s=row.end_s, charge_j=charge_j)

    def _learn(self, pending: Pending, done: bool) -> None:
        """What a task's end tells of its board; of one that came to nothing that it rests since, and why it failed."""
        board, answer, report = pending.answer.board, pending.answer, pending.answer.report
        if not done or report is None:
            state = self.states.get(board) if report is not None or answer.state is None else answer.state
            if state is not None:
                self.states[board] = dataclasses.replace(state, rested_at_s=pending.end_s)
            return
        if answer.state is not None:
            self.states[board] = answer.state
        if answer.front is not None:
            self.fronts[board] = answer.front
        self.histories[board] = dataclasses.replace(
            self.histories[board],
            samples=report.samples,
            loss=pending.trained.loss,
            accuracy=pending.trained.accuracy,
            busy_s=report.busy_s,
        )
        self.waiting.append(pending)


def course_of(reach: Reach, progress: Progress) -> Course:
    """The course as it was when ``progress`` was kept."""
    course = Course(
        reach,
        {board.name: board for board in reach.boards},
        version=progress.round,
        clock_s=progress.clock_s,
        arrays=progress.arrays,
        states=dict(progress.states),
        fronts=dict(progress.fronts),
        histories=dict(progress.histories),
        selection=dict(progress.selection),
        spent_j=progress.spent_j,
        opened_s=progress.clock_s,
    )
    for pending in progress.pending:
        course.take_off(pending)
    return course
