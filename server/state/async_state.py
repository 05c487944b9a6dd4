"""State of an asynchronous run between two events, which changes in place, and the accounting of its tasks.

The rows of a client follow each other without a gap: each starts where the client's previous row ended. Waiting time is
therefore counted once, in the row of the task that follows it.
"""

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
from fedge.devices.energy_signal import NO_ENERGY, EnergyUse, book_energy
from fedge.experiment import FleetBoard, LateReplySpec
from fedge.telemetry.client_rows import COMPARISON_COLUMNS, RoundStart
from fedge.telemetry.settlement import RoundSettlement, settle_round
from fedge.telemetry.store_records import ClientRow, EventRow, RoundTrace
from fedge.types import Front, NamedArrays
from fedge.wire import ClientState, ReplyMessage
from server.state.checkpoint import ClientHistory, FleetState, PendingResult, RunState
from server.state.client_traces import book_trace
from server.state.fleet_availability import FleetAvailability, charge_idle_clients, get_charge, get_idle_w


@dataclass(frozen=True, slots=True)
class TaskStart:
    """State of a client at the start of a task; times are simulated.

    Attributes:
        leaves_s: Simulated time at which the client becomes unavailable; infinity if never.
        charge: The battery, or None for a mains-powered board.
        waited_j: Energy drawn in those seconds, in joules.
    """

    at_s: float
    idle_w: float
    leaves_s: float = math.inf
    charge: BatteryCharge | None = None
    waited_s: float = 0.0
    waited_j: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskBooking:
    """Accounting of one task.

    Attributes:
        charge: The battery at the end of the task, or None for a mains-powered board.
        traces: Power trace over the whole time of the row; empty if there is none.
    """

    row: ClientRow
    events: tuple[EventRow, ...]
    charge: BatteryCharge | None = None
    traces: tuple[RoundTrace, ...] = ()


def compute_task_end_s(start: TaskStart, answer: ReplyMessage, retry_s: float) -> float:
    """Return the simulated time at which a task ends.

    It ends with the reply, ``retry_s`` after its start if there is no report, or earlier if the client becomes
    unavailable or its battery runs empty.
    """
    if answer.report is None:
        return start.at_s + retry_s
    return _settle_task(0, start, answer).until_s[answer.board]


def book_finished_task(version: int, start: TaskStart, answer: ReplyMessage, end_s: float) -> TaskBooking:
    """Build the row of a task that ended while model ``version`` was being made.

    A task without a report counts as failed; its board is assumed to have idled until ``end_s``.
    """
    settled = _settle_task(version, start, answer)
    row, events, charge = settled.clients[0], settled.events, settled.charges.get(answer.board)
    if answer.report is None:
        length_s = end_s - start.at_s
        energy_j, charge = battery.draw_idle(start.charge, start.idle_w, length_s)
        share = None if charge is None else charge.share
        row = dataclasses.replace(row, end_s=end_s, wait_s=length_s, energy_j=energy_j, charge=share)
        events = tuple(dataclasses.replace(event, at_s=end_s) for event in events)
    return _build_booking(row, events=events, charge=charge, start=start, answer=answer)


def book_cancelled_task(version: int, start: TaskStart, answer: ReplyMessage, at_s: float) -> TaskBooking:
    """Build the row of a task that is still running when the run ends at ``at_s``, with the time and energy it used
    until then.
    """
    if answer.report is None:
        return book_finished_task(version, start, answer, at_s)
    settled = _settle_task(version, start, dataclasses.replace(answer, cut=True), within_s=at_s - start.at_s)
    row = dataclasses.replace(
        settled.clients[0],
        status="cancelled",
        error="under way when the run ended",
        end_s=at_s,
        deadline_s=None,
        **dict.fromkeys(COMPARISON_COLUMNS),  # type: ignore[arg-type]
    )
    return _build_booking(row, events=(), charge=settled.charges.get(answer.board), start=start, answer=answer)


def _settle_task(
    version: int, start: TaskStart, answer: ReplyMessage, within_s: float | None = None
) -> RoundSettlement:
    """Settle the task as a round with a single client; a client that is cut off is booked for ``within_s`` seconds."""
    board = answer.board
    opening = RoundStart(
        version,
        start.at_s,
        within_s,
        {board: start.idle_w},
        leaves_s={board: start.leaves_s},
        charges={} if start.charge is None else {board: start.charge},
    )
    return settle_round(opening, {board: answer}, LateReplySpec())


def _build_booking(
    row: ClientRow, events: tuple[EventRow, ...], charge: BatteryCharge | None, start: TaskStart, answer: ReplyMessage
) -> TaskBooking:
    """Book a task with the wait before it, which is added to the time and energy of ``row``."""
    traced = book_trace(row, answer, (start.waited_s, start.waited_j))
    row = dataclasses.replace(row, wait_s=row.wait_s + start.waited_s, energy_j=row.energy_j + start.waited_j)
    return TaskBooking(row, (*events, *traced.events), charge, traced.traces)


