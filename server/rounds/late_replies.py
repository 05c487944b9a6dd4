"""Replies of real boards that arrive after the server stopped waiting for them. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedge.telemetry.store_records import EventRow
from fedge.types import TrainResult
from server.aggregation.contribution_weights import NarrowShapes, compute_change
from server.rounds.client_requests import validate_reply
from server.state.board_history import apply_late_reports, note_recorded
from server.state.checkpoint import UNKNOWN_CLIENT, FleetState, PendingResult
from server.state.client_traces import strip_trace
from server.transport.client_port import LateReply

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
    events = note_recorded(fleet, number, (one.reply.answer for one in late))
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
    if answer.is_refused:
        message = f"its reply to {asked} came late; {answer.error}"
    elif asked_again:
        message = f"its reply to {asked} came after it was asked again, and was thrown away"
    elif merges:
        message = f"its reply to {asked} came late, and joins this round"
    else:
        message = f"its reply to {asked} came too late and was thrown away; what it measured is kept"
    return f"{message}; {answer.report.work_s:.1f} s and {answer.report.work_j:.0f} J of work, which no row holds"
