"""Updates of client states, Pareto fronts, histories and batteries at the end of a round. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from fedge.telemetry.store_records import Status
from fedge.types import Front, Measurement, RoundReport
from fedge.wire import ClientState, ReplyMessage
from server.accounting.settlement import RoundSettlement, compute_completed_work
from server.state.checkpoint import ClientHistory, PendingResult, RunState


def update_histories(progress: RunState, settled: RoundSettlement, answers: Mapping[str, ReplyMessage]) -> RunState:
    """Update what the server knows of the clients of a round; the model is not changed.

    A client that is done has reported everything. One that was stopped keeps what it had measured by then. Of one that
    failed, during the round or after it, only the time since which it is idle is known; a client whose reply is still
    to come is not updated.

    Args:
        progress: The run before the round.
        settled: The settled round.
        answers: Reply of every client asked, by client name.
    """
    number = progress.round + 1
    states, fronts, histories = dict(progress.states), dict(progress.fronts), dict(progress.histories)
    for row in settled.clients:
        name = row.board
        until_s = settled.until_s.get(name, settled.end_s)
        busy_s = until_s - settled.start_s
        history = _record_request(histories.get(name, ClientHistory()), number, settled, name)
        answer = _received_part(name, row.status, answers[name])
        if row.status == "done":
            history = _record_report(history, answer)
        elif row.status == "failed" or name in settled.lost:
            _mark_rest_start(until_s, name, states)
        elif name not in settled.joining:
            history = dataclasses.replace(history, busy_s=busy_s)
            answer = _truncate_answer(answers[name], states.get(name), busy_s)
        histories[name] = history
        _store_answer(answer, states, fronts)
    return dataclasses.replace(progress, states=states, fronts=fronts, histories=histories)


def _received_part(name: str, status: Status, answer: ReplyMessage) -> ReplyMessage:
    """Return what the server received of a reply: all of it, or nothing if the client failed before sending it."""
    return answer if status == "done" or answer.report is None else ReplyMessage(name)


def apply_late_reports(progress: RunState, arrived: Iterable[PendingResult]) -> RunState:
    """Apply the states, fronts and reports of late replies that have arrived."""
    states, fronts, histories = dict(progress.states), dict(progress.fronts), dict(progress.histories)
    for pending in arrived:
        name = pending.answer.board
        histories[name] = _record_report(histories.get(name, ClientHistory()), pending.answer)
        _store_answer(pending.answer, states, fronts)
    return dataclasses.replace(progress, states=states, fronts=fronts, histories=histories)


def select_arrived(pending: Sequence[PendingResult], after_s: float, until_s: float) -> tuple[PendingResult, ...]:
    """Return the results that arrived after ``after_s`` and no later than ``until_s`` (simulated times)."""
    return tuple(one for one in pending if after_s < one.end_s <= until_s)


def _store_answer(answer: ReplyMessage, states: dict[str, ClientState], fronts: dict[str, Front]) -> None:
    if answer.state is not None:
        states[answer.board] = answer.state
    if answer.front is not None:
        fronts[answer.board] = answer.front


def _mark_rest_start(at_s: float, name: str, states: dict[str, ClientState]) -> None:
    """Record when a failed board became idle: it was working until then, so it has not cooled since its last reply."""
    if name in states:
        states[name] = dataclasses.replace(states[name], rested_at_s=at_s)


def _record_request(history: ClientHistory, number: int, settled: RoundSettlement, name: str) -> ClientHistory:
    """Update a client's history after it was asked, before its reply is applied."""
    charge = settled.charges.get(name)
    return dataclasses.replace(
        history,
        last_round=number,
        rounds=history.rounds + 1,
        free_at_s=max(settled.end_s, settled.until_s.get(name, settled.end_s)),
        charge_j=history.charge_j if charge is None else charge.left_j,
    )


def _record_report(history: ClientHistory, answer: ReplyMessage) -> ClientHistory:
    report = answer.report
    if report is None:
        return history
    return dataclasses.replace(
        history, samples=report.samples, loss=report.loss, accuracy=report.accuracy, busy_s=report.busy_s
    )


def _truncate_answer(answer: ReplyMessage, before: ClientState | None, until_s: float) -> ReplyMessage:
    """Return the reply of a client that was stopped ``until_s`` seconds into the round: its completed measurements.

    Its new front is kept only if the last part of the work had started, on whose measurement the front is based. A real
    board that stopped by itself has reported only what it measured.
    """
    report, state = answer.report, answer.state
    if report is None:
        return answer
    if state is None:
        return ReplyMessage(answer.board)
    seen = _truncate_measurements(report, until_s)
    kept = dataclasses.replace(
        state,
        measurements=(*(() if before is None else before.measurements), *seen),
        rested_at_s=state.rested_at_s - max(0.0, report.busy_s - until_s),
    )
    return ReplyMessage(answer.board, answer.front if len(seen) == len(report.parts) else None, state=kept)


def _truncate_measurements(report: RoundReport, until_s: float) -> tuple[Measurement, ...]:
    """Return the parts of the work completed ``until_s`` seconds after the start of the round, in whole steps."""
    pairs = zip(report.parts, compute_completed_work(report, until_s).parts, strict=True)
    return tuple(dataclasses.replace(part, steps=done.steps) for part, done in pairs if done.steps > 0)
