"""A round's books: from the clients' reports to the rows of the store; pure.

Energy of a board from the round's start to its end: work at its measured power, the radio, and idle power for the rest
of the time (fetching, sending and waiting in the mode it rests in). A board whose late reply joins a later round is
booked until it is done, so that every joule is in one row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedge.experiment import LateSpec
from fedge.fleetsim import battery
from fedge.fleetsim.battery import Charge
from fedge.planning.deadline import least_energy_at, maxn_energy_j, round_energy_j
from fedge.telemetry.rows import ClientRow, EventRow, RoundRow, Status
from fedge.types import RoundReport
from fedge.wire import Answer
from server.lateness import Ending, cut_of, judge


@dataclass(frozen=True, slots=True)
class Settled:
    """A round's end on the fleet's clock and its rows, before aggregation; ``accepted`` boards may be aggregated.

    ``until_s`` is when each board that reported was done, or stopped, on the fleet's clock; ``joining`` are the late
    ones whose reply joins a later round.
    """

    start_s: float
    end_s: float
    accepted: tuple[str, ...]
    clients: tuple[ClientRow, ...]
    events: tuple[EventRow, ...]
    maxn_round_s: float | None
    """How long the round would have been with every board that reported at MAXN; None without the truth."""
    joining: tuple[str, ...] = ()
    until_s: Mapping[str, float] = field(default_factory=dict)
    charges: Mapping[str, Charge] = field(default_factory=dict)
    """The batteries of the boards asked, after what their rows book."""

    @property
    def energy_j(self) -> float:
        """Joules of the boards asked."""
        return sum(row.energy_j for row in self.clients)


@dataclass(frozen=True, slots=True)
class Opening:
    """How a round began: its number, fleet time, planned deadline, and the boards' idle power as last known.

    ``wanted`` replies are enough (None: all are awaited). ``leaves_s`` are the fleet times at which boards go away, and
    ``charges`` the batteries of those that have one.
    """

    round: int
    start_s: float
    deadline_s: float | None
    idle_w: Mapping[str, float]
    wanted: int | None = None
    leaves_s: Mapping[str, float] = field(default_factory=dict)
    charges: Mapping[str, Charge] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """One board's part in a settled round, as its row tells it; ``until_s`` counts from the round's start."""

    status: Status
    error: str | None
    until_s: float
    round_s: float
    whole: bool
    """Whether its energy is that of the whole share of work, so that it may be compared with MAXN's."""
    flat: bool = False
    """Whether its battery ran empty, so that it draws nothing any more."""


def settle(opening: Opening, answers: Mapping[str, Answer], late: LateSpec) -> Settled:
    """Decide who is late and write every board's row; lateness is decided by reports, never by arrival."""
    reports = {board: answer.report for board, answer in sorted(answers.items()) if answer.report is not None}
    endings = {board: _ending(opening, report) for board, report in reports.items()}
    cut_s = cut_of(late, opening.deadline_s)
    verdict = judge(endings, cut_s, opening.wanted, opening.deadline_s or 0.0)
    parts = {
        board: _part(report, endings[board], verdict.status[board], verdict.round_s, late)
        for board, report in reports.items()
    }
    maxn_s = _maxn_round_s(reports)
    rows = tuple(
        _client_row(opening, parts[board], maxn_s, reports[board])
        if board in reports
        else _failed_row(opening, verdict.round_s, answers[board])
        for board in sorted(answers)
    )
    charges = {row.board: _charge_after(opening, parts.get(row.board), row, verdict.round_s) for row in rows}
    known = {board: charge for board, charge in charges.items() if charge is not None}
    rows = tuple(dataclasses.replace(r, charge=known[r.board].share) if r.board in known else r for r in rows)
    return Settled(
        opening.start_s,
        opening.start_s + verdict.round_s,
        tuple(board for board, part in parts.items() if part.status == "done"),
        rows,
        tuple(event for row in rows for event in _events(row)),
        maxn_s,
        tuple(board for board in parts if _joins(endings[board], verdict.status[board], late)),
        {board: opening.start_s + part.until_s for board, part in parts.items()},
        known,
    )


def _ending(opening: Opening, report: RoundReport) -> Ending:
    """When the board replies, unless it goes away or its battery runs empty before."""
    board = report.board
    away_s = opening.leaves_s.get(board, math.inf) - opening.start_s
    charge = opening.charges.get(board)
    empty_s = None if charge is None else battery.empty_after_s(charge, _phases(report))
    if empty_s is not None and empty_s < min(away_s, report.busy_s):
        return Ending(empty_s, f"its battery was empty after {empty_s:.1f} s")
    if away_s < report.busy_s:
        return Ending(away_s, f"went away after {away_s:.1f} s")
    return Ending(report.busy_s)


