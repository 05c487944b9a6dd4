"""What the server keeps of a round: the boards' states, fronts and histories, with their batteries; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from fedge.telemetry.store_records import Status
from fedge.types import Front, Measurement, RoundReport
from fedge.wire import ClientState, ReplyMessage
from server.accounting.settlement import RoundSettlement, compute_completed_work
from server.state.checkpoint import ClientHistory, PendingResult, RunState


def update_histories(progress: RunState, settled: RoundSettlement, answers: Mapping[str, ReplyMessage]) -> RunState:
    """``progress`` with what the boards asked have told by the round's end, and their batteries; no new model yet.

    A board that is done has told everything. One that was stopped keeps what it had measured by then. Of one that
    failed, in the round or after it, nothing new is known but that it rests since; of one whose reply is still to come
    nothing at all.
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
    """What the server got of an answer: all of it, or nothing when the board broke down before it was sent."""
    return answer if status == "done" or answer.report is None else ReplyMessage(name)


def apply_late_reports(progress: RunState, arrived: Iterable[PendingResult]) -> RunState:
    """``progress`` with what the boards of these late replies told when they came in."""
    states, fronts, histories = dict(progress.states), dict(progress.fronts), dict(progress.histories)
    for pending in arrived:
        name = pending.answer.board
        histories[name] = _record_report(histories.get(name, ClientHistory()), pending.answer)
        _store_answer(pending.answer, states, fronts)
    return dataclasses.replace(progress, states=states, fronts=fronts, histories=histories)


def select_arrived(pending: Sequence[PendingResult], after_s: float, until_s: float) -> tuple[PendingResult, ...]:
    """The results that came in after ``after_s`` and by ``until_s``."""
    return tuple(one for one in pending if after_s < one.end_s <= until_s)


def _store_answer(answer: ReplyMessage, states: dict[str, ClientState], fronts: dict[str, Front]) -> None:
    if answer.state is not None:
        states[answer.board] = answer.state
    if answer.front is not None:
        fronts[answer.board] = answer.front


def _mark_rest_start(at_s: float, name: str, states: dict[str, ClientState]) -> None:
    """A board that broke down was at work until then, so it has not cooled since its last reply."""
    if name in states:
        states[name] = dataclasses.replace(states[name], rested_at_s=at_s)


def _record_request(history: ClientHistory, number: int, settled: RoundSettlement, name: str) -> ClientHistory:
    """A board's history after it was asked, before it is known what it said."""
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
    """What a board tells that was stopped ``until_s`` after the round's start: the minibatches it had measured.

    Its new front is believed only if the last part of the work had begun, on whose measurement it rests. A real board
    that stopped by itself has told nothing but what it measured.
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
    """The parts of the work as far as they were done ``until_s`` after the round's start; whole minibatches only."""
    pairs = zip(report.parts, compute_completed_work(report, until_s).parts, strict=True)
    return tuple(dataclasses.replace(part, steps=done.steps) for part, done in pairs if done.steps > 0)