@dataclass(slots=True, eq=False)
class AsyncRunState:
    """State of the asynchronous loop, which changes it in place.

    A client's history records how far its rows reach (``free_at_s``) and the battery at that time. Times are simulated
    times in seconds.

    Attributes:
        spent_j: Energy used up to the current model, in joules.
        end_times: Heap of the end times of running tasks, with the client's name.
        buffered: Results for the next model, in the order of completion.
        failed_boards: Clients that failed since the last result.
        refusals: Descriptions of consecutive empty selections while no task was running.
    """

    availability: FleetAvailability
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
    refusals: list[str] = field(default_factory=list)
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

    @property
    def dispatches(self) -> int:
        """Number of dispatches so far, which is the highest one stored in a client's history."""
        return max((history.last_round or 0 for history in self.histories.values()), default=0)

    @property
    def idle_clients(self) -> FleetAvailability:
        """Availability of the clients without a running task."""
        return self.availability.exclude(self.in_flight)

    def next_ready_s(self) -> float | None:
        """Return the first time after now at which an idle client can be given a task, or None if there is none."""
        times_s = self.idle_clients.next_times_s(self.observe_fleet()).values()
        return min((at_s for at_s in times_s if at_s > self.clock_s), default=None)

    def observe_fleet(self) -> FleetState:
        """Return the fleet now, with the batteries of idle clients updated for the time since their last row."""
        return self._charge_idle()[0]

    def build_task_start(self, board: str, at_s: float) -> TaskStart:
        """Return the state of a client at the start of a task at ``at_s``."""
        history, idle_w = self.histories[board], get_idle_w(self.fronts, board)
        waited_s = at_s - history.free_at_s
        waited_j, charge = battery.draw_idle(get_charge(self.boards[board], history), idle_w, waited_s)
        return TaskStart(
            at_s,
            idle_w=idle_w,
            leaves_s=self.availability.presences[board].available_until_s(at_s),
            charge=charge,
            waited_s=waited_s,
            waited_j=waited_j,
        )

    def begin_task(self, pending: PendingResult) -> None:
        """Record that a task is running."""
        self.in_flight[pending.answer.board] = pending
        heapq.heappush(self.end_times, (pending.end_s, pending.answer.board))

    def finish_next_task(self) -> bool:
        """Finish the task that ends next: advance the clock to its end and store its row.

        For the selector, the client took part until the latest dispatch.

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
        self.histories[board] = dataclasses.replace(self.histories[board], last_round=self.dispatches)
        return done

    def cancel_in_flight(self) -> EnergyUse:
        """Book the tasks that are running when the run ends; return the energy of all idle boards.

        It covers the time since their last rows.
        """
        for _, board in sorted(self.end_times):
            pending = self.in_flight[board]
            start = self.build_task_start(board, pending.start_s)
            self._record_booking(book_cancelled_task(self.version + 1, start, pending.answer, self.clock_s))
        self.in_flight.clear()
        self.end_times.clear()
        return self._charge_idle()[1]

    def book_rows(self) -> EnergyUse:
        """Return the energy of the rows since the last model; of the waiting before a task the cost is that of it."""
        uses = (
            book_energy(self.availability.signal, {row.board: row.energy_j}, row.start_s, row.end_s)
            for row in self.rows
        )
        return sum(uses, NO_ENERGY)

    def publish_model(self, arrays: NamedArrays, spent_j: float) -> None:
        """Set a new model, whose row has the energy ``spent_j``, and clear the buffer and the rows of the last one."""
        self.version, self.arrays, self.model_ready_s = self.version + 1, arrays, self.clock_s
        self.spent_j += spent_j
        self.buffered, self.rows, self.events, self.traces = [], [], [], []

    def to_run_state(self, memory: Mapping[str, NDArray[np.generic]]) -> RunState:
        """Return the state for a checkpoint; only valid right after a new model, when the buffer is empty."""
        fleet = FleetState(
            self.clock_s, states=dict(self.states), fronts=dict(self.fronts), histories=dict(self.histories)
        )
        return RunState(
            self.version,
            fleet,
            self.arrays,
            memory=memory,
            selection=dict(self.selection),
            spent_j=self.spent_j,
            pending=tuple(self.in_flight[board] for _, board in sorted(self.end_times)),
        )

    def _charge_idle(self) -> tuple[FleetState, EnergyUse]:
        """Return the fleet now, and the energy that idle clients drew since their last rows."""
        fleet = FleetState(0.0, states=self.states, fronts=self.fronts, histories=self.histories)
        return charge_idle_clients(self.availability, fleet, self.idle_clients.names, self.clock_s)

    def _record_booking(self, booked: TaskBooking) -> None:
        """Store a row and record its end in the client's history."""
        row = booked.row
        self.rows.append(row)
        self.events.extend(booked.events)
        self.traces.extend(booked.traces)
        charge_j = None if booked.charge is None else booked.charge.left_j
        known = self.histories[row.board]
        self.histories[row.board] = dataclasses.replace(known, free_at_s=row.end_s, charge_j=charge_j)
        if row.left_out:
            self.histories = self.availability.leave_out([row], self.histories)

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


def restore_async_state(availability: FleetAvailability, state: RunState) -> AsyncRunState:
    """Rebuild the state of the loop from a checkpoint."""
    fleet = state.fleet
    restored = AsyncRunState(
        availability,
        {board.name: board for board in availability.boards},
        version=state.round,
        clock_s=fleet.clock_s,
        arrays=state.arrays,
        states=dict(fleet.states),
        fronts=dict(fleet.fronts),
        histories=dict(fleet.histories),
        selection=dict(state.selection),
        spent_j=state.spent_j,
        model_ready_s=fleet.clock_s,
    )
    for pending in state.pending:
        restored.begin_task(pending)
    return restored
