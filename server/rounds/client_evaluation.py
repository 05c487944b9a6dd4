"""Federated evaluation: clients evaluate the new model after a round; their time and energy count like other work."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedge.devices.energy_signal import NO_ENERGY, EnergyUse, book_energy
from fedge.experiment import Experiment, LateReplySpec
from fedge.seeds import make_generator
from fedge.telemetry.client_rows import RoundStart
from fedge.telemetry.round_columns import CompletedWork, get_completed_work
from fedge.telemetry.settlement import NOT_EVALUATED, EvaluationFigures, describe_loss, settle_reports
from fedge.telemetry.store_records import EvaluationRow
from fedge.types import EvaluationReport, NamedArrays
from fedge.wire import ClientState
from server.aggregation.aggregator import Aggregator
from server.aggregation.result_merger import report_strategy_errors
from server.rounds.client_requests import FleetRequests
from server.state.checkpoint import UNKNOWN_CLIENT, FleetState
from server.state.fleet_availability import FleetAvailability, charge_idle_clients, get_idle_w
from server.transport.client_port import IncomingReply


@dataclass(frozen=True, slots=True, eq=False)
class ClientEvaluation:
    """The outcome of an evaluation by clients.

    Attributes:
        figures: Figures of the round's row; without values if no client was asked.
        used: Energy of all boards.
    """

    fleet: FleetState
    rows: tuple[EvaluationRow, ...] = ()
    figures: EvaluationFigures = NOT_EVALUATED
    used: EnergyUse = NO_ENERGY


def evaluate_on_clients(
    requests: FleetRequests,
    aggregator: Aggregator,
    availability: FleetAvailability,
    *,
    fleet: FleetState,
    arrays: NamedArrays,
    number: int,
) -> ClientEvaluation:
    """Let clients evaluate the model of round ``number``, if it is due; the clock moves to the end of the last one.

    A client that fails, goes away or empties its battery before it is done leaves a row with the reason.
    """
    experiment = requests.experiment
    names = choose_evaluators(experiment, availability.available(fleet), number)
    sent = None
    if names:
        with report_strategy_errors(experiment, number):
            sent = aggregator.configure_evaluate(number, arrays, len(names))
    if sent is None:
        return ClientEvaluation(fleet)
    replies = requests.request_evaluation(number, fleet, sent, names)
    start = RoundStart(
        number,
        start_s=fleet.clock_s,
        deadline_s=None,
        idle_w={name: get_idle_w(fleet.fronts, name) for name in names},
        leaves_s=availability.departure_times_s(fleet.clock_s),
        charges=availability.charges(fleet),
    )
    parts = _settle_evaluations(start, replies)
    seconds = max((part.end_s for part in parts.values()), default=0.0)
    devices = {board.name: board.entry.device for board in availability.boards}
    rows = tuple(
        _build_row(start, parts[name], seconds)
        if name in parts
        else _build_failed_row(start, name, devices[name], replies[name].answer.error or "no answer")
        for name in sorted(names)
    )
    idle = [name for name in availability.names if name not in parts]
    after, rested = charge_idle_clients(availability, fleet, idle, fleet.clock_s + seconds)
    loss, accuracy = None, None
    if reports := [part.report for part in parts.values() if part.error is None]:
        with report_strategy_errors(experiment, number):
            loss, accuracy = aggregator.aggregate_evaluate(number, reports) or (None, None)
    worked_j = {row.board: row.energy_j for row in rows}
    used = rested + book_energy(availability.signal, worked_j, fleet.clock_s, after.clock_s)
    figures = EvaluationFigures(loss, accuracy, evaluation_s=seconds, evaluation_energy_j=used.joules)
    return ClientEvaluation(_apply_evaluations(after, rows, parts), rows, figures, used)


def choose_evaluators(experiment: Experiment, available: Iterable[str], number: int) -> tuple[str, ...]:
    """Return the clients that evaluate after round ``number``, drawn from the available ones by the seed."""
    spec, names = experiment.evaluation, tuple(available)
    if not names or not spec.is_due(number, experiment.rounds):
        return ()
    count = math.ceil(spec.fraction * len(names))
    chosen = make_generator(experiment.seed, "evaluators", number).choice(len(names), count, replace=False)
    return tuple(names[i] for i in sorted(chosen.tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class _EvaluationPart:
    """The work of one client that sent a report.

    Attributes:
        end_s: Seconds from the request until it was done or lost.
        error: Why it was lost; None if it is done.
        energy_j: Energy until the end of the evaluation, in joules.
        left_j: Charge of its battery then, in joules; infinity on mains.
    """

    report: EvaluationReport
    state: ClientState | None
    end_s: float
    error: str | None
    spent: CompletedWork
    energy_j: float
    left_j: float


def _settle_evaluations(start: RoundStart, replies: Mapping[str, IncomingReply]) -> dict[str, _EvaluationPart]:
    """Settle the clients that sent a report: each is booked until it is done or lost, then idles to the end."""
    answers = {name: replies[name].answer for name in sorted(replies)}
    reports = {name: report for name, answer in answers.items() if (report := answer.evaluation) is not None}
    settled = settle_reports(start, reports, LateReplySpec(action="accept"))
    return {
        name: _EvaluationPart(
            report,
            answers[name].state,
            end_s=float(settled.ends.at_s[row]),
            error=describe_loss(settled.ends, row),
            spent=get_completed_work(report, settled.spent, row),
            energy_j=float(settled.energy_j[row]),
            left_j=float(settled.batteries.left_j[row]),
        )
        for row, (name, report) in enumerate(reports.items())
    }


def _build_failed_row(start: RoundStart, name: str, device: str, error: str) -> EvaluationRow:
    return EvaluationRow(start.round, name, device, error, start_s=start.start_s, end_s=start.start_s)


def _build_row(start: RoundStart, part: _EvaluationPart, seconds: float) -> EvaluationRow:
    """Build the row of a client that worked in an evaluation of ``seconds``."""
    report, spent, mode, done = part.report, part.spent, part.report.measured.mode, part.error is None
    return EvaluationRow(
        start.round,
        board=report.board,
        device=report.device,
        error=part.error,
        start_s=start.start_s,
        end_s=start.start_s + part.end_s,
        samples=report.samples if done else 0,
        loss=report.loss if done else None,
        accuracy=report.accuracy if done else None,
        cores=mode.cores,
        cpu_mhz=mode.cpu_mhz,
        gpu_mhz=mode.gpu_mhz,
        mem_mhz=mode.mem_mhz,
        down_s=spent.down_s,
        work_s=spent.work_s,
        wait_s=seconds - part.end_s,
        work_j=spent.work_j,
        radio_j=spent.radio_j,
        energy_j=part.energy_j,
    )


def _apply_evaluations(
    after: FleetState, rows: Iterable[EvaluationRow], parts: Mapping[str, _EvaluationPart]
) -> FleetState:
    """Return the clients with the states of those that evaluated, and the batteries of those that worked."""
    states, histories = dict(after.states), dict(after.histories)
    for row in rows:
        part = parts.get(row.board)
        if part is None:
            continue
        if part.state is not None and row.error is None:
            states[row.board] = part.state
        if math.isfinite(part.left_j):
            history = histories.get(row.board, UNKNOWN_CLIENT)
            histories[row.board] = dataclasses.replace(history, charge_j=part.left_j)
    return dataclasses.replace(after, states=states, histories=histories)