def _phases(report: RoundReport) -> tuple[tuple[float, float], ...]:
    """Seconds and watts, one after the other: fetching, every part of the work, sending."""
    link = report.link
    link_w = report.idle_w + link.radio_j / max(link.down_s + link.up_s, 1e-12)
    work = ((part.work_s, part.power_w) for part in report.parts)
    return ((link.down_s, link_w), *work, (link.up_s, link_w))


def _joins(ending: Ending, status: Status, late: LateSpec) -> bool:
    return status == "late" and late.action == "discount" and ending.error is None


def _part(report: RoundReport, ending: Ending, status: Status, round_s: float, late: LateSpec) -> _Part:
    """What the board's row is to say."""
    error: str | None = None
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
    return _Part(status, error, until_s, round_s, whole, bool(ending.error and "battery" in ending.error))


def _charge_after(opening: Opening, part: _Part | None, row: ClientRow, round_s: float) -> Charge | None:
    charge = opening.charges.get(row.board)
    if charge is None:
        return None
    if part is not None and part.flat:
        return battery.after(Charge(charge.spec, 0.0), 0.0, max(0.0, round_s - part.until_s))
    return battery.after(charge, row.energy_j, round_s if part is None else max(round_s, part.until_s))


@dataclass(frozen=True, slots=True)
class Around:
    """What a round's row tells besides the boards asked; None where nobody knows."""

    available: int | None = None
    stale: int = 0
    resting_j: float | None = None


def round_row(settled: Settled, tested: tuple[float, float], around: Around = Around()) -> RoundRow:
    """The fleet's row; ``tested`` is the new model's loss and accuracy on the held-out test set."""
    rows = settled.clients
    done = [row for row in rows if row.status == "done"]
    return RoundRow(
        round=rows[0].round,
        start_s=settled.start_s,
        end_s=settled.end_s,
        round_s=settled.end_s - settled.start_s,
        deadline_s=rows[0].deadline_s,
        straggler=max(done, key=lambda row: row.end_s).board if done else "",
        selected=len(rows),
        done=len(done),
        late=sum(row.status == "late" for row in rows),
        failed=sum(row.status == "failed" for row in rows),
        energy_j=settled.energy_j,
        train_energy_j=sum(row.work_j for row in rows),
        oracle_energy_j=_sum([row.oracle_energy_j for row in rows]),
        maxn_round_s=settled.maxn_round_s,
        maxn_energy_j=_sum([row.maxn_energy_j for row in rows]),
        maxn_parked_energy_j=_sum([row.maxn_parked_energy_j for row in rows]),
        loss=tested[0],
        accuracy=tested[1],
        cancelled=sum(row.status == "cancelled" for row in rows),
        available=around.available,
        stale=around.stale,
        resting_energy_j=around.resting_j,
    )


def _client_row(opening: Opening, part: _Part, maxn_s: float | None, report: RoundReport) -> ClientRow:
    spent = spent_by(report, part.until_s)
    done, failed = part.status == "done", part.status == "failed"
    known_s = max(part.until_s, part.round_s) if not part.flat else part.until_s
    unheard = failed or part.status == "cancelled"
    return ClientRow(
        round=opening.round,
        board=report.board,
        device=report.device,
        status=part.status,
        error=part.error,
        start_s=opening.start_s,
        end_s=opening.start_s + min(report.busy_s, part.until_s),
        deadline_s=opening.deadline_s,
        down_s=spent.down_s,
        work_s=spent.work_s,
        up_s=spent.up_s,
        wait_s=max(0.0, part.round_s - min(report.busy_s, part.until_s)),
        idle_w=report.idle_w,
        work_j=spent.work_j,
        radio_j=spent.radio_j,
        energy_j=spent.work_j + spent.radio_j + report.idle_w * (known_s - spent.work_s),
        samples=report.samples,
        loss=None if unheard else report.loss,
        accuracy=None if unheard else report.accuracy,
        temperature_c=report.temperature_c,
        throttled=any(measured.throttled for measured in report.parts),
        prior_time_ape=report.prior_time_ape,
        prior_power_ape=report.prior_power_ape,
        time_ape=report.time_ape,
        power_ape=report.power_ape,
        own_samples=report.own_samples,
        shared_samples=report.shared_samples,
        staleness=0 if done else None,
        **_work_columns(report, spent),
        **_truth_columns(report, spent.radio_j, part.round_s, maxn_s, part.whole),
    )


@dataclass(frozen=True, slots=True)
class Spent:
    """What a board did in its first seconds of a round: fetching, working, sending."""

    down_s: float
    work_s: float
    up_s: float
    work_j: float
    radio_j: float


def spent_by(report: RoundReport, until_s: float) -> Spent:
    """What the board had done ``until_s`` after the round's start."""
    link = report.link
    down_s = min(link.down_s, until_s)
    work_s = min(report.work_s, max(0.0, until_s - link.down_s))
    up_s = min(link.up_s, max(0.0, until_s - link.down_s - work_s))
    radio_j = link.radio_j * (down_s + up_s) / (link.down_s + link.up_s)
    return Spent(down_s, work_s, up_s, report.work_j * work_s / report.work_s, radio_j)


