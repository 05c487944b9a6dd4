"""What the server keeps of a round: the boards' states, fronts and histories, with their batteries; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from fedge.telemetry.rows import Status
from fedge.types import Front, Measurement, RoundReport
from fedge.wire import Answer, BoardState
from server.accounting import Settled, spent_by
from server.checkpoint import History, Pending, Progress


def remembered(progress: Progress, settled: Settled, answers: Mapping[str, Answer]) -> Progress:
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
        history = _asked(histories.get(name, History()), number, settled, name)
        answer = _heard_of(name, row.status, answers[name])
        if row.status == "done":
            history = _told(history, answer)
        elif row.status == "failed" or name in settled.lost:
            _rest_from(until_s, name, states)
        elif name not in settled.joining:
            history = dataclasses.replace(history, busy_s=busy_s)
            answer = _stopped(answers[name], states.get(name), busy_s)
        histories[name] = history
        _keep(answer, states, fronts)
    return dataclasses.replace(progress, states=states, fronts=fronts, histories=histories)


def _heard_of(name: str, status: Status, answer: Answer) -> Answer:
    """What the server got of an answer: all of it, or nothing when the board broke down before it was sent."""
    return answer if status == "done" or answer.report is None else Answer(name)


def heard(progress: Progress, arrived: Iterable[Pending]) -> Progress:
    """``progress`` with what the boards of these late replies told when they came in."""
    states, fronts, histories = dict(progress.states), dict(progress.fronts), dict(progress.histories)
    for pending in arrived:
        name = pending.answer.board
        histories[name] = _told(histories.get(name, History()), pending.answer)
        _keep(pending.answer, states, fronts)
    return dataclasses.replace(progress, states=states, fronts=fronts, histories=histories)


def arrived(pending: Sequence[Pending], after_s: float, until_s: float) -> tuple[Pending, ...]:
    """The results that came in after ``after_s`` and by ``until_s``."""
    return tuple(one for one in pending if after_s < one.end_s <= until_s)


def _keep(answer: Answer, states: dict[str, BoardState], fronts: dict[str, Front]) -> None:
    if answer.state is not None:
        states[answer.board] = answer.state
    if answer.front is not None:
        fronts[answer.board] = answer.front


def _rest_from(at_s: float, name: str, states: dict[str, BoardState]) -> None:
    """A board that broke down was at work until then, so it has not cooled since its last reply."""
    if name in states:
        states[name] = dataclasses.replace(states[name], rested_at_s=at_s)


def _asked(history: History, number: int, settled: Settled, name: str) -> History:
    """A board's history after it was asked, before it is known what it said."""
    charge = settled.charges.get(name)
    return dataclasses.replace(
        history,
        last_round=number,
        rounds=history.rounds + 1,
        free_at_s=max(settled.end_s, settled.until_s.get(name, settled.end_s)),
        charge_j=history.charge_j if charge is None else charge.left_j,
    )


def _told(history: History, answer: Answer) -> History:
    report = answer.report
    if report is None:
        return history
    return dataclasses.replace(
        history, samples=report.samples, loss=report.loss, accuracy=report.accuracy, busy_s=report.busy_s
    )


def _stopped(answer: Answer, before: BoardState | None, until_s: float) -> Answer:
    """What a board tells that was stopped ``until_s`` after the round's start: the minibatches it had measured.

    Its new front is believed only if the last part of the work had begun, on whose measurement it rests. A real board
    that stopped by itself has told nothing but what it measured.
    """
    report, state = answer.report, answer.state
    if report is None:
        return answer
    if state is None:
        return Answer(answer.board)
    seen = _seen(report, until_s)
    kept = dataclasses.replace(
        state,
        measurements=(*(() if before is None else before.measurements), *seen),
        rested_at_s=state.rested_at_s - max(0.0, report.busy_s - until_s),
    )
    return Answer(answer.board, answer.front if len(seen) == len(report.parts) else None, state=kept)


def _seen(report: RoundReport, until_s: float) -> tuple[Measurement, ...]:
    """The parts of the work as far as they were done ``until_s`` after the round's start; whole minibatches only."""
    pairs = zip(report.parts, spent_by(report, until_s).parts, strict=True)
    return tuple(dataclasses.replace(part, steps=done.steps) for part, done in pairs if done.steps > 0)
