"""A round's books: from the clients' reports to the rows of the store; pure.

Energy of a board from the round's start to its end: work at its measured power, the radio, and idle power for the rest
of the time (fetching, sending and waiting in the mode it rests in).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedge.experiment import LateSpec
from fedge.planning.deadline import least_energy_at, maxn_energy_j, round_energy_j
from fedge.telemetry.rows import ClientRow, EventRow, RoundRow
from fedge.types import RoundReport
from fedge.wire import Answer


@dataclass(frozen=True, slots=True)
class Settled:
    """A round's end on the fleet's clock and its rows, before aggregation; ``accepted`` boards may be aggregated."""

    start_s: float
    end_s: float
    accepted: tuple[str, ...]
    clients: tuple[ClientRow, ...]
    events: tuple[EventRow, ...]
    maxn_round_s: float | None
    """How long the round would have been with every board that reported at MAXN; None without the truth."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How a round began: its number, fleet time, planned deadline, and the boards' idle power as last known."""

    round: int
    start_s: float
    deadline_s: float | None
    idle_w: Mapping[str, float]


def settle(opening: Opening, answers: Mapping[str, Answer], late: LateSpec) -> Settled:
    """Decide who is late and write every board's row; lateness is decided by reports, never by arrival."""
    deadline_s = opening.deadline_s
    cut_s = deadline_s * (1 + late.grace) if deadline_s is not None and late.action == "drop" else None
    reports = {board: answer.report for board, answer in sorted(answers.items()) if answer.report is not None}
    accepted = tuple(b for b, report in reports.items() if cut_s is None or report.busy_s <= cut_s)
    round_s = _round_s(reports, accepted, cut_s, deadline_s)
    maxn_s = _maxn_round_s(reports)
    rows = tuple(
        _client_row(opening, round_s, maxn_s, reports[board], board in accepted)
        if board in reports
        else _failed_row(opening, round_s, answers[board])
        for board in sorted(answers)
    )
    events = tuple(event for row in rows for event in _events(row))
    return Settled(opening.start_s, opening.start_s + round_s, accepted, rows, events, maxn_s)


def _round_s(
    reports: Mapping[str, RoundReport], accepted: Sequence[str], cut_s: float | None, deadline_s: float | None
) -> float:
    if cut_s is not None and len(accepted) < len(reports):
        return cut_s
    return max((reports[board].busy_s for board in accepted), default=deadline_s or 0.0)


def round_row(settled: Settled, tested: tuple[float, float]) -> RoundRow:
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
        energy_j=sum(row.energy_j for row in rows),
        train_energy_j=sum(row.work_j for row in rows),
        oracle_energy_j=_sum([row.oracle_energy_j for row in rows]),
        maxn_round_s=settled.maxn_round_s,
        maxn_energy_j=_sum([row.maxn_energy_j for row in rows]),
        maxn_parked_energy_j=_sum([row.maxn_parked_energy_j for row in rows]),
        loss=tested[0],
        accuracy=tested[1],
    )


def _client_row(
    opening: Opening, round_s: float, maxn_s: float | None, report: RoundReport, accepted: bool
) -> ClientRow:
    cut_work_s = min(report.work_s, max(0.0, round_s - report.link.down_s))
    work_j = report.work_j * cut_work_s / report.work_s
    up_s = min(report.link.up_s, max(0.0, round_s - report.link.down_s - cut_work_s))
    radio_j = report.link.radio_j * (report.link.down_s + up_s) / (report.link.down_s + report.link.up_s)
    return ClientRow(
        round=opening.round,
        board=report.board,
        device=report.device,
        status="done" if accepted else "late",
        error=None if accepted else f"took {report.busy_s:.1f} s; the cut-off was {round_s:.1f} s",
        start_s=opening.start_s,
        end_s=opening.start_s + min(report.busy_s, round_s),
        deadline_s=opening.deadline_s,
        down_s=report.link.down_s,
        work_s=cut_work_s,
        up_s=up_s,
        wait_s=max(0.0, round_s - report.busy_s),
        idle_w=report.idle_w,
        work_j=work_j,
        radio_j=radio_j,
        energy_j=work_j + radio_j + report.idle_w * (round_s - cut_work_s),
        samples=report.samples,
        loss=report.loss,
        accuracy=report.accuracy,
        temperature_c=report.temperature_c,
        throttled=any(part.throttled for part in (report.measured, *report.probes)),
        prior_time_ape=report.prior_time_ape,
        prior_power_ape=report.prior_power_ape,
        time_ape=report.time_ape,
        power_ape=report.power_ape,
        own_samples=report.own_samples,
        shared_samples=report.shared_samples,
        **_work_columns(report),
        **_truth_columns(report, radio_j, round_s, maxn_s),
    )


def _work_columns(report: RoundReport) -> dict[str, Any]:
    """The decision, what was predicted and measured in its mode, and the probes before it."""
    measured, predicted, mode = report.measured, report.predicted, report.measured.mode
    return {
        "feasible": report.decision.feasible,
        "why": report.decision.why,
        "cores": mode.cores,
        "cpu_mhz": mode.cpu_mhz,
        "gpu_mhz": mode.gpu_mhz,
        "mem_mhz": mode.mem_mhz,
        "steps": measured.steps + sum(probe.steps for probe in report.probes),
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


def _truth_columns(report: RoundReport, radio_j: float, round_s: float, maxn_s: float | None) -> dict[str, Any]:
    """The work and the whole round at MAXN and in the oracle's mode; None without the truth."""
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
    return dict(zip((*_WORK_IN_TRUTH, *_ROUND_IN_TRUTH), (*work, *rounds), strict=True))


_WORK_IN_TRUTH = ("maxn_work_s", "maxn_work_j", "oracle_work_s", "oracle_work_j")
_ROUND_IN_TRUTH = ("oracle_energy_j", "maxn_energy_j", "maxn_parked_energy_j")


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
        ("infeasible", row.why, row.feasible is False),
        ("throttled", f"reached {row.temperature_c or 0.0:.0f} C", row.throttled),
    )
    return tuple(EventRow(row.end_s, row.round, row.board, kind, text) for kind, text, holds in told if holds)