def _work_columns(report: RoundReport, spent: Spent) -> dict[str, Any]:
    """The decision, what was predicted and measured in its mode, and the probes before it."""
    measured, predicted, mode = report.measured, report.predicted, report.measured.mode
    return {
        "feasible": report.decision.feasible,
        "why": report.decision.why,
        "cores": mode.cores,
        "cpu_mhz": mode.cpu_mhz,
        "gpu_mhz": mode.gpu_mhz,
        "mem_mhz": mode.mem_mhz,
        "steps": report.steps if spent.work_s == report.work_s else int(report.steps * spent.work_s / report.work_s),
        "asked_steps": report.asked_steps or None,
        "mix_mode": None if report.mixed is None else str(report.mixed.mode),
        "mix_steps": None if report.mixed is None else report.mixed.steps,
        "probes": len(report.probes),
        "probe_s": sum(probe.work_s for probe in report.probes),
        "probe_j": sum(probe.work_j for probe in report.probes),
        "step_s": measured.step_s,
        "predicted_step_s": predicted.step_s,
        "predicted_step_s_sd_log": predicted.step_s_sd_log,
        "power_w": measured.power_w,
        "predicted_power_w": predicted.power_w,
        "predicted_power_w_sd_log": predicted.power_w_sd_log,
    }


def _truth_columns(
    report: RoundReport, radio_j: float, round_s: float, maxn_s: float | None, whole: bool
) -> dict[str, Any]:
    """The work and the whole round at MAXN and in the oracle's mode; None without the truth.

    The round's figures are None too where not all of the work was done: there is nothing to compare them with.
    """
    truth = report.true_front
    if truth is None or maxn_s is None:
        return dict.fromkeys((*_WORK_IN_TRUTH, *_ROUND_IN_TRUTH))
    oracle, maxn = least_energy_at(truth, round_s), truth.maxn
    work = (maxn.work_s, maxn.work_j, oracle.work_s, oracle.work_j)
    rounds = (
        radio_j + round_energy_j(truth, oracle, round_s),
        radio_j + maxn_energy_j(truth, maxn_s),
        radio_j + round_energy_j(truth, maxn, maxn_s),
    )
    return dict(zip((*_WORK_IN_TRUTH, *_ROUND_IN_TRUTH), (*work, *(rounds if whole else _UNKNOWN)), strict=True))


_WORK_IN_TRUTH = ("maxn_work_s", "maxn_work_j", "oracle_work_s", "oracle_work_j")
_ROUND_IN_TRUTH = ("oracle_energy_j", "maxn_energy_j", "maxn_parked_energy_j")
_UNKNOWN = (None, None, None)


def _failed_row(opening: Opening, round_s: float, answer: Answer) -> ClientRow:
    """A board that reported nothing: it is taken to have idled, since nothing else is known."""
    idle_w = opening.idle_w.get(answer.board, 0.0)
    empty = {field.name: None for field in dataclasses.fields(ClientRow)}
    known = {
        "round": opening.round,
        "board": answer.board,
        "device": "",
        "status": "failed",
        "error": answer.error or "no answer",
        "start_s": opening.start_s,
        "end_s": opening.start_s + round_s,
        "deadline_s": opening.deadline_s,
        "why": "",
        "idle_w": idle_w,
        "energy_j": idle_w * round_s,
        "wait_s": round_s,
        "throttled": False,
        **dict.fromkeys(("down_s", "work_s", "up_s", "work_j", "radio_j", "probe_s", "probe_j"), 0.0),
        **dict.fromkeys(("steps", "samples", "probes"), 0),
    }
    return ClientRow(**(empty | known))  # type: ignore[arg-type]


def _maxn_round_s(reports: Mapping[str, RoundReport]) -> float | None:
    """How long the round would have been at MAXN; None where a board's truth is not known."""
    fronts = [report.true_front for report in reports.values()]
    known = [front.link_s + front.maxn.work_s for front in fronts if front is not None]
    return max(known) if known and len(known) == len(fronts) else None


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum; None where a part is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _events(row: ClientRow) -> tuple[EventRow, ...]:
    """What in a board's row is worth telling."""
    told = (
        ("failed", row.error or "", row.status == "failed"),
        ("late", row.error or "", row.status == "late"),
        ("cancelled", row.error or "", row.status == "cancelled"),
        ("infeasible", row.why, row.feasible is False),
        ("throttled", f"reached {row.temperature_c or 0.0:.0f} C", row.throttled),
    )
    return tuple(EventRow(row.end_s, row.round, row.board, kind, text) for kind, text, holds in told if holds)
