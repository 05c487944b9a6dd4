"""Replies of real boards that arrived after their round had continued without them. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedge.telemetry.store_records import EventRow
from fedge.types import TrainResult
from server.aggregation.contribution_weights import compute_change
from server.aggregation.narrow_results import NarrowShapes
from server.rounds.client_requests import validate_reply
from server.state.board_history import apply_late_reports
from server.state.checkpoint import PendingResult, RunState
from server.transport.client_port import LateReply

LATE_REPLY_EVENT = "late-reply"
"""Kind of the event for such a reply."""


@dataclass(frozen=True, slots=True)
class LateUpdate:
    """The run after applying late replies, and an event for each of them."""

    progress: RunState
    events: tuple[EventRow, ...] = ()


def apply_late_replies(
    progress: RunState,
    late: Sequence[LateReply],
    joins: bool,
    learnt: Collection[str],
    narrow: NarrowShapes | None = None,
) -> LateUpdate:
    """Apply replies that have just arrived late.

    A reply is ignored if the client was asked again in the meantime. Otherwise its measurements are kept, and its
    result joins the round that ends next if ``joins`` holds and the round had not continued with enough other clients.

    Args:
        progress: State of the run.
        late: The late replies.
        joins: True if the experiment merges late results.
        learnt: Names of the trainable arrays.
        narrow: Shapes of narrow networks by width; None if no client may train one.
    """
    events = []
    for one in late:
        overtaken = _was_asked_again(progress, one)
        pending = _to_pending(progress, one, learnt, narrow)
        if not overtaken:
            progress = apply_late_reports(progress, [pending])
            if joins and not one.spare and pending.trained.arrays:
                progress = dataclasses.replace(progress, pending=(*progress.pending, pending))
        events.append(
            _build_event(progress, one=one, pending=pending, joins=joins and not one.spare, overtaken=overtaken)
        )
    return LateUpdate(progress, tuple(events))


def _was_asked_again(progress: RunState, one: LateReply) -> bool:
    """Return True if the client was asked again in the meantime, so that its newer state must not be overwritten."""
    history = progress.histories.get(one.board)
    return history is not None and (history.last_round or 0) > one.question.ask.round


def _to_pending(
    progress: RunState, one: LateReply, learnt: Collection[str], narrow: NarrowShapes | None
) -> PendingResult:
    ask, arrays = one.question.ask, one.question.arrays or {}
    reply = validate_reply(one.board, one.reply, arrays, narrow)
    trained = TrainResult({}, 0.0, 0.0)
    if reply.trained is not None:
        changed = compute_change(arrays, frozenset(learnt), reply.trained.arrays)
        trained = dataclasses.replace(reply.trained, arrays=changed)
    return PendingResult(ask.round, start_s=ask.start_s, end_s=progress.clock_s, answer=reply.answer, trained=trained)


def _build_event(progress: RunState, one: LateReply, pending: PendingResult, joins: bool, overtaken: bool) -> EventRow:
    asked = f"round {pending.round}" if pending.round else "the first question"
    answer = pending.answer
    if answer.report is None:
        message = f"its answer to {asked} came late: {answer.error or 'it is ready'}"
    elif overtaken:
        message = f"its reply to {asked} came after it was asked again, and was thrown away"
    elif joins:
        message = f"its reply to {asked} came late, and joins this round"
    else:
        message = f"its reply to {asked} came too late and was thrown away; what it measured is kept"
    if answer.report is not None:
        message += f"; {answer.report.work_s:.1f} s and {answer.report.work_j:.0f} J of work, which no row holds"
    return EventRow(progress.clock_s, round=progress.round + 1, board=one.board, kind=LATE_REPLY_EVENT, message=message)
