"""Power traces of a round, consistent with the client rows: a trace integrates to the energy of its row. Pure.

A client's trace counts time from the start of the round. It is shifted to simulated time, clipped to the booked time of
the row, and followed by the wait until the end of the round at idle power. If a client sent no trace, or an implausible
one, a coarse trace is built from the row. Idle clients have no row and no trace; their energy is in
``RoundRow.resting_energy_j``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedge.telemetry.live_records import trace_bounds_s
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
"""Kind of the event for a trace that was clipped or dropped, or whose energy differs from that of the row."""
ENERGY_TOLERANCE = 0.05
"""Relative difference between traced and reported energy above which an event is stored. A default: smaller values
report sensor noise, larger ones hide a sensor that measures other rails.
"""
MIN_DIFFERENCE_J = 0.1
"""Smallest difference in joules that is stored as an event, so that very short rounds do not produce events."""
MAX_OVERRUN_S = 1.0
"""Seconds by which a trace may exceed its round before it is clipped with an event. A default: it allows for the
sampling period of the slowest sensor.
"""
ROUNDING = 1e-9
"""Relative difference below which two energies count as equal (floating-point rounding)."""


@dataclass(frozen=True, slots=True)
class BookedTraces:
    """Traces to store, and the events found while checking them."""

    traces: tuple[RoundTrace, ...] = ()
    events: tuple[EventRow, ...] = ()


NO_PRIOR_WAIT = (0.0, 0.0)


def book_traces(rows: Iterable[ClientRow], answers: Mapping[str, ReplyMessage]) -> BookedTraces:
    """Build the traces of all clients of a round, in the order of the rows, and the events of checking them."""
    each = [book_trace(row, answers[row.board]) for row in rows]
    return BookedTraces(tuple(t for one in each for t in one.traces), tuple(e for one in each for e in one.events))


def book_trace(row: ClientRow, answer: ReplyMessage, before: tuple[float, float] = NO_PRIOR_WAIT) -> BookedTraces:
    """Build the trace of one client; ``before`` is a wait that the row includes, in seconds and joules."""
    booked_s = _booked_work_s(row) if answer.report is not None else row.wait_s
    sent_trace, events = _read_sent_trace(row, answer)
    part = clip_trace(sent_trace, 0.0, booked_s) if len(sent_trace) else _build_trace_from_row(row)
    waited_s, waited_j = before
    wait = make_constant_trace(-waited_s, waited_s, waited_j / waited_s) if waited_s > 0 else EMPTY_TRACE
    trace = join_traces([wait, part, _wait_after(row, answer, part)])
    if not len(trace):
        return BookedTraces((), events)
    events = (*events, *_compare_energy(row, answer, part)) if len(sent_trace) else events
    return BookedTraces((RoundTrace(row.round, row.board, shift_trace(trace, row.start_s)),), events)


def strip_trace(answer: ReplyMessage) -> ReplyMessage:
    """Return the reply without its trace, to keep it after the trace has been stored."""
    return dataclasses.replace(answer, trace=EMPTY_TRACE) if len(answer.trace) else answer


def _booked_work_s(row: ClientRow) -> float:
    """Seconds from the start of the round that the row books for downloading, training and uploading."""
    return row.down_s + row.work_s + row.up_s


def _read_sent_trace(row: ClientRow, answer: ReplyMessage) -> tuple[Trace, tuple[EventRow, ...]]:
    """Return the client's trace: empty with an event if it is implausible, clipped if it is too long."""
    trace = answer.trace
    if trace is EMPTY_TRACE or not len(trace):
        return EMPTY_TRACE, ()
    try:
        check_plausible_trace(trace)
    except ValueError as error:
        return EMPTY_TRACE, (_build_event(row, f"its trace was dropped: {error}"),)
    begin_s, end_s = trace_bounds_s(trace)
    most_s = row.end_s - row.start_s if answer.report is None else answer.report.busy_s
    if begin_s < -MAX_OVERRUN_S or end_s > most_s + MAX_OVERRUN_S:
        text = f"its trace goes from {begin_s:.1f} to {end_s:.1f} s of a round that took it {most_s:.1f} s, and was cut"
        return clip_trace(trace, 0.0, most_s), (_build_event(row, text),)
    return trace, ()


def _build_trace_from_row(row: ClientRow) -> Trace:
    """Build a trace from the row alone: download, training and upload, each at its mean power."""
    link_s = row.down_s + row.up_s
    link_w = row.idle_w + (row.radio_j / link_s if link_s > 0 else 0.0)
    work_w = row.work_j / row.work_s if row.work_s > 0 else 0.0
    sent_s = row.down_s + row.work_s
    parts = ((0.0, row.down_s, link_w), (row.down_s, row.work_s, work_w), (sent_s, row.up_s, link_w))
    return join_traces(make_constant_trace(*part) for part in parts)


def _wait_after(row: ClientRow, answer: ReplyMessage, part: Trace) -> Trace:
    """Build the trace of the wait until the end of the round.

    Power is the idle power, or, if the battery ran empty, the mean of what is left of the row's energy. For a real
    board that was cut off without a report, the wait starts where its trace ends.
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


def _compare_energy(row: ClientRow, answer: ReplyMessage, part: Trace) -> tuple[EventRow, ...]:
    """Return an event if the energies of trace and row differ, for the work or for a client that was cut off."""
    seen_j, booked_j, what = clip_trace(part, row.down_s, row.down_s + row.work_s).energy_j, row.work_j, "work"
    if answer.report is None:
        seconds = sum(part.span_s)
        seen_j, booked_j, what = part.energy_j, row.idle_w * seconds, f"{seconds:.1f} s before it was cut off"
    if abs(seen_j - booked_j) <= max(ENERGY_TOLERANCE * booked_j, MIN_DIFFERENCE_J):
        return ()
    return (_build_event(row, f"its sensors saw {seen_j:.1f} J of {what}; its row books {booked_j:.1f} J"),)


def _build_event(row: ClientRow, message: str) -> EventRow:
    return EventRow(row.end_s, round=row.round, board=row.board, kind=TRACE_EVENT, message=message)
