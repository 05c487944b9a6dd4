"""JSON form of a board's message; every received field is validated."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from itertools import pairwise
from typing import Any

from fedge.telemetry import progress_files as statements
from fedge.telemetry.live_records import VERSION, TelemetryBatch
from fedge.telemetry.strict_json import (
    BOARD,
    MalformedJson,
    NumberRange,
    check_fields,
    check_int,
    check_number,
    check_optional_number,
    check_pattern,
    check_text,
    parse_json,
)
from fedge.types import EMPTY_TRACE, Trace

MAX_MESSAGE_BYTES = 512 * 1024
"""Upper limit of a message in bytes: several times the size of the largest batch with a board's usual rails."""
MOST_STRETCHES, MOST_RAILS = 600, 32
"""Upper limits per message: a board sends one stretch a second, and 120 of them at once after an outage."""
MOST_SEQ = 2**53
"""Larger integers are not represented exactly by every JSON reader."""
STREAM = re.compile(r"[A-Za-z0-9-]{1,64}")
LONGEST_RAIL = 64
OVERLAP_S = 1e-3
"""Permitted overlap of two stretches in seconds: unix time is rounded."""

NAMES = tuple(each.name for each in dataclasses.fields(TelemetryBatch))
COLUMNS = tuple(each.name for each in dataclasses.fields(Trace))
REQUIRED_COLUMNS = ("start_s", "span_s", "power_w")
COLUMN_RANGES: dict[str, NumberRange] = {
    "start_s": statements.UNIX_S,
    "span_s": NumberRange(1e-6, 3600.0),
    "power_w": statements.POWER_W,
    "temperature_c": statements.TEMPERATURE_C,
    "cpu_mhz": NumberRange(0.0, 1e5),
    "gpu_mhz": NumberRange(0.0, 1e5),
    "mem_mhz": NumberRange(0.0, 1e5),
    "cpu_load": NumberRange(0.0, 1.0),
    "gpu_load": NumberRange(0.0, 1.0),
    "mem_load": NumberRange(0.0, 1.0),
}
"""Plausible range of each column, wide enough for future boards."""


class OversizedMessage(MalformedJson):
    """A message above ``MAX_MESSAGE_BYTES``."""


def encode_batch(batch: TelemetryBatch) -> bytes:
    """Encode a batch as JSON.

    Raises:
        ValueError: A number is not finite.
    """
    shaped: dict[str, Any] = {name: getattr(batch, name) for name in NAMES}
    shaped["trace"] = {name: column for name in COLUMNS if _has_values(column := getattr(batch.trace, name))}
    shaped["progress"] = None if batch.progress is None else statements.to_json(batch.progress)
    return json.dumps(shaped, separators=(",", ":"), allow_nan=False).encode("utf-8")


