"""Settlement of a round: who was late, the time that is booked for each client, and the fleet's row. Pure functions.

A client whose late reply joins a later round is booked until it is done, so that all of its energy is in one row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedge.devices import battery
from fedge.devices.battery import BatteryCharge
from fedge.experiment import LateReplySpec
from fedge.telemetry.client_rows import ClientPart, RoundStart, client_row, failed_row
from fedge.telemetry.store_records import LEFT_OUT, MEMORY, REFUSED, ClientRow, EventRow, RoundRow, Status
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
        until_s: When each client that reported was done or was stopped.
        lost: Clients that became unavailable or ran out of battery before they could reply.
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
    reports = {board: answer.report for board, answer in sorted(answers.items()) if answer.report is not None}
    endings = {board: find_completion(opening, report, report.idle_w) for board, report in reports.items()}
    endings |= {board: Completion(math.inf) for board, answer in answers.items() if answer.cut}
    cut_s = compute_cutoff_s(late, opening.deadline_s)
    verdict = classify_clients(endings, cut_s, opening.wanted, opening.deadline_s or 0.0)
    parts = {
        board: _build_part(
            answers[board], ending=endings[board], status=verdict.status[board], round_s=verdict.round_s, late=late
        )
        for board, report in reports.items()
    }
    maxn_s = _maxn_round_s(reports)
    rows = tuple(
        client_row(opening, parts[board], maxn_s, reports[board])
        if board in reports
        else failed_row(opening, verdict.round_s, answers[board], verdict.status.get(board, "failed"))
        for board in sorted(answers)
    )
    charges = {row.board: _compute_charge(opening, parts.get(row.board), row, verdict.round_s) for row in rows}
    known = {board: charge for board, charge in charges.items() if charge is not None}
    rows = tuple(dataclasses.replace(r, charge=known[r.board].share) if r.board in known else r for r in rows)
    return RoundSettlement(
        opening.start_s,
        end_s=opening.start_s + verdict.round_s,
        accepted=tuple(board for board, part in parts.items() if part.status == "done"),
        clients=rows,
        events=tuple(event for row in rows for event in _list_events(row, reports.get(row.board))),
        maxn_round_s=maxn_s,
        joining=tuple(
            board
            for board, part in parts.items()
            if part.status == "late" and late.action == "discount" and endings[board].error is None
        ),
        until_s={board: opening.start_s + part.until_s for board, part in parts.items()},
        charges=known,
        lost=tuple(board for board, part in parts.items() if _is_lost(endings[board], part.until_s)),
    )


def find_completion(opening: RoundStart, report: RoundReport | EvaluationReport, idle_w: float) -> Completion:
    """Return when the client replies, or when it becomes unavailable or runs out of battery before that."""
    board = report.board
    away_s = opening.leaves_s.get(board, math.inf) - opening.start_s
    charge = opening.charges.get(board)
    empty_s = None if charge is None else battery.time_to_empty_s(charge, _list_power_phases(report, idle_w))
    if empty_s is not None and empty_s < min(away_s, report.busy_s):
        return Completion(empty_s, f"its battery was empty after {empty_s:.1f} s", flat=True)
    if away_s < report.busy_s:
        return Completion(away_s, f"went away after {away_s:.1f} s")
    return Completion(report.busy_s)


def _list_power_phases(report: RoundReport | EvaluationReport, idle_w: float) -> tuple[tuple[float, float], ...]:
    """Seconds and mean power in watts of consecutive phases: download, every part of the work, upload."""
    link = report.link
    link_w = idle_w + link.radio_j / max(link.down_s + link.up_s, 1e-12)
    work = ((part.work_s, part.power_w) for part in report.parts)
    return ((link.down_s, link_w), *work, (link.up_s, link_w))


def _is_lost(ending: Completion, until_s: float) -> bool:
    """Return True if the client failed within its booked time; a failure after it was stopped does not count."""
    return ending.error is not None and ending.at_s <= until_s


def _build_part(
    answer: ReplyMessage, ending: Completion, status: Status, round_s: float, late: LateReplySpec
) -> ClientPart:
    """Build the part in the round of a client that reported."""
    report, error = answer.report, answer.error
    assert report is not None
    if answer.cut:
        return ClientPart(status, error, round_s, round_s, whole=False)
    until_s, whole = round_s, status == "done" and report.steps >= report.asked_steps
    if status == "failed":
        error, until_s = ending.error, ending.at_s
    elif status == "late":
        error = f"took {ending.at_s:.1f} s; the cut-off was {round_s:.1f} s"
        if late.action == "discount":
            until_s, whole = ending.at_s, ending.error is None
            error += f"; {ending.error or 'its result joins a later round'}"
    elif status == "cancelled":
        error = f"stopped after {round_s:.1f} s: enough others were done"
    flat = ending.flat and _is_lost(ending, until_s)
    return ClientPart(status, error=error, until_s=until_s, round_s=round_s, whole=whole, flat=flat)


def _compute_charge(
    opening: RoundStart, part: ClientPart | None, row: ClientRow, round_s: float
) -> BatteryCharge | None:
    charge = opening.charges.get(row.board)
    if charge is None:
        return None
    if part is not None and part.flat:
        return battery.update_charge(BatteryCharge(charge.spec, 0.0), 0.0, max(0.0, round_s - part.until_s))
    return battery.update_charge(charge, row.energy_j, round_s if part is None else max(round_s, part.until_s))


def round_row(
    settled: RoundSettlement,
    tested: tuple[float, float] | None,
    *,
    available: int | None = None,
    stale: int = 0,
    resting_j: float | None = None,
    evaluated: EvaluationFigures = NOT_EVALUATED,
) -> RoundRow:
    """Build the fleet's row of a round; see ``fleet_row``.

    ``tested`` are loss and accuracy of the new model on the held-out test set, ``stale`` the late results that were
    merged.
    """
    rows = settled.clients
    row = fleet_row(rows, start_s=settled.start_s, end_s=settled.end_s, tested=tested, stale=stale, resting_j=resting_j)
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
        refused=sum(row.status == "failed" and (row.error or "").startswith(REFUSED) for row in rows),
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


# Status of a round's clients by simulated time, not by arrival --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Completion:
    """The end of a client's part in a round.

    Attributes:
        at_s: Seconds from the start of the round; infinity for a real board that was cut off before it was done.
        flat: True if its battery is empty then.
    """

    at_s: float
    error: str | None = None
    flat: bool = False


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    """The length of a round in seconds, and the status of every client in it."""

    round_s: float
    status: Mapping[str, Status]


def compute_cutoff_s(late: LateReplySpec, deadline_s: float | None) -> float | None:
    """Return the seconds after which a round continues without unfinished clients, or None if it waits for all."""
    waits = late.action in ("accept", "partial")
    return None if deadline_s is None or waits else deadline_with_grace_s(late, deadline_s)


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


def deadline_with_grace_s(late: LateReplySpec, deadline_s: float) -> float:
    """Return the deadline extended by the grace period, in seconds."""
    return deadline_s * (1 + late.grace)


def classify_clients(
    endings: Mapping[str, Completion], cut_s: float | None, wanted: int | None, empty_s: float
) -> RoundVerdict:
    """Assign a status to every client of a round and determine its length.

    With ``wanted``, the first so many replies count, ordered by time and then by name, and the round ends with the last
    of them; unfinished clients are cancelled. Otherwise the round lasts until every client has replied or failed, but
    at most ``cut_s``; clients that are not done by then are late.

    ``empty_s`` is the length in seconds of a round without clients, and the least length of one in which a client was
    cut off.
    """
    in_order = sorted(endings, key=lambda board: (endings[board].at_s, board))
    latest_s = math.inf if cut_s is None else cut_s
    in_time = [b for b in in_order if endings[b].at_s <= latest_s and math.isfinite(endings[b].at_s)]
    counted = [b for b in in_time if endings[b].error is None][:wanted]
    if wanted is not None and len(counted) == wanted:
        round_s = endings[counted[-1]].at_s
        return RoundVerdict(
            round_s, {b: _classify_client(b in counted, endings[b], round_s, "cancelled") for b in in_order}
        )
    if cut_s is not None and len(in_time) < len(in_order):
        return RoundVerdict(cut_s, {b: _classify_client(b in counted, endings[b], cut_s, "late") for b in in_order})
    round_s = max((endings[b].at_s for b in in_time), default=empty_s)
    if len(in_time) < len(in_order):
        # A real board was cut off although the round has no cutoff: the round lasts at least until the deadline.
        round_s = max(round_s, empty_s)
    return RoundVerdict(round_s, {b: _classify_client(b in counted, endings[b], round_s, "late") for b in in_order})


def _classify_client(counted: bool, ending: Completion, round_s: float, otherwise: Status) -> Status:
    if counted:
        return "done"
    return "failed" if ending.error is not None and ending.at_s <= round_s else otherwise
