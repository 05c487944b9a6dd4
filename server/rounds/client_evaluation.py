"""Federated evaluation: clients evaluate the new model after a round; their time and energy count like other work."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedge.devices import battery
from fedge.devices.battery import BatteryCharge
from fedge.experiment import Experiment
from fedge.seeds import make_generator
from fedge.telemetry.settlement import NOT_EVALUATED, EvaluationFigures
from fedge.telemetry.store_records import EvaluationRow
from fedge.types import EvaluationReport, NamedArrays
from server.accounting.idle_energy import charge_idle_clients
from server.aggregation.aggregator import Aggregator
from server.rounds.client_requests import UNKNOWN_STATE, FleetRequests
from server.state.checkpoint import UNKNOWN_CLIENT, FleetState
from server.state.fleet_availability import FleetAvailability, get_idle_w
from server.transport.client_port import IncomingReply


@dataclass(frozen=True, slots=True, eq=False)
class ClientEvaluation:
    """The outcome of an evaluation by clients.

    Attributes:
        fleet: The clients after it.
        rows: One row per client asked.
        figures: Figures of the round's row; without values if no client was asked.
    """

    fleet: FleetState
    rows: tuple[EvaluationRow, ...] = ()
    figures: EvaluationFigures = NOT_EVALUATED


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

    A client that fails, or goes away before it is done, leaves a row with the reason.
    """
    experiment = requests.experiment
    names = choose_evaluators(experiment, availability.available(fleet), number)
    sent = aggregator.configure_evaluate(number, arrays, len(names)) if names else None
    if sent is None:
        return ClientEvaluation(fleet)
    states = {name: fleet.states.get(name, UNKNOWN_STATE) for name in names}
    replies = requests.request_evaluation(number, fleet.clock_s, sent, states)
    errors = _find_errors(replies, availability.departure_times_s(fleet.clock_s), fleet.clock_s)
    reports = {
        name: reply.answer.evaluation
        for name, reply in sorted(replies.items())
        if name not in errors and reply.answer.evaluation is not None
    }
    seconds = max((report.busy_s for report in reports.values()), default=0.0)
    devices = {board.name: board.entry.device for board in availability.boards}
    rows = tuple(
        _build_row(number, fleet, reports[name], seconds)
        if name in reports
        else EvaluationRow(number, name, devices[name], errors[name], start_s=fleet.clock_s, end_s=fleet.clock_s)
        for name in sorted(names)
    )
    after, idle_j = charge_idle_clients(
        availability, fleet, [name for name in availability.names if name not in reports], fleet.clock_s + seconds
    )
    after = _apply_evaluations(after, rows, replies, charges=availability.charges(fleet), seconds=seconds)
    loss, accuracy = (aggregator.aggregate_evaluate(number, list(reports.values())) if reports else None) or (
        None,
        None,
    )
    energy_j = idle_j + sum(row.energy_j for row in rows)
    return ClientEvaluation(
        after, rows, EvaluationFigures(loss, accuracy, evaluation_s=seconds, evaluation_energy_j=energy_j)
    )


def choose_evaluators(experiment: Experiment, available: Iterable[str], number: int) -> tuple[str, ...]:
    """Return the clients that evaluate after round ``number``, drawn from the available ones by the seed."""
    spec, names = experiment.evaluation, tuple(available)
    if not names or not spec.is_due(number, experiment.rounds):
        return ()
    count = math.ceil(spec.fraction * len(names))
    chosen = make_generator(experiment.seed, "evaluators", number).choice(len(names), count, replace=False)
    return tuple(names[i] for i in sorted(chosen.tolist()))


def _find_errors(replies: Mapping[str, IncomingReply], leaves_s: Mapping[str, float], start_s: float) -> dict[str, str]:
    """Return the reason of every client without a result."""
    errors = {}
    for name, reply in replies.items():
        report = reply.answer.evaluation
        away_s = leaves_s.get(name, math.inf) - start_s
        if report is None:
            errors[name] = reply.answer.error or "no answer"
        elif report.busy_s > away_s:
            errors[name] = f"went away after {away_s:.1f} s"
    return errors


def _build_row(number: int, fleet: FleetState, report: EvaluationReport, seconds: float) -> EvaluationRow:
    measured, mode = report.measured, report.measured.mode
    idle_j = get_idle_w(fleet.fronts, report.board) * (seconds - measured.work_s)
    return EvaluationRow(
        number,
        board=report.board,
        device=report.device,
        error=None,
        start_s=fleet.clock_s,
        end_s=fleet.clock_s + report.busy_s,
        samples=report.samples,
        loss=report.loss,
        accuracy=report.accuracy,
        cores=mode.cores,
        cpu_mhz=mode.cpu_mhz,
        gpu_mhz=mode.gpu_mhz,
        mem_mhz=mode.mem_mhz,
        down_s=report.link.down_s,
        work_s=measured.work_s,
        wait_s=seconds - report.busy_s,
        work_j=measured.work_j,
        radio_j=report.link.radio_j,
        energy_j=measured.work_j + report.link.radio_j + idle_j,
    )


def _apply_evaluations(
    after: FleetState,
    rows: Iterable[EvaluationRow],
    replies: Mapping[str, IncomingReply],
    *,
    charges: Mapping[str, BatteryCharge],
    seconds: float,
) -> FleetState:
    """Return the clients with the states and batteries of those that evaluated; ``charges`` are from before it."""
    states, histories = dict(after.states), dict(after.histories)
    for row in rows:
        state = replies[row.board].answer.state
        if row.error is not None:
            continue
        if state is not None:
            states[row.board] = state
        if row.board in charges:
            charge = battery.update_charge(charges[row.board], row.energy_j, seconds)
            history = histories.get(row.board, UNKNOWN_CLIENT)
            histories[row.board] = dataclasses.replace(history, charge_j=charge.left_j)
    return dataclasses.replace(after, states=states, histories=histories)
