"""Settlement of a round: the rows of its clients and of the fleet, and what becomes of each client. Pure functions.

Who is late and what each client has spent follows from the rules of ``round_columns``, one row per client by name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedge.devices.battery import BatteryCharge, stack_batteries
from fedge.experiment import LateReplySpec
from fedge.telemetry.client_rows import ClientPart, RoundStart, client_row, failed_row
from fedge.telemetry.round_columns import (
    SettledColumns,
    WorkEnds,
    compute_cutoff_s,
    deadline_with_grace_s,
    find_ends,
    get_completed_work,
    settle_columns,
    stack_reports,
)
from fedge.telemetry.store_records import LEFT_OUT, MEMORY, ClientRow, EventRow, RoundRow, Status
from fedge.types import EvaluationReport, RoundReport
from fedge.wire import ReplyMessage

LEFT_OUT_MESSAGE = (
    "not asked again, and no deadline waits for it, until its memory, the batch size, the network or what "
    "workload.memory may lower changes"
)


@dataclass(frozen=True, slots=True)
class RoundSettlement:
    """The end of a round and its rows, before aggregation. Times are simulated times in seconds.

    Attributes:
        clients: One row per client asked.
        maxn_round_s: Length of the round if every client that reported ran at MAXN; None if a truth is unknown.
        joining: Late clients whose reply joins a later round.
        until_s: When each client was done or was stopped; the end of the round for one that did not report.
        lost: Clients that became unavailable or ran out of battery before they could reply, or whose reply was refused.
    """

    start_s: float
    end_s: float
    accepted: tuple[str, ...]
    clients: tuple[ClientRow, ...]
    events: tuple[EventRow, ...]
    maxn_round_s: float | None
    joining: tuple[str, ...] = ()
    until_s: Mapping[str, float] = field(default_factory=dict)
    charges: Mapping[str, BatteryCharge] = field(default_factory=dict)
    lost: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        """Energy of all clients asked, in joules."""
        return sum(row.energy_j for row in self.clients)


@dataclass(frozen=True, slots=True)
class EvaluationFigures:
    """Figures of an evaluation by clients: the columns of ``RoundRow`` with these names."""

    client_loss: float | None = None
    client_accuracy: float | None = None
    evaluation_s: float | None = None
    evaluation_energy_j: float | None = None


NOT_EVALUATED = EvaluationFigures()


def settle_round(opening: RoundStart, answers: Mapping[str, ReplyMessage], late: LateReplySpec) -> RoundSettlement:
    """Classify every client of a round and build its row.

    Lateness follows from the reported durations, never from when a message arrived, so that it is reproducible.
    """
    names = sorted(answers)
    cut = {board for board in names if answers[board].cut}
    refused = {board for board in names if answers[board].is_refused}
    settled = settle_reports(opening, {board: answers[board].report for board in names}, late, cut=cut, refused=refused)
    round_s, statuses = settled.verdict.round_s, settled.verdict.list_statuses()
    parts = {
        board: _build_part(opening, answers[board], settled, row=row, status=statuses[row])
        for row, board in enumerate(names)
    }
    reports = {board: report for board in names if (report := answers[board].report) is not None}
    maxn_s = _maxn_round_s(reports)
    rows = tuple(
        client_row(opening, part, maxn_s, reports[board])
        if board in reports
        else failed_row(opening, part, answers[board])
        for board, part in parts.items()
    )
    return RoundSettlement(
        opening.start_s,
        end_s=opening.start_s + round_s,
        accepted=tuple(board for board, part in parts.items() if part.status == "done"),
        clients=rows,
        events=tuple(event for row in rows for event in _list_events(row, reports.get(row.board))),
        maxn_round_s=maxn_s,
        joining=tuple(board for board, joins in zip(names, settled.joining.tolist(), strict=True) if joins),
        until_s={board: opening.start_s + part.until_s for board, part in parts.items()},
        charges={board: part.charge for board, part in parts.items() if part.charge is not None},
        lost=tuple(board for board, lost in zip(names, settled.lost.tolist(), strict=True) if lost),
    )


def settle_reports(
    opening: RoundStart,
    reports: Mapping[str, RoundReport | EvaluationReport | None],
    late: LateReplySpec,
    cut: Collection[str] = (),
    refused: Collection[str] = (),
) -> SettledColumns:
    """Settle reports by board in columns, one row each in their order.

    A board without a report is taken to have idled. It failed, unless it is one of ``cut``, real boards that were cut
    off. One of ``refused`` fails when its reply is there, and is charged for its work.
    """
    idle_w = [
        report.idle_w if isinstance(report, RoundReport) else opening.idle_w.get(board, 0.0)
        for board, report in reports.items()
    ]
    work = stack_reports(list(reports.values()), idle_w)
    batteries = stack_batteries([opening.charges.get(board) for board in reports])
    away_s = np.array([opening.leaves_s.get(board, math.inf) - opening.start_s for board in reports])
    ends = find_ends(work, away_s, batteries)
    stopped = np.array([board in cut for board in reports], dtype=np.bool_)
    silent = np.array([report is None for report in reports.values()], dtype=np.bool_)
    at_s = np.where(stopped, np.inf, np.where(silent, np.nan, ends.at_s))
    known = ~(stopped | silent)
    without_result = ends.error | np.array([board in refused for board in reports], dtype=np.bool_)
    ends = WorkEnds(at_s, error=without_result & known, flat=ends.flat & known)
    return settle_columns(work, batteries, ends, late=late, deadline_s=opening.deadline_s, wanted=opening.wanted)


def describe_loss(ends: WorkEnds, row: int) -> str | None:
    """Describe why a client ended before its reply; None if it did not."""
    if not ends.error[row]:
        return None
    return f"{'its battery was empty' if ends.flat[row] else 'went away'} after {ends.at_s[row]:.1f} s"


def _build_part(
    opening: RoundStart, answer: ReplyMessage, settled: SettledColumns, row: int, status: Status
) -> ClientPart:
    """Build one client's part in the round from its row of the columns."""
    report, error, round_s = answer.report, answer.error, settled.verdict.round_s
    until_s = float(settled.until_s[row])
    whole = False
    replied = report is not None and settled.ends.at_s[row] >= report.busy_s
    loss = answer.error if answer.is_refused and replied else describe_loss(settled.ends, row)
    if report is not None and not answer.cut:
        if status == "done":
            whole = report.steps >= report.asked_steps
        elif status == "failed":
            whole = replied and report.steps >= report.asked_steps
            error = loss
        elif status == "cancelled":
            error = f"stopped after {round_s:.1f} s: enough others were done"
        else:
            whole = bool(settled.joining[row])
            error = f"took {settled.ends.at_s[row]:.1f} s; the cut-off was {round_s:.1f} s"
            if until_s > round_s:
                error += f"; {loss or 'its result joins a later round'}"
    charge = opening.charges.get(answer.board)
    return ClientPart(
        status,
        error=error,
        until_s=until_s,
        round_s=round_s,
        whole=whole,
        energy_j=float(settled.energy_j[row]),
        spent=None if report is None else get_completed_work(report, settled.spent, row),
        charge=None if charge is None else BatteryCharge(charge.spec, float(settled.batteries.left_j[row])),
    )


