"""The books of an asynchronous run: each task's row, from its board's last row on, and each model's row; pure.

A board's rows follow each other without a gap: one begins to count where the one before it ended, so that waiting in
between is counted once, in the row of the task that it waited for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedge.experiment import LateSpec
from fedge.fleetsim import battery
from fedge.fleetsim.battery import Charge
from fedge.telemetry.rows import ClientRow, EventRow, RoundRow, Traced
from fedge.wire import Answer
from server.accounting import Opening, Settled, settle
from server.board_rows import spent_by, spent_columns
from server.resting import payable_j
from server.tracing import told_by

UNCOMPARED = (
    *("maxn_work_s", "maxn_work_j", "oracle_work_s", "oracle_work_j"),
    *("oracle_energy_j", "maxn_energy_j", "maxn_parked_energy_j"),
)
"""What a task that was not finished has none of: there is nothing to compare it with."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a task began: fleet time, its board's idle power, when the board goes away, and its battery (None: mains).

    The board waited for ``waited_s`` since its last row, which took ``waited_j``.
    """

    at_s: float
    idle_w: float
    leaves_s: float = math.inf
    charge: Charge | None = None
    waited_s: float = 0.0
    waited_j: float = 0.0


@dataclass(frozen=True, slots=True)
class Booked:
    """A task's row, what in it is worth telling, the battery at its end, and the trace of the row's whole time."""

    row: ClientRow
    events: tuple[EventRow, ...]
    charge: Charge | None = None
    traces: tuple[Traced, ...] = ()


def ends_s(start: Start, answer: Answer, retry_s: float) -> float:
    """When a task is over: with its reply, when the board goes away or its battery is empty, or after ``retry_s``."""
    if answer.report is None:
        return start.at_s + retry_s
    return _settled(0, start, answer).until_s[answer.board]


def landed(version: int, start: Start, answer: Answer, end_s: float) -> Booked:
    """The row of a task that ended in the making of model ``version``.

    A task without a report failed, and its board is taken to have idled.
    """
    settled = _settled(version, start, answer)
    row, events, charge = settled.clients[0], settled.events, settled.charges.get(answer.board)
    if answer.report is None:
        length_s = end_s - start.at_s
        energy_j = payable_j(start.idle_w * length_s, length_s, start.charge)
        charge = None if start.charge is None else battery.after(start.charge, energy_j, length_s)
        share = None if charge is None else charge.share
        row = dataclasses.replace(row, end_s=end_s, wait_s=length_s, energy_j=energy_j, charge=share)
        events = (EventRow(end_s, version, row.board, "failed", row.error or ""),)
    return _booked(row, events, charge, start, answer)


def cancelled(version: int, start: Start, answer: Answer, at_s: float) -> Booked:
    """The row of a task that is under way when the run ends at ``at_s``: what it has cost by then."""
    if answer.report is None:
        return landed(version, start, answer, at_s)
    row, length_s = _settled(version, start, answer).clients[0], at_s - start.at_s
    spent = spent_by(answer.report, length_s)
    energy_j = spent.work_j + spent.radio_j + row.idle_w * (length_s - spent.work_s)
    charge = None if start.charge is None else battery.after(start.charge, energy_j, length_s)
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
        **spent_columns(answer.report, spent),
        **dict.fromkeys(UNCOMPARED),  # type: ignore[arg-type]
    )
    return _booked(cut, (), charge, start, answer)


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


def _settled(version: int, start: Start, answer: Answer) -> Settled:
    """The task as a round of its own."""
    board = answer.board
    opening = Opening(
        version,
        start.at_s,
        None,
        {board: start.idle_w},
        leaves_s={board: start.leaves_s},
        charges={} if start.charge is None else {board: start.charge},
    )
    return settle(opening, {board: answer}, LateSpec())


def _booked(
    row: ClientRow, events: tuple[EventRow, ...], charge: Charge | None, start: Start, answer: Answer
) -> Booked:
    told = told_by(row, answer, (start.waited_s, start.waited_j))
    return Booked(_from(row, start), (*events, *told.events), charge, told.traces)


def _from(row: ClientRow, start: Start) -> ClientRow:
    """``row`` with the wait that came before it."""
    return dataclasses.replace(row, wait_s=row.wait_s + start.waited_s, energy_j=row.energy_j + start.waited_j)
