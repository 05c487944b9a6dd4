"""A client's row of a round: its columns, and the comparison with the truth."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedge.decisions.planning.front_columns import (
    MAX_FIGURE,
    board_maxn_energy_j,
    board_round_energy_j,
    find_least_energy_point,
)
from fedge.devices.battery import BatteryCharge
from fedge.serving.standing_service import latency_percentile_s, merge_all_service_uses
from fedge.telemetry.round_columns import CompletedWork
from fedge.telemetry.store_records import ClientRow, Status
from fedge.types import EvaluationReport, Front, LinkUse, RoundReport
from fedge.wire import ReplyMessage, list_fields


@dataclass(frozen=True, slots=True)
class RoundStart:
    """State of the fleet at the start of a round.

    Attributes:
        deadline_s: Planned length of the round in seconds, or None without a deadline.
        wanted: Number of replies that are enough, or None if all are awaited.
        leaves_s: Simulated time at which each client becomes unavailable; infinity if missing.
    """

    round: int
    start_s: float
    deadline_s: float | None
    idle_w: Mapping[str, float]
    wanted: int | None = None
    leaves_s: Mapping[str, float] = field(default_factory=dict)
    charges: Mapping[str, BatteryCharge] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientPart:
    """One client's part in a settled round.

    Attributes:
        until_s: End of the client's booked time, in seconds from the start of the round.
        whole: True if the booked energy covers all of the requested work, so that it is comparable with MAXN.
        energy_j: Energy of the board in the round, in joules.
        spent: Its completed work; None without a report.
        charge: Its battery at the end; None on mains.
    """

    status: Status
    error: str | None
    until_s: float
    round_s: float
    whole: bool
    energy_j: float
    spent: CompletedWork | None
    charge: BatteryCharge | None = None


REPORTED_COLUMNS = (
    "board",
    "device",
    "idle_w",
    "samples",
    "temperature_c",
    "link_mbps",
    "prior_time_ape",
    "prior_power_ape",
    "time_ape",
    "power_ape",
    "own_samples",
    "shared_samples",
    "recalled_samples",
    "step_share",
    "encoding",
)
"""Columns that are the report's fields of the same names."""


def client_row(opening: RoundStart, part: ClientPart, maxn_s: float | None, report: RoundReport) -> ClientRow:
    """Build the row of a client that reported.

    ``maxn_s`` is the length of the round if every client ran at MAXN; None if a truth is unknown.
    """
    spent, done = part.spent, part.status == "done"
    assert spent is not None
    has_result = done or (part.status == "late" and part.whole)
    return ClientRow(
        round=opening.round,
        status=part.status,
        error=part.error,
        start_s=opening.start_s,
        end_s=opening.start_s + min(report.busy_s, part.until_s),
        deadline_s=opening.deadline_s,
        wait_s=max(0.0, part.round_s - min(report.busy_s, part.until_s)),
        energy_j=part.energy_j,
        charge=None if part.charge is None else part.charge.share,
        loss=report.loss if has_result else None,
        accuracy=report.accuracy if has_result else None,
        throttled=any(measured.throttled for measured in report.parts),
        staleness=0 if done else None,
        moved_mb=_compute_moved_mb(report.link, spent),
        **{name: getattr(report, name) for name in REPORTED_COLUMNS},
        **_mode_columns(report),
        **_memory_columns(report),
        **work_columns(report, spent),
        **_truth_columns(report, radio_j=spent.radio_j, round_s=part.round_s, maxn_s=maxn_s, whole=part.whole),
    )


def _compute_moved_mb(link: LinkUse, spent: CompletedWork) -> float:
    """Return the MB moved by a client that may have been cut off during a transfer."""
    if spent.up_s >= link.up_s * (1.0 - 1e-9):
        return link.moved_mb
    down_share = min(1.0, spent.down_s / link.down_s) if link.down_s > 0 else 1.0
    return link.down_mb * down_share + (link.moved_mb - link.down_mb) * spent.up_s / link.up_s