def round_row(
    settled: RoundSettlement,
    tested: tuple[float, float] | None,
    *,
    available: int | None = None,
    stale: int = 0,
    resting_j: float | None = None,
    cost: float | None = None,
    evaluated: EvaluationFigures = NOT_EVALUATED,
) -> RoundRow:
    """Build the fleet's row of a round; see ``fleet_row``.

    ``tested`` are loss and accuracy of the new model on the held-out test set, ``stale`` the late results that were
    merged, ``cost`` is that of all energy under the signal.
    """
    rows, span = settled.clients, {"start_s": settled.start_s, "end_s": settled.end_s}
    row = fleet_row(rows, **span, tested=tested, stale=stale, resting_j=resting_j, cost=cost)
    return dataclasses.replace(
        row,
        available=available,
        oracle_energy_j=_sum_comparison(rows, "oracle_energy_j"),
        maxn_round_s=settled.maxn_round_s,
        maxn_energy_j=_sum_comparison(rows, "maxn_energy_j"),
        maxn_parked_energy_j=_sum_comparison(rows, "maxn_parked_energy_j"),
        **dataclasses.asdict(evaluated),
    )


def fleet_row(
    rows: Sequence[ClientRow],
    *,
    start_s: float,
    end_s: float,
    tested: tuple[float, float] | None,
    stale: int,
    resting_j: float | None,
    cost: float | None,
) -> RoundRow:
    """Build the fleet's row from the client rows of a round or model, without the comparison with MAXN and oracle."""
    done = [row for row in rows if row.status == "done"]
    return RoundRow(
        round=rows[0].round,
        start_s=start_s,
        end_s=end_s,
        round_s=end_s - start_s,
        deadline_s=rows[0].deadline_s,
        straggler=max(done, key=lambda row: row.end_s).board if done else "",
        selected=len(rows),
        done=len(done),
        late=sum(row.status == "late" for row in rows),
        failed=sum(row.status == "failed" for row in rows),
        energy_j=sum(row.energy_j for row in rows),
        train_energy_j=sum(row.work_j for row in rows),
        oracle_energy_j=None,
        maxn_round_s=None,
        maxn_energy_j=None,
        maxn_parked_energy_j=None,
        loss=None if tested is None else tested[0],
        accuracy=None if tested is None else tested[1],
        cancelled=sum(row.status == "cancelled" for row in rows),
        stale=stale,
        resting_energy_j=resting_j,
        refused=sum(row.is_refused for row in rows),
        energy_cost=cost,
    )


