"""State of an asynchronous run between two events: clock, model, clients and running tasks. Mutable."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedge.devices import battery
from fedge.devices.battery import BatteryCharge
from fedge.experiment import FleetBoard
from fedge.telemetry.store_records import ClientRow, EventRow, RoundTrace
from fedge.types import ClientStatus, Front, NamedArrays
from fedge.wire import ClientState
from server.accounting.async_rows import TaskBooking, TaskStart, book_cancelled_task, book_finished_task
from server.accounting.idle_energy import available_energy_j
from server.rounds.client_selection import build_candidates
from server.state.checkpoint import ClientHistory, PendingResult, RunState
from server.state.fleet_availability import FleetAvailability, get_charge


@dataclass(slots=True, eq=False)
class AsyncRunState:
    """State of the asynchronous loop, which changes it in place.

    A client's history records how far its rows reach (``free_at_s``) and the battery at that time. Times are simulated
    times in seconds.

    Attributes:
        reach: Availability of the fleet.
        boards: Fleet entry of every board, by name.
        version: Number of models made so far.
        clock_s: Current time.
        arrays: The current model, by array name.
        states: What each client remembers.
        fronts: Newest Pareto front of each client.
        histories: Each client's part in the run.
        selection: The selector's own state.
        spent_j: Energy used up to the current model, in joules.
        model_ready_s: When the current model was ready.
        in_flight: Running tasks, by client.
        end_times: Heap of the end times of running tasks, with the client's name.
        buffered: Results for the next model, in the order of completion.
        failed_boards: Clients that failed since the last result.
        refusal_reasons: Reasons of consecutive empty selections while no task was running.
        rows: Rows since the current model.
        events: Events since the current model.
        traces: Traces of ``rows``.
    """

    reach: FleetAvailability
    boards: Mapping[str, FleetBoard]
    version: int
    clock_s: float
    arrays: NamedArrays
    states: dict[str, ClientState]
    fronts: dict[str, Front]
    histories: dict[str, ClientHistory]
    selection: dict[str, float]
    spent_j: float
    model_ready_s: float
    in_flight: dict[str, PendingResult] = field(default_factory=dict)
    end_times: list[tuple[float, str]] = field(default_factory=list)
    buffered: list[PendingResult] = field(default_factory=list)
    failed_boards: list[str] = field(default_factory=list)
    refusal_reasons: list[str] = field(default_factory=list)
    rows: list[ClientRow] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    traces: list[RoundTrace] = field(default_factory=list)

    @property
    def next_end_s(self) -> float:
        """Time at which the next task ends; infinity if none is running."""
        return self.end_times[0][0] if self.end_times else math.inf

    @property
    def tasks_begun(self) -> int:
        """Number of tasks started so far."""
        return sum(history.rounds for history in self.histories.values())

    def available(self) -> tuple[str, ...]:
        """Return the clients that can be given a task now."""
        return self._free_boards.available(self._current_state)

    def next_ready_s(self) -> float | None:
        """Return the first time after now at which a free client can be given a task, or None if there is none."""
        now = self._current_state
        later = [
            FleetAvailability((board,), self.reach.presences).next_available_s(now)
            for board in self._free_boards.boards
        ]
        return min((at_s for at_s in later if at_s is not None and at_s > self.clock_s), default=None)

    def build_candidates(self, names: tuple[str, ...]) -> list[ClientStatus]:
        """Return the status of clients for a selector."""
        return build_candidates(self.reach, self._current_state, names)

    def build_task_start(self, board: str, at_s: float) -> TaskStart:
        """Return the state of a client at the start of a task at ``at_s``."""
        leaves_s, waited_s = self.reach.presences[board].available_until_s(at_s), at_s - self.histories[board].free_at_s
        charge, waited_j = self._charge_at(board, at_s), self._waiting_energy_j(board, at_s)
        return TaskStart(
            at_s, idle_w=self._idle_w(board), leaves_s=leaves_s, charge=charge, waited_s=waited_s, waited_j=waited_j
        )

    def begin_task(self, pending: PendingResult) -> None:
        """Record that a task is running."""
        self.in_flight[pending.answer.board] = pending
        heapq.heappush(self.end_times, (pending.end_s, pending.answer.board))

    def finish_next_task(self) -> bool:
        """Finish the task that ends next: advance the clock to its end and store its row.

        Returns:
            True if the task added a result to the buffer.
        """
        self.clock_s, board = heapq.heappop(self.end_times)
        pending = self.in_flight.pop(board)
        start = self.build_task_start(board, pending.start_s)
        booked = book_finished_task(self.version + 1, start, pending.answer, pending.end_s)
        done = booked.row.status == "done"
        if done:
            row = dataclasses.replace(booked.row, staleness=self.version - pending.round)
            booked = dataclasses.replace(booked, row=row)
        self._record_booking(booked)
        self._update_from_result(pending, done)
        return done

    def cancel_in_flight(self) -> float:
        """Book the tasks that are running when the run ends.

        Returns:
            The energy in joules that all boards drew while idle since their last rows.
        """
        for _, board in sorted(self.end_times):
            pending = self.in_flight[board]
            start = self.build_task_start(board, pending.start_s)
            self._record_booking(book_cancelled_task(self.version + 1, start, pending.answer, self.clock_s))
        return sum(self._waiting_energy_j(name, self.clock_s) for name in self.reach.names)

    def publish_model(self, arrays: NamedArrays, spent_j: float) -> None:
        """Set a new model and clear the buffer and the rows of the previous one.

        Args:
            arrays: The new model, by array name.
            spent_j: Energy of the new model's row, in joules.
        """
        self.version, self.arrays, self.model_ready_s = self.version + 1, arrays, self.clock_s
        self.spent_j += spent_j
        self.buffered, self.rows, self.events, self.traces = [], [], [], []

    def to_run_state(self, memory: Mapping[str, NDArray[np.generic]]) -> RunState:
        """Return the state for a checkpoint; only valid right after a new model, when the buffer is empty."""
        return RunState(
            self.version,
            self.clock_s,
            self.arrays,
            memory=memory,
            states=dict(self.states),
            fronts=dict(self.fronts),
            histories=dict(self.histories),
            selection=dict(self.selection),
            spent_j=self.spent_j,
            pending=tuple(self.in_flight[board] for _, board in sorted(self.end_times)),
        )

    @property
    def _current_state(self) -> RunState:
        """The run as the synchronous code sees it, with batteries updated for the time since the last row."""
        charged = {
            board.name: dataclasses.replace(self.histories[board.name], charge_j=charge.left_j)
            for board in self.reach.boards
            if board.name not in self.in_flight and (charge := self._charge_at(board.name, self.clock_s)) is not None
        }
        histories = self.histories | charged if charged else self.histories
        return RunState(
            self.version, self.clock_s, self.arrays, states=self.states, fronts=self.fronts, histories=histories
        )

    @property
    def _free_boards(self) -> FleetAvailability:
        return FleetAvailability(
            tuple(b for b in self.reach.boards if b.name not in self.in_flight), self.reach.presences
        )

    def _idle_w(self, board: str) -> float:
        front = self.fronts.get(board)
        return 0.0 if front is None else front.idle_w

    def _charge_at(self, board: str, at_s: float) -> BatteryCharge | None:
        """Return the battery at ``at_s`` after idling since the last row, or None on mains."""
        charge = self._last_charge(board)
        waited_s = at_s - self.histories[board].free_at_s
        return None if charge is None else battery.update_charge(charge, self._waiting_energy_j(board, at_s), waited_s)

    def _waiting_energy_j(self, board: str, at_s: float) -> float:
        """Return the energy drawn while idle from the last row until ``at_s``, limited by the battery, in joules."""
        waited_s = at_s - self.histories[board].free_at_s
        return available_energy_j(self._idle_w(board) * waited_s, waited_s, self._last_charge(board))

    def _last_charge(self, board: str) -> BatteryCharge | None:
        """Return the battery at the end of the last row, or None on mains."""
        return get_charge(self.boards[board], self.histories[board])

    def _record_booking(self, booked: TaskBooking) -> None:
        """Store a row and record its end in the client's history."""
        row = booked.row
        self.rows.append(row)
        self.events.extend(booked.events)
        self.traces.extend(booked.traces)
        charge_j = None if booked.charge is None else booked.charge.left_j
        known = self.histories[row.board]
        self.histories[row.board] = dataclasses.replace(known, free_at_s=row.end_s, charge_j=charge_j)

    def _update_from_result(self, pending: PendingResult, done: bool) -> None:
        """Update what is known of a client at the end of its task; a failed task only updates since when it is idle."""
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
        self.buffered.append(pending)


def restore_async_state(reach: FleetAvailability, progress: RunState) -> AsyncRunState:
    """Rebuild the state of the loop from a checkpoint."""
    course = AsyncRunState(
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
        model_ready_s=progress.clock_s,
    )
    for pending in progress.pending:
        course.begin_task(pending)
    return course