def failed_row(opening: RoundStart, part: ClientPart, answer: ReplyMessage) -> ClientRow:
    """Build the row of a client that did not report; its board is assumed to have idled for the whole round.

    The part's status is ``late`` or ``cancelled`` for a real board that was cut off.
    """
    empty = {field.name: None for field in dataclasses.fields(ClientRow)}
    known = {
        "round": opening.round,
        "board": answer.board,
        "device": "",
        "status": part.status,
        "error": answer.error or "no answer",
        "start_s": opening.start_s,
        "end_s": opening.start_s + part.round_s,
        "deadline_s": opening.deadline_s,
        "why": "",
        "idle_w": opening.idle_w.get(answer.board, 0.0),
        "energy_j": part.energy_j,
        "charge": None if part.charge is None else part.charge.share,
        "wait_s": part.round_s,
        "throttled": False,
        "left_out": answer.unfit or None,
        **dict.fromkeys(("down_s", "work_s", "up_s", "work_j", "radio_j", "probe_s", "probe_j"), 0.0),
        **dict.fromkeys(("steps", "samples", "probes"), 0),
    }
    return ClientRow(**(empty | known))  # type: ignore[arg-type]


def work_columns(report: RoundReport, spent: CompletedWork) -> dict[str, Any]:
    """Return the columns on completed work, including the share of the probes and of the second mode."""
    probes = [probe for probe in spent.parts[: len(report.probes)] if probe.work_s > 0]
    return service_columns(report, spent) | {
        **{name: getattr(spent, name) for name in ("down_s", "work_s", "up_s", "work_j", "radio_j", "steps")},
        "mix_steps": None if report.mixed is None else spent.parts[len(report.probes)].steps,
        "probes": len(probes),
        "probe_s": sum(probe.work_s for probe in probes),
        "probe_j": sum(probe.work_j for probe in probes),
        "switch_s": _completed_switch_s(report, spent),
    }


def _completed_switch_s(report: RoundReport, spent: CompletedWork) -> float:
    """Return the time of mode changes during the work in seconds; one that was cut short counts as far as it got."""
    parts = zip(report.parts, spent.parts, strict=True)
    return sum(min(part.switch_s or 0.0, done.work_s) for part, done in parts)


def service_columns(report: RoundReport, spent: CompletedWork) -> dict[str, Any]:
    """Return the columns on the board's inference service during the started parts; empty without a service.

    A part that was cut short counts with the service statistics of the whole part, since they are not split by time.
    """
    begun = [part for part, done in zip(report.parts, spent.parts, strict=True) if done.work_s > 0]
    use, last = merge_all_service_uses([part.service for part in begun]), report.measured.service
    if use is None:
        return {}
    return {
        "requests": use.requests,
        "late_requests": use.late,
        "dropped_requests": use.dropped,
        "latency_budget_s": use.latency_s,
        "latency_p50_s": latency_percentile_s(use, 50.0),
        "latency_p95_s": latency_percentile_s(use, 95.0),
        "latency_p99_s": latency_percentile_s(use, 99.0),
        "latency_worst_s": use.worst_s if use.latencies else None,
        "service_batch": use.batch_size if last is None else last.batch_size,
        "service_share": use.share,
        "service_played": use.played,
        "train_steps_per_s": spent.steps / spent.work_s if spent.work_s > 0 else None,
    }


def _mode_columns(report: RoundReport) -> dict[str, Any]:
    """Return the columns on the decision and on its predicted and measured mode."""
    measured, predicted, mode = report.measured, report.predicted, report.measured.mode
    return {
        "feasible": report.decision.feasible,
        "why": report.decision.why,
        "cores": mode.cores,
        "cpu_mhz": mode.cpu_mhz,
        "gpu_mhz": mode.gpu_mhz,
        "mem_mhz": mode.mem_mhz,
        "asked_steps": report.asked_steps or None,
        "mix_mode": None if report.mixed is None else str(report.mixed.mode),
        "step_s": measured.step_s,
        "predicted_step_s": predicted.step_s,
        "predicted_step_s_sd_log": predicted.step_s_sd_log,
        "power_w": measured.power_w,
        "predicted_power_w": predicted.power_w,
        "predicted_power_w_sd_log": predicted.power_w_sd_log,
    }


