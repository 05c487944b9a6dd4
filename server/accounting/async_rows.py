"""The books of an asynchronous run: each task's row, from its board's last row on, and each model's row; pure.

A board's rows follow each other without a gap: one begins to count where the one before it ended, so that waiting in
between is counted once, in the row of the task that it waited for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedge.devices import battery
from fedge.devices.battery import BatteryCharge
from fedge.experiment import LateReplySpec
from fedge.telemetry.store_records import ClientRow, EventRow, RoundRow, RoundTrace
from fedge.wire import ReplyMessage
from server.accounting.client_rows import compute_completed_work, work_columns
from server.accounting.client_traces import book_trace
from server.accounting.idle_energy import available_energy_j
from server.accounting.settlement import RoundSettlement, RoundStart, settle_round

COMPARISON_COLUMNS = (
    *("maxn_work_s", "maxn_work_j", "oracle_work_s", "oracle_work_j"),
    *("oracle_energy_j", "maxn_energy_j", "maxn_parked_energy_j"),
)
"""What a task that was not finished has none of: there is nothing to compare it with."""


@dataclass(frozen=True, slots=True)
class TaskStart:
    """How a task began: fleet time, its board's idle power, when the board goes away, and its battery (None: mains).

    The board waited for ``waited_s`` since its last row, which took ``waited_j``.
    """

    at_s: float
    idle_w: float
    leaves_s: float = math.inf
    charge: BatteryCharge | None = None
    waited_s: float = 0.0
    waited_j: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskBooking:
    """A task's row, what in it is worth telling, the battery at its end, and the trace of the row's whole time."""

    row: ClientRow
    events: tuple[EventRow, ...]
    charge: BatteryCharge | None = None
    traces: tuple[RoundTrace, ...] = ()


def compute_task_end_s(start: TaskStart, answer: ReplyMessage, retry_s: float) -> float:
    """When a task is over: with its reply, when the board goes away or its battery is empty, or after ``retry_s``."""
    if answer.report is None:
        return start.at_s + retry_s
    return _settle_task(0, start, answer).until_s[answer.board]


def book_finished_task(version: int, start: TaskStart, answer: ReplyMessage, end_s: float) -> TaskBooking:
    """The row of a task that ended in the making of model ``version``.

    A task without a report failed, and its board is taken to have idled.
    """
    settled = _settle_task(version, start, answer)
    row, events, charge = settled.clients[0], settled.events, settled.charges.get(answer.board)
    if answer.report is None:
        length_s = end_s - start.at_s
        energy_j = available_energy_j(start.idle_w * length_s, length_s, start.charge)
        charge = None if start.charge is None else battery.update_charge(start.charge, energy_j, length_s)
        share = None if charge is None else charge.share
        row = dataclasses.replace(row, end_s=end_s, wait_s=length_s, energy_j=energy_j, charge=share)
        events = (EventRow(end_s, round=version, board=row.board, kind="failed", message=row.error or ""),)
    return _build_booking(row, events=events, charge=charge, start=start, answer=answer)


def book_cancelled_task(version: int, start: TaskStart, answer: ReplyMessage, at_s: float) -> TaskBooking:
    """The row of a task that is under way when the run ends at ``at_s``: what it has cost by then."""
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


def model_row(
    rows: Sequence[ClientRow], start_s: float, end_s: float, tested: tuple[float, float], resting_j: float
) -> RoundRow:
    """The row of a model made from ``rows``, ``start_s`` being when the one before it was ready.

    ``tested`` is its loss and accuracy on the held-out test set. A task's energy is counted whole in the model that it
    ended in; ``resting_j`` is of boards that have no row any more. How the run would have gone at MAXN nobody knows.
    """
    done = [row for row in rows if row.status == "done"]
    return RoundRow(
        round=rows[0].round,
        start_s=start_s,
        end_s=end_s,
        round_s=end_s - start_s,
        deadline_s=None,
        straggler=max(done, key=lambda row: row.end_s).board if done else "",
        selected=len(rows),
        done=len(done),
        late=0,
        failed=sum(row.status == "failed" for row in rows),
        energy_j=sum(row.energy_j for row in rows),
        train_energy_j=sum(row.work_j for row in rows),
        oracle_energy_j=None,
        maxn_round_s=None,
        maxn_energy_j=None,
        maxn_parked_energy_j=None,
        loss=tested[0],
        accuracy=tested[1],
        cancelled=sum(row.status == "cancelled" for row in rows),
        stale=sum(row.staleness is not None and row.staleness > 0 for row in rows),
        resting_energy_j=resting_j,
    )


def _settle_task(version: int, start: TaskStart, answer: ReplyMessage) -> RoundSettlement:
    """The task as a round of its own."""
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
    told = book_trace(row, answer, (start.waited_s, start.waited_j))
    return TaskBooking(_add_prior_wait(row, start), (*events, *told.events), charge, told.traces)


def _add_prior_wait(row: ClientRow, start: TaskStart) -> ClientRow:
    """``row`` with the wait that came before it."""
    return dataclasses.replace(row, wait_s=row.wait_s + start.waited_s, energy_j=row.energy_j + start.waited_j)
