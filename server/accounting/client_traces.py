"""A board's trace of a round, as its row books it: the joules of its stretches are the row's; pure.

The trace that a board sent counts from the round's start. Here it moves to the fleet's clock, ends where the row's time
ends, and is followed by the wait until the round's end at idle power. Of a board that sent none, or one that makes no
sense, the row itself is told in a few stretches. Boards at rest, which have no row, are left out: nothing was asked of
them, and ``RoundRow.resting_energy_j`` holds their joules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedge.telemetry.store_records import ClientRow, EventRow, RoundTrace
from fedge.telemetry.trace_operations import (
    check_plausible_trace,
    clip_trace,
    join_traces,
    make_constant_trace,
    shift_trace,
)
from fedge.types import EMPTY_TRACE, Trace
from fedge.wire import ReplyMessage

TRACE_EVENT = "trace"
"""The kind of event that tells of a trace that was cut or dropped, or that is not of the row's energy."""
ENERGY_TOLERANCE = 0.05
"""From this share on the joules that a trace saw and those that were reported count as different; chosen by us."""
MIN_DIFFERENCE_J = 0.1
"""Fewer joules are not worth an event; chosen by us."""
MAX_OVERRUN_S = 1.0
"""A trace that goes on for longer after its round's end is cut with an event; chosen by us."""
ROUNDING = 1e-9
"""Joules that differ by less than this share are the same."""


@dataclass(frozen=True, slots=True)
class BookedTraces:
    """What is kept of boards' traces, and what in them is worth telling."""

    traces: tuple[RoundTrace, ...] = ()
    events: tuple[EventRow, ...] = ()


NO_PRIOR_WAIT = (0.0, 0.0)


def book_traces(rows: Iterable[ClientRow], answers: Mapping[str, ReplyMessage]) -> BookedTraces:
    """The traces of a round's boards, in the order of their rows."""
    each = [book_trace(row, answers[row.board]) for row in rows]
    return BookedTraces(tuple(t for told in each for t in told.traces), tuple(e for told in each for e in told.events))


def book_trace(row: ClientRow, answer: ReplyMessage, before: tuple[float, float] = NO_PRIOR_WAIT) -> BookedTraces:
    """The trace of a board whose row of the round is ``row``, and who gave ``answer``.

    ``before`` are the seconds and joules of a wait before the round that its row is to hold besides.
    """
    booked_s = _booked_work_s(row) if answer.report is not None else row.wait_s
    seen, events = _read_sent_trace(row, answer)
    part = clip_trace(seen, 0.0, booked_s) if len(seen) else _build_trace_from_row(row)
    trace = join_traces([_wait_before(before), part, _wait_after(row, answer, part)])
    if not len(trace):
        return BookedTraces((), events)
    events = (*events, *_compare_energy(row, answer, part)) if len(seen) else events
    return BookedTraces((RoundTrace(row.round, row.board, shift_trace(trace, row.start_s)),), events)


def strip_trace(answer: ReplyMessage) -> ReplyMessage:
    """The answer without its trace, for what is kept of it once that is in a row."""
    return dataclasses.replace(answer, trace=EMPTY_TRACE) if len(answer.trace) else answer


def _booked_work_s(row: ClientRow) -> float:
    """Seconds from the round's start for which the row books fetching, working and sending."""
    return row.down_s + row.work_s + row.up_s


def _read_sent_trace(row: ClientRow, answer: ReplyMessage) -> tuple[Trace, tuple[EventRow, ...]]:
    """The trace that the board sent; nothing, with an event, when it makes no sense; cut where it is too long."""
    trace = answer.trace
    if trace is EMPTY_TRACE or not len(trace):
        return EMPTY_TRACE, ()
    try:
        check_plausible_trace(trace)
    except ValueError as error:
        return EMPTY_TRACE, (_build_event(row, f"its trace was dropped: {error}"),)
    begin_s, end_s = trace.start_s[0], trace.start_s[-1] + trace.span_s[-1]
    most_s = row.end_s - row.start_s if answer.report is None else answer.report.busy_s
    if begin_s < -MAX_OVERRUN_S or end_s > most_s + MAX_OVERRUN_S:
        told = f"its trace goes from {begin_s:.1f} to {end_s:.1f} s of a round that took it {most_s:.1f} s, and was cut"
        return clip_trace(trace, 0.0, most_s), (_build_event(row, told),)
    return trace, ()


def _build_trace_from_row(row: ClientRow) -> Trace:
    """What the row alone tells: fetching, working and sending, each at its mean power."""
    link_s = row.down_s + row.up_s
    link_w = row.idle_w + (row.radio_j / link_s if link_s > 0 else 0.0)
    work_w = row.work_j / row.work_s if row.work_s > 0 else 0.0
    sent_s = row.down_s + row.work_s
    parts = ((0.0, row.down_s, link_w), (row.down_s, row.work_s, work_w), (sent_s, row.up_s, link_w))
    return join_traces(make_constant_trace(*part) for part in parts)


def _wait_after(row: ClientRow, answer: ReplyMessage, part: Trace) -> Trace:
    """The wait until the round's end, at idle power or at what is left of the row's joules when its battery was empty.

    Of a real board that was cut off without a report it begins where its trace ends.
    """
    begin_s, end_s = _booked_work_s(row), _booked_work_s(row) + row.wait_s
    if answer.report is None and len(part):
        begin_s = part.start_s[-1] + part.span_s[-1]
    seconds = end_s - begin_s
    if seconds <= 0:
        return EMPTY_TRACE
    if row.charge is None:
        return make_constant_trace(begin_s, seconds, row.idle_w)
    left_j = row.energy_j - part.energy_j
    if left_j <= ROUNDING * row.energy_j:
        return make_constant_trace(begin_s, seconds, 0.0)
    return make_constant_trace(begin_s, seconds, min(row.idle_w, left_j / seconds))


def _wait_before(before: tuple[float, float]) -> Trace:
    seconds, joules = before
    return make_constant_trace(-seconds, seconds, joules / seconds) if seconds > 0 else EMPTY_TRACE


def _compare_energy(row: ClientRow, answer: ReplyMessage, part: Trace) -> tuple[EventRow, ...]:
    """An event where the sensors saw other joules than the row books, of the work or of a board that was cut off."""
    seen_j, booked_j, what = clip_trace(part, row.down_s, row.down_s + row.work_s).energy_j, row.work_j, "work"
    if answer.report is None:
        seconds = sum(part.span_s)
        seen_j, booked_j, what = part.energy_j, row.idle_w * seconds, f"{seconds:.1f} s before it was cut off"
    if abs(seen_j - booked_j) <= max(ENERGY_TOLERANCE * booked_j, MIN_DIFFERENCE_J):
        return ()
    return (_build_event(row, f"its sensors saw {seen_j:.1f} J of {what}; its row books {booked_j:.1f} J"),)


def _build_event(row: ClientRow, message: str) -> EventRow:
    return EventRow(row.end_s, round=row.round, board=row.board, kind=TRACE_EVENT, message=message)