def _memory_columns(report: RoundReport) -> dict[str, Any]:
    """Return the columns on batch size, width and memory; empty if the memory need of a step is unknown."""
    memory = report.memory
    if memory is None:
        return {}
    return {
        "batch_size": memory.used.batch_size,
        "width": memory.used.width,
        "memory_mb": memory.peak_mb,
        "predicted_memory_mb": memory.predicted_mb,
        "memory_limit_mb": memory.limit_mb,
        "out_of_memory": memory.failures,
        "lost_s": memory.lost_s,
        "lowered": memory.why or None,
    }


def _truth_columns(
    report: RoundReport, radio_j: float, round_s: float, maxn_s: float | None, whole: bool
) -> dict[str, Any]:
    """Return the columns of the work and the round at MAXN and in the oracle's mode; None without the truth.

    The columns of the whole round are also None if not all of the work was done, since they would not be comparable.
    """
    truth = report.true_front
    if truth is None or maxn_s is None:
        return dict.fromkeys(COMPARISON_COLUMNS)
    oracle, maxn = find_least_energy_point(truth, round_s), truth.maxn
    work = (maxn.work_s, maxn.work_j, oracle.work_s, oracle.work_j)
    rounds = (
        radio_j + board_round_energy_j(truth, oracle, round_s),
        radio_j + board_maxn_energy_j(truth, maxn_s),
        radio_j + board_round_energy_j(truth, maxn, maxn_s),
    )
    return dict(zip(COMPARISON_COLUMNS, (*work, *(rounds if whole else _UNKNOWN)), strict=True))


COMPARISON_COLUMNS = (
    *("maxn_work_s", "maxn_work_j", "oracle_work_s", "oracle_work_j"),
    *("oracle_energy_j", "maxn_energy_j", "maxn_parked_energy_j"),
)
"""Columns that compare the work and the round with MAXN and the oracle; unfinished work has no values for them."""
_UNKNOWN = (None, None, None)


# Figures that nothing can be booked from -----------------------------------------------------------------------------


def describe_impossible_answer(answer: ReplyMessage) -> str:
    """Return what an answer's report or offer has that nothing can be booked or planned from; "" for nothing."""
    wrong = "" if answer.report is None else describe_impossible_figures(answer.report)
    return wrong or describe_impossible_front(answer.front)


def describe_impossible_figures(report: RoundReport | EvaluationReport) -> str:
    """Return what a report has that no row can be made of, such as a negative time or infinite energy; "" for none."""
    link = report.link
    figures = {
        "transfers": (link.down_s, link.up_s, link.radio_j),
        "work": [
            figure
            for part in report.parts
            for figure in (part.steps, part.step_s, part.power_w, part.warm_up_s, part.switch_s or 0.0, part.lost_s)
        ],
        "idle power": () if isinstance(report, EvaluationReport) else (report.idle_w,),
        "samples": (report.samples,),
    }
    return _name_impossible(figures)


def describe_impossible_front(front: Front | None) -> str:
    """Return what a front has that no plan can be made of; "" for nothing. The plan is everybody's."""
    if front is None:
        return ""
    points = (*front.points, front.maxn)
    return _name_impossible(
        {
            "offer of modes": [
                figure for point in points for figure in (point.work_s, point.work_j, point.time_sd_log)
            ],
            "offer": [value for value in list_fields(front).values() if isinstance(value, float)],
            "narrow offer": [figure for offer in front.narrow for figure in list_fields(offer).values()],
            "number of modes": (len(front.points) - 1,),
        }
    )


def _name_impossible(figures: Mapping[str, Iterable[float]]) -> str:
    """Return the names of figures that are not from 0 to ``MAX_FIGURE``, each with its value."""
    pairs = [(name, value) for name, values in figures.items() for value in values]
    numbers = [value for _, value in pairs]
    if min(numbers) >= 0.0 and sum(numbers) <= MAX_FIGURE:  # one that is no number makes the sum none
        return ""
    return ", ".join(f"{name} ({value:g})" for name, value in pairs if not 0.0 <= value <= MAX_FIGURE)
