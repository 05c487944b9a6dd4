"""What becomes of real boards' replies that came in after the round had gone on without them; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedge.telemetry.rows import EventRow
from fedge.types import TrainResult
from server.asking import checked
from server.checkpoint import Pending, Progress
from server.coverage import NarrowShapes
from server.port import Late
from server.remembering import heard
from server.weighting import change

LATE_REPLY = "late-reply"
"""The kind of event that tells of such a reply."""


@dataclass(frozen=True, slots=True)
class Caught:
    """The run with what late replies told, and an event for each of them."""

    progress: Progress
    events: tuple[EventRow, ...] = ()


def caught_up(
    progress: Progress,
    late: Sequence[Late],
    joins: bool,
    learnt: Collection[str],
    narrow: NarrowShapes | None = None,
) -> Caught:
    """``progress`` with the replies in ``late``, which came in now.

    What a board measured is kept. With ``joins`` its result joins the round that ends next; otherwise, and when the
    board was asked again since or enough others were done before it, it is thrown away. ``learnt`` are the arrays that
    are moved by training, ``narrow`` tells how large narrow ones are.
    """
    events = []
    for one in late:
        overtaken = _overtaken(progress, one)
        pending = _pending(progress, one, learnt, narrow)
        if not overtaken:
            progress = heard(progress, [pending])
            if joins and not one.spare and pending.trained.arrays:
                progress = dataclasses.replace(progress, pending=(*progress.pending, pending))
        events.append(_event(progress, one, pending, joins and not one.spare, overtaken))
    return Caught(progress, tuple(events))


def _overtaken(progress: Progress, one: Late) -> bool:
    """Whether the board was asked again meanwhile: what it knows now was told then."""
    history = progress.histories.get(one.board)
    return history is not None and (history.last_round or 0) > one.question.ask.round


def _pending(progress: Progress, one: Late, learnt: Collection[str], narrow: NarrowShapes | None) -> Pending:
    ask, arrays = one.question.ask, one.question.arrays or {}
    reply = checked(one.board, one.reply, arrays, narrow)
    trained = TrainResult({}, 0.0, 0.0)
    if reply.trained is not None:
        changed = change(arrays, frozenset(learnt), reply.trained.arrays)
        trained = dataclasses.replace(reply.trained, arrays=changed)
    return Pending(ask.round, ask.start_s, progress.clock_s, reply.answer, trained)


def _event(progress: Progress, one: Late, pending: Pending, joins: bool, overtaken: bool) -> EventRow:
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
    return EventRow(progress.clock_s, progress.round + 1, one.board, LATE_REPLY, message)
