"""Updates of client states, fronts, histories and batteries from replies, also late ones. Pure functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedge.telemetry.client_rows import compute_completed_work
from fedge.telemetry.settlement import RoundSettlement
from fedge.telemetry.store_records import EventRow
from fedge.types import Front, TrainResult, add_measurements
from fedge.wire import ClientState, ReplyMessage
from server.aggregation.contribution_weights import NarrowShapes, compute_change
from server.rounds.client_requests import validate_reply
from server.rounds.client_traces import strip_trace
from server.state.checkpoint import UNKNOWN_CLIENT, ClientHistory, FleetState, PendingResult
from server.transport.client_port import LateReply

MAX_LINK_RATES = 9
"""Rounds whose median is the rate of a client's link. Default: a median of nine ignores four rounds in which something
else held up the messages, and follows a link that has changed after five."""


def update_histories(
    fleet: FleetState, number: int, settled: RoundSettlement, answers: Mapping[str, ReplyMessage]
) -> FleetState:
    """Update what the server knows of the clients of a round; the clock does not move.

    A client that is done has reported everything. One that was stopped keeps what it had measured by then. Of one that
    failed, during the round or after it, only the time since which it is idle is known; a client whose reply is still
    to come is not updated.
    """
    states, fronts, histories = dict(fleet.states), dict(fleet.fronts), dict(fleet.histories)
    for row in settled.clients:
        name = row.board
        until_s = settled.until_s.get(name, settled.end_s)
        history = _record_request(histories.get(name, UNKNOWN_CLIENT), number, settled, name)
        # A reply counts in full, or not at all if the client failed before sending it.
        answer = answers[name] if row.status == "done" or answers[name].report is None else ReplyMessage(name)
        if row.status == "done":
            history = _record_report(history, answer)
        elif row.status == "failed" or name in settled.lost:
            if name in states:  # it was working until then, so it has not cooled since its last reply
                states[name] = dataclasses.replace(states[name], rested_at_s=until_s)
        elif name not in settled.joining:
            busy_s = until_s - settled.start_s
            history = dataclasses.replace(history, busy_s=busy_s)
            answer = _truncate_answer(answers[name], states.get(name), busy_s)
        histories[name] = history
        _store_answer(answer, states, fronts)
    return FleetState(fleet.clock_s, states=states, fronts=fronts, histories=histories)


def apply_late_reports(
    fleet: FleetState, pending: Iterable[PendingResult], after_s: float = -math.inf, until_s: float = math.inf
) -> FleetState:
    """Apply the states, fronts and reports of late replies.

    Only those that arrived after ``after_s`` and no later than ``until_s`` (simulated times) are applied.
    """
    states, fronts, histories = dict(fleet.states), dict(fleet.fronts), dict(fleet.histories)
    for late in pending:
        if after_s < late.end_s <= until_s:
            name = late.answer.board
            histories[name] = _record_report(histories.get(name, UNKNOWN_CLIENT), late.answer)
            _store_answer(late.answer, states, fronts)
    return FleetState(fleet.clock_s, states=states, fronts=fronts, histories=histories)


def _store_answer(answer: ReplyMessage, states: dict[str, ClientState], fronts: dict[str, Front]) -> None:
    if answer.state is not None:
        states[answer.board] = answer.state
    if answer.front is not None:
        fronts[answer.board] = answer.front


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
    measured = () if report.link_mbps is None else (report.link_mbps,)
    return dataclasses.replace(
        history,
        samples=report.samples,
        loss=report.loss,
        accuracy=report.accuracy,
        busy_s=report.busy_s,
        links_mbps=(*history.links_mbps, *measured)[-MAX_LINK_RATES:],
    )


def _truncate_answer(answer: ReplyMessage, before: ClientState | None, until_s: float) -> ReplyMessage:
    """Return the reply of a client that was stopped ``until_s`` seconds into the round: its completed measurements.

    Only whole steps count. Its new front is kept only if the last part of the work had started, on whose measurement
    the front is based. A real board that stopped by itself has reported only what it measured.
    """
    report, state = answer.report, answer.state
    if report is None:
        return answer
    if state is None:
        return ReplyMessage(answer.board)
    pairs = zip(report.parts, compute_completed_work(report, until_s).parts, strict=True)
    completed = tuple(dataclasses.replace(part, steps=done.steps) for part, done in pairs if done.steps > 0)
    kept = dataclasses.replace(
        state,
        measurements=add_measurements(() if before is None else before.measurements, completed),
        rested_at_s=state.rested_at_s - max(0.0, report.busy_s - until_s),
    )
    return ReplyMessage(answer.board, answer.front if len(completed) == len(report.parts) else None, state=kept)


LATE_REPLY_EVENT = "late-reply"
"""Kind of the event for such a reply."""


@dataclass(frozen=True, slots=True)
class LateUpdate:
    """The clients and pending results after applying late replies, and an event for each of these."""

    fleet: FleetState
    pending: tuple[PendingResult, ...]
    events: tuple[EventRow, ...] = ()


def apply_late_replies(
    late: Sequence[LateReply],
    fleet: FleetState,
    pending: tuple[PendingResult, ...],
    *,
    number: int,
    joins: bool,
    learnt: Collection[str],
    narrow: NarrowShapes | None = None,
) -> LateUpdate:
    """Apply replies that have just arrived late.

    A reply is ignored if the client was asked again in the meantime. Otherwise its measurements are kept, and its
    result joins the round that ends next if ``joins`` holds and the round had not continued with enough other clients.

    Args:
        joins: True if the experiment merges late results.
        narrow: Shapes of narrow networks by width; None if no client may train one.
    """
    events = []
    for one in late:
        history = fleet.histories.get(one.board, UNKNOWN_CLIENT)
        asked_again = (history.last_round or 0) > one.question.ask.round
        result = _to_pending(fleet.clock_s, one, learnt, narrow)
        merges = joins and not one.spare
        if not asked_again:
            fleet = apply_late_reports(fleet, [result])
            if merges and result.trained.arrays:
                pending = (*pending, result)
        message = _describe_late_reply(result, merges, asked_again)
        events.append(EventRow(fleet.clock_s, round=number, board=one.board, kind=LATE_REPLY_EVENT, message=message))
    return LateUpdate(fleet, pending, tuple(events))


def _to_pending(now_s: float, one: LateReply, learnt: Collection[str], narrow: NarrowShapes | None) -> PendingResult:
    """Convert a late reply to the result that it gives, without its trace, which no row can hold."""
    ask, arrays = one.question.ask, one.question.arrays or {}
    reply = validate_reply(one.board, one.reply, arrays, narrow, trainable=ask.trainable)
    trained = TrainResult({}, 0.0, 0.0)
    if reply.trained is not None:
        changed = compute_change(arrays, frozenset(learnt), reply.trained.arrays)
        trained = dataclasses.replace(reply.trained, arrays=changed)
    answer = strip_trace(reply.answer)
    return PendingResult(ask.round, start_s=ask.start_s, end_s=now_s, answer=answer, trained=trained)


def _describe_late_reply(result: PendingResult, merges: bool, asked_again: bool) -> str:
    """Describe what became of a late reply; ``merges``: its result joins the round, unless ``asked_again``."""
    asked = f"round {result.round}" if result.round else "the first question"
    answer = result.answer
    if answer.report is None:
        return f"its answer to {asked} came late: {answer.error or 'it is ready'}"
    if asked_again:
        message = f"its reply to {asked} came after it was asked again, and was thrown away"
    elif merges:
        message = f"its reply to {asked} came late, and joins this round"
    else:
        message = f"its reply to {asked} came too late and was thrown away; what it measured is kept"
    return f"{message}; {answer.report.work_s:.1f} s and {answer.report.work_j:.0f} J of work, which no row holds"
