"""The JSON form of a board's message; what arrives is checked field by field, and nothing of it is taken on trust."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from itertools import pairwise
from typing import Any

from fedge.telemetry import progress as statements
from fedge.telemetry.live import VERSION, Batch
from fedge.telemetry.strict import BOARD, Malformed, Range, fields, matching, maybe, number, parsed, text, whole
from fedge.types import NOTHING_SEEN, Trace

LARGEST = 512 * 1024
"""Bytes of a message. Chosen by us: several times what the most stretches with a board's usual rails take."""
MOST_STRETCHES, MOST_RAILS = 600, 32
"""Of one message. Chosen by us: a board sends one stretch a second, and 120 of them at once after an outage."""
MOST_SEQ = 2**53
"""Numbers beyond it are not told apart by every reader of JSON."""
STREAM = re.compile(r"[A-Za-z0-9-]{1,64}")
LONGEST_RAIL = 64
OVERLAP_S = 1e-3
"""Two stretches may overlap by so much: what rounding does to unix time. Chosen by us."""

NAMES = tuple(each.name for each in dataclasses.fields(Batch))
COLUMNS = tuple(each.name for each in dataclasses.fields(Trace))
NEEDED = ("start_s", "span_s", "power_w")
NUMBERS: dict[str, Range] = {
    "start_s": statements.UNIX_S,
    "span_s": Range(1e-6, 3600.0),
    "power_w": statements.POWER_W,
    "temperature_c": statements.TEMPERATURE_C,
    "cpu_mhz": Range(0.0, 1e5),
    "gpu_mhz": Range(0.0, 1e5),
    "mem_mhz": Range(0.0, 1e5),
    "cpu_load": Range(0.0, 1.0),
    "gpu_load": Range(0.0, 1.0),
    "mem_load": Range(0.0, 1.0),
}
"""What is plausible of a stretch, wide enough for boards to come. Chosen by us."""


class Huge(Malformed):
    """A message that is larger than any can be."""


def to_bytes(batch: Batch) -> bytes:
    """The message; raises ``ValueError`` when a number is not finite."""
    shaped: dict[str, Any] = {name: getattr(batch, name) for name in NAMES}
    shaped["trace"] = {name: column for name in COLUMNS if _tells(column := getattr(batch.trace, name))}
    shaped["progress"] = None if batch.progress is None else statements.to_json(batch.progress)
    return json.dumps(shaped, separators=(",", ":"), allow_nan=False).encode("utf-8")


def from_bytes(data: bytes) -> Batch:
    """The batch in a message; raises ``Huge``, and ``Malformed`` for whatever else is wrong with it."""
    if len(data) > LARGEST:
        raise Huge(f"got a message of {len(data)} bytes; at most {LARGEST} are right")
    said = fields(parsed(data), "message", ("version", "board", "stream", "seq"), NAMES)
    if whole(said["version"], "version", 0, 10**6) != VERSION:
        raise Malformed(f"version: got {said['version']}; {VERSION} is right: two different releases")
    board, told = matching(said["board"], "board", BOARD), said.get("progress")
    state = None if told is None else statements.from_json(told)
    if state is not None and state.board != board:
        raise Malformed(f"progress: got that of {state.board!r} in a message of {board!r}")
    return Batch(
        version=VERSION,
        board=board,
        stream=matching(said["stream"], "stream", STREAM),
        seq=whole(said["seq"], "seq", 1, MOST_SEQ),
        trace=_trace(said.get("trace", {})),
        progress=state,
        lost=whole(said.get("lost", 0), "lost", 0, MOST_SEQ),
    )


def span_of(trace: Trace) -> tuple[float, float]:
    """When a trace that is not empty begins and ends, unix time."""
    return trace.start_s[0], trace.start_s[-1] + trace.span_s[-1]


def sendable(trace: Trace) -> Trace:
    """``trace`` with what no server takes left out: a value that is not plausible is unknown, loads are from 0 to 1.

    A stretch whose own power or time is not plausible is left out as a whole.
    """
    kept = [
        i
        for i in range(len(trace))
        if all(plausible(getattr(trace, name)[i], NUMBERS[name]) is not None for name in NEEDED)
    ]
    if not kept:
        return NOTHING_SEEN
    columns = {name: _picked(getattr(trace, name), kept, within) for name, within in NUMBERS.items()}
    rails = sorted(trace.rails_w)[:MOST_RAILS]
    named = {rail[:LONGEST_RAIL]: _picked(trace.rails_w[rail], kept, statements.POWER_W) for rail in rails}
    printable = {rail: column for rail, column in named.items() if rail.isprintable()}
    shaped: dict[str, Any] = {**columns, "rails_w": printable}
    return Trace(**shaped)


def plausible(value: float | None, within: Range) -> float | None:
    """The value, or None when no server takes it."""
    return value if value is not None and within.least <= value <= within.most else None


def _picked(column: tuple[float | None, ...], kept: list[int], within: Range) -> tuple[float | None, ...]:
    load = within.most == 1.0  # a load that was rounded to 1.001 is a full one
    values = [column[i] if column else None for i in kept]
    whole_ones = [min(max(v, 0.0), 1.0) if load and v is not None and math.isfinite(v) else v for v in values]
    return tuple(plausible(v, within) for v in whole_ones)


def _tells(column: object) -> bool:
    """Whether a column says anything: one without any value need not travel."""
    return any(value is not None for value in column) if isinstance(column, tuple) else bool(column)


def _trace(value: object) -> Trace:
    said = fields(value, "trace", (), COLUMNS)
    starts = said.get("start_s", ())
    if said and type(starts) is not list:
        raise Malformed("trace.start_s: a list is right")
    count = whole(len(starts), "trace's stretches", 0, MOST_STRETCHES)
    columns = {name: _column(said.get(name), name, count, within) for name, within in NUMBERS.items()}
    rails = said.get("rails_w", {})
    if type(rails) is not dict or len(rails) > MOST_RAILS:
        raise Malformed(f"rails_w: an object of at most {MOST_RAILS} rails is right")
    watts = {
        text(name, "rail", LONGEST_RAIL): _column(values, "rails_w", count, statements.POWER_W)
        for name, values in rails.items()
    }
    shaped: dict[str, Any] = {**columns, "rails_w": watts}
    trace = Trace(**shaped)
    _ordered(trace)
    return trace


def _column(values: object, name: str, count: int, within: Range) -> tuple[float | None, ...]:
    """One column of ``count`` numbers; those that every stretch has hold no None."""
    if values is None:
        if name in NEEDED and count:
            raise Malformed(f"{name} is missing")
        return (None,) * count
    if type(values) is not list or len(values) != count:
        raise Malformed(f"{name}: a list of {count} numbers is right")
    read = number if name in NEEDED else maybe
    return tuple([read(value, name, within) for value in values])


def _ordered(trace: Trace) -> None:
    ends = (start + span for start, span in zip(trace.start_s, trace.span_s, strict=True))
    for end, (_, following) in zip(ends, pairwise(trace.start_s), strict=False):
        if following < end - OVERLAP_S:
            raise Malformed(f"trace: a stretch begins at {following:.3f}, before the one in front of it ends")
