"""Accounting of an asynchronous run: one row per task. Pure functions.

The rows of a client follow each other without a gap: each starts where the client's previous row ended. Waiting time is
therefore counted once, in the row of the task that follows it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from fedge.devices import battery
from fedge.devices.battery import BatteryCharge, available_energy_j
from fedge.experiment import LateReplySpec
from fedge.telemetry.client_rows import COMPARISON_COLUMNS, RoundStart, compute_completed_work, work_columns
from fedge.telemetry.settlement import RoundSettlement, settle_round
from fedge.telemetry.store_records import ClientRow, EventRow, RoundTrace
from fedge.wire import ReplyMessage
from server.accounting.client_traces import book_trace


@dataclass(frozen=True, slots=True)
class TaskStart:
    """State of a client at the start of a task; times are simulated.

    Attributes:
        leaves_s: Simulated time at which the client becomes unavailable; infinity if never.
        charge: The battery, or None for a mains-powered board.
        waited_s: Seconds since the client's last row.
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
        energy_j = available_energy_j(start.idle_w * length_s, length_s, start.charge)
        charge = None if start.charge is None else battery.update_charge(start.charge, energy_j, length_s)
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
    row, length_s = _settle_task(version, start, answer).clients[0], at_s - start.at_s
    spent = compute_completed_work(answer.report, length_s)
    energy_j = spent.work_j + spent.radio_j + row.idle_w * (length_s - spent.work_s)
    charge = None if start.charge is None else battery.update_charge(start.charge, energy_j, length_s)
    cut = dataclasses.replace(
        row,
        status="cancelled",
        error="under way when the run ended",
        end_s=at_s,
        wait_s=0.0,
        energy_j=energy_j,
        loss=None,
        accuracy=None,
        staleness=None,
        charge=None if charge is None else charge.share,
        **work_columns(answer.report, spent),
        **dict.fromkeys(COMPARISON_COLUMNS),  # type: ignore[arg-type]
    )
    return _build_booking(cut, events=(), charge=charge, start=start, answer=answer)


def _settle_task(version: int, start: TaskStart, answer: ReplyMessage) -> RoundSettlement:
    """Settle the task as a round with a single client."""
    board = answer.board
    opening = RoundStart(
        version,
        start.at_s,
        None,
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