def _maxn_round_s(reports: Mapping[str, RoundReport]) -> float | None:
    """Return the length of the round at MAXN in seconds, or None if the truth of a client is unknown."""
    fronts = [report.true_front for report in reports.values()]
    known = [front.link_s + front.maxn.work_s for front in fronts if front is not None]
    return max(known) if known and len(known) == len(fronts) else None


def _sum_comparison(rows: Sequence[ClientRow], column: str) -> float | None:
    """Return the boards' sum of a column of energies to compare with; None if one is unknown.

    A board that failed without any work, in which nothing could be saved, counts with what it drew.
    """
    took_part = [row for row in rows if row.status != "failed" or row.work_j > 0]
    known = [value for row in took_part if (value := getattr(row, column)) is not None]
    idle_j = sum(row.energy_j for row in rows if row.status == "failed" and row.work_j == 0)
    return sum(known) + idle_j if known and len(known) == len(took_part) else None


def _list_events(row: ClientRow, report: RoundReport | None) -> tuple[EventRow, ...]:
    """List the events that follow from a client's row."""
    memory, fitted = None if report is None else report.memory, ""
    if memory is not None:  # the batch size and width that the client trains with from this round on
        fitted = memory.why or f"{memory.used}, as asked: {memory.predicted_mb:,.0f} MB are predicted now"
    candidates = (
        (MEMORY, fitted, memory is not None and memory.changed),
        ("failed", row.error or "", row.status == "failed"),
        (LEFT_OUT, LEFT_OUT_MESSAGE, bool(row.left_out)),
        ("late", row.error or "", row.status == "late"),
        ("cancelled", row.error or "", row.status == "cancelled"),
        ("infeasible", row.why, row.feasible is False),
        ("throttled", f"reached {row.temperature_c or 0.0:.0f} C", row.throttled),
    )
    return tuple(
        EventRow(row.end_s, round=row.round, board=row.board, kind=kind, message=text)
        for kind, text, holds in candidates
        if holds
    )


# Cut-off of real boards ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RealCutoff:
    """Limits on real boards, which cannot be interrupted by a message while they work; None means no limit.

    Attributes:
        within_s: Seconds after which a round continues without a client.
        cancel_s: Seconds after which the client stops its own work.
        wanted: Number of replies after which the round continues.
        counts_s: Only replies that were ready within this many seconds count towards ``wanted``.
    """

    within_s: float | None = None
    cancel_s: float | None = None
    wanted: int | None = None
    counts_s: float | None = None


NO_CUTOFF = RealCutoff()


def compute_real_cutoff(late: LateReplySpec, deadline_s: float | None, wanted: int | None) -> RealCutoff:
    """Return when a round of real boards continues without unfinished clients."""
    counts_s = compute_cutoff_s(late, deadline_s)
    if deadline_s is None or late.action == "partial" or (late.action == "accept" and wanted is None):
        return RealCutoff(None, None, wanted, counts_s)
    stop_s = deadline_with_grace_s(late, deadline_s)
    return RealCutoff(stop_s, None if late.action == "discount" else stop_s, wanted, counts_s)


def has_enough_replies(cut: RealCutoff, replied_s: Iterable[float]) -> bool:
    """Return True if a round of real boards can continue.

    ``replied_s`` are the times at which the replies were ready, in seconds from the start of the round.
    """
    latest_s = math.inf if cut.counts_s is None else cut.counts_s
    return cut.wanted is not None and sum(at_s <= latest_s for at_s in replied_s) >= cut.wanted