def decode_batch(data: bytes) -> TelemetryBatch:
    """Decode and validate a message.

    Raises:
        OversizedMessage: The message is too large.
        MalformedJson: A field is missing, of the wrong type or out of range.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise OversizedMessage(f"got a message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are right")
    said = check_fields(parse_json(data), "message", ("version", "board", "stream", "seq"), NAMES)
    if check_int(said["version"], "version", 0, 10**6) != VERSION:
        raise MalformedJson(f"version: got {said['version']}; {VERSION} is right: two different releases")
    board, told = check_pattern(said["board"], "board", BOARD), said.get("progress")
    state = None if told is None else statements.from_json(told)
    if state is not None and state.board != board:
        raise MalformedJson(f"progress: got that of {state.board!r} in a message of {board!r}")
    return TelemetryBatch(
        version=VERSION,
        board=board,
        stream=check_pattern(said["stream"], "stream", STREAM),
        seq=check_int(said["seq"], "seq", 1, MOST_SEQ),
        trace=_parse_trace(said.get("trace", {})),
        progress=state,
        lost=check_int(said.get("lost", 0), "lost", 0, MOST_SEQ),
    )


def trace_bounds_s(trace: Trace) -> tuple[float, float]:
    """Return begin and end of a non-empty trace, in the unit of its clock."""
    return trace.start_s[0], trace.start_s[-1] + trace.span_s[-1]


def keep_plausible(trace: Trace) -> Trace:
    """Return the trace without values that a server would reject.

    An implausible value becomes None and loads are clipped to 0 to 1. A stretch with implausible power or time is
    removed.
    """
    kept = [
        i
        for i in range(len(trace))
        if all(plausible_or_none(getattr(trace, name)[i], COLUMN_RANGES[name]) is not None for name in REQUIRED_COLUMNS)
    ]
    if not kept:
        return EMPTY_TRACE
    columns = {name: _pick_plausible(getattr(trace, name), kept, within) for name, within in COLUMN_RANGES.items()}
    rails = sorted(trace.rails_w)[:MOST_RAILS]
    named = {rail[:LONGEST_RAIL]: _pick_plausible(trace.rails_w[rail], kept, statements.POWER_W) for rail in rails}
    printable = {rail: column for rail, column in named.items() if rail.isprintable()}
    shaped: dict[str, Any] = {**columns, "rails_w": printable}
    return Trace(**shaped)


def plausible_or_none(value: float | None, within: NumberRange) -> float | None:
    """Return the value, or None if it is outside the range."""
    return value if value is not None and within.least <= value <= within.most else None


def _pick_plausible(column: tuple[float | None, ...], kept: list[int], within: NumberRange) -> tuple[float | None, ...]:
    load = within.most == 1.0  # a load that was rounded to 1.001 is a full one
    values = [column[i] if column else None for i in kept]
    whole_ones = [min(max(v, 0.0), 1.0) if load and v is not None and math.isfinite(v) else v for v in values]
    return tuple(plausible_or_none(v, within) for v in whole_ones)


def _has_values(column: object) -> bool:
    """Return whether a column has any value; others are not sent."""
    return any(value is not None for value in column) if isinstance(column, tuple) else bool(column)


def _parse_trace(value: object) -> Trace:
    said = check_fields(value, "trace", (), COLUMNS)
    starts = said.get("start_s", ())
    if said and type(starts) is not list:
        raise MalformedJson("trace.start_s: a list is right")
    count = check_int(len(starts), "trace's stretches", 0, MOST_STRETCHES)
    columns = {name: _parse_column(said.get(name), name, count, within) for name, within in COLUMN_RANGES.items()}
    rails = said.get("rails_w", {})
    if type(rails) is not dict or len(rails) > MOST_RAILS:
        raise MalformedJson(f"rails_w: an object of at most {MOST_RAILS} rails is right")
    watts = {
        check_text(name, "rail", LONGEST_RAIL): _parse_column(values, "rails_w", count, statements.POWER_W)
        for name, values in rails.items()
    }
    shaped: dict[str, Any] = {**columns, "rails_w": watts}
    trace = Trace(**shaped)
    _check_order(trace)
    return trace


def _parse_column(values: object, name: str, count: int, within: NumberRange) -> tuple[float | None, ...]:
    """Parse one column of ``count`` numbers; required columns contain no None."""
    if values is None:
        if name in REQUIRED_COLUMNS and count:
            raise MalformedJson(f"{name} is missing")
        return (None,) * count
    if type(values) is not list or len(values) != count:
        raise MalformedJson(f"{name}: a list of {count} numbers is right")
    read = check_number if name in REQUIRED_COLUMNS else check_optional_number
    return tuple([read(value, name, within) for value in values])


def _check_order(trace: Trace) -> None:
    ends = (start + span for start, span in zip(trace.start_s, trace.span_s, strict=True))
    for end, (_, following) in zip(ends, pairwise(trace.start_s), strict=False):
        if following < end - OVERLAP_S:
            raise MalformedJson(f"trace: a stretch begins at {following:.3f}, before the one in front of it ends")
