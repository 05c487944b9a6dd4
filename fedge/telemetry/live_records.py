"""Records that a board sends between its replies, with the limits of every field, and their JSON form."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, create_model, with_config

from fedge.json_reader import MalformedJson
from fedge.strict_json import (
    BOARD,
    KNOWN_FIELDS,
    PrintableText,
    decode_json,
    equal_version,
    limit_int,
    limit_number,
    limit_size,
    match_text,
    validate_json,
)
from fedge.telemetry.trace_operations import LONGEST_RAIL, MOST_RAILS, PLAUSIBLE_RANGES, check_trace
from fedge.types import EMPTY_TRACE, Trace
from fedge.wire import list_fields

VERSION = 1
"""Version of the batch's form; a server accepts no other."""
ActivityState = Literal["idle", "fetching", "probing", "training", "sending", "done", "failed"]
UNIX_S = (0.0, 4e10)
"""Unix time, up to the year 3237: milliseconds mistaken for seconds are beyond it."""
POWER_W = (-100.0, 5000.0)
"""Sensors read slightly below zero when no current flows; no board draws kilowatts."""
COLUMN_RANGES = {"start_s": UNIX_S, "span_s": (1e-6, 3600.0), **PLAUSIBLE_RANGES, "power_w": POWER_W}
"""Plausible range of each column of a trace, wide enough for future boards."""
REQUIRED_COLUMNS = ("start_s", "span_s", "power_w")
OVERLAP_S = 1e-3
"""Permitted overlap of two stretches in seconds: unix time is rounded."""
MOST_STRETCHES = 600
"""Upper limit per message: a board sends one stretch a second, and 120 of them at once after an outage."""
LONGEST_NAME, LONGEST_ERROR = 128, 1000
MOST_SEQ = 2**53
"""Larger integers are not represented exactly by every JSON reader."""

BoardName = Annotated[str, match_text(BOARD)]
StreamName = Annotated[str, match_text(re.compile(r"[A-Za-z0-9-]{1,64}"))]
SequenceNumber = Annotated[int, limit_int(1, MOST_SEQ)]
MessageCount = Annotated[int, limit_int(0, MOST_SEQ)]
_Name = Annotated[PrintableText, Field(max_length=LONGEST_NAME)]
_Steps = Annotated[int, limit_int(0, 10**12)]


@with_config(KNOWN_FIELDS)
@dataclass(frozen=True, slots=True)
class BoardProgress:
    """A board's current activity.

    Attributes:
        at_s: Unix time of the report.
        run: Name of the run that it works for; empty: none.
        steps: Steps of the round's share.
        mode: Current power mode, as ``PowerMode`` prints it.
        temperature_c: Hottest zone in degrees C.
    """

    board: BoardName
    at_s: Annotated[float, limit_number(*UNIX_S)]
    state: ActivityState
    device: _Name = ""
    run: _Name = ""
    round: Annotated[int, limit_int(0, 10**9)] = 0
    steps: _Steps = 0
    steps_done: _Steps = 0
    mode: _Name = ""
    power_w: Annotated[float, limit_number(*POWER_W)] | None = None
    temperature_c: Annotated[float, limit_number(*COLUMN_RANGES["temperature_c"])] | None = None
    error: Annotated[PrintableText, Field(max_length=LONGEST_ERROR)] = ""


def parse_trace(value: object) -> Trace:
    """Validate the trace of a message.

    Raises:
        MalformedJson: A column is missing, of another length than the others, or holds an implausible value, or
            stretches overlap.
    """
    if value == {}:
        return EMPTY_TRACE
    form = validate_json(value, _build_trace_form(), "trace")
    count = len(form.start_s)
    columns = {name: getattr(form, name) for name in COLUMN_RANGES}
    for name in REQUIRED_COLUMNS if count else ():
        if columns[name] is None:
            raise MalformedJson(f"{name} is missing")
    columns = {name: (None,) * count if column is None else column for name, column in columns.items()}
    rails_w = {rail: (None,) * count if column is None else column for rail, column in form.rails_w.items()}
    try:
        return check_trace(Trace(**columns, rails_w=rails_w), OVERLAP_S)
    except ValueError as error:
        raise MalformedJson(f"trace: {error}") from error


@cache
def _build_trace_form() -> Any:
    """Return the model of a trace in JSON: a column that is null or absent has no value."""
    form: dict[str, Any] = {name: (_column_type(name, within) | None, None) for name, within in COLUMN_RANGES.items()}
    form["start_s"] = _column_type("start_s", UNIX_S)
    watts, rail = _column_type("rails_w", POWER_W), Annotated[PrintableText, Field(max_length=LONGEST_RAIL)]
    form["rails_w"] = (Annotated[dict[rail, watts | None], limit_size(MOST_RAILS)], {})  # type: ignore[valid-type]
    return create_model("TraceForm", __config__=KNOWN_FIELDS, **form)


def _column_type(name: str, within: tuple[float, float]) -> Any:
    number = Annotated[float, limit_number(*within)]
    column = tuple[number, ...] if name in REQUIRED_COLUMNS else tuple[number | None, ...]
    return Annotated[column, limit_size(MOST_STRETCHES)]


@with_config(KNOWN_FIELDS)
@dataclass(frozen=True, slots=True)
class TelemetryBatch:
    """One message of a board.

    Attributes:
        stream: Name of the sender's start, so that the server can identify messages that it has already accepted.
        seq: Number within the stream, from 1.
        trace: Samples in Unix time.
        lost: Samples that the board has had to drop in this stream because they could not be sent in time.
    """

    version: Annotated[int, Field(strict=True), equal_version(VERSION)]
    board: BoardName
    stream: StreamName
    seq: SequenceNumber
    trace: Annotated[Trace, PlainValidator(parse_trace)] = EMPTY_TRACE
    progress: BoardProgress | None = None
    lost: MessageCount = 0


# JSON form of a message; every received field is validated ------------------------------------------------------------


MAX_MESSAGE_BYTES = 512 * 1024
"""Upper limit of a message in bytes: several times the size of the largest batch with a board's usual rails."""


class OversizedMessage(MalformedJson):
    """A message above ``MAX_MESSAGE_BYTES``."""


def encode_batch(batch: TelemetryBatch) -> bytes:
    """Encode a batch as JSON; columns without any value are left out.

    Raises:
        ValueError: A number is not finite.
    """
    fields = list_fields(batch)
    fields["trace"] = {name: column for name, column in list_fields(batch.trace).items() if _has_values(column)}
    fields["progress"] = None if batch.progress is None else list_fields(batch.progress)
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("utf-8")


def decode_batch(data: bytes) -> TelemetryBatch:
    """Decode and validate a message.

    Raises:
        OversizedMessage: The message is too large.
        MalformedJson: A field is missing, of the wrong type or out of range.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise OversizedMessage(f"got a message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are right")
    batch = decode_json(data, TelemetryBatch, "message")
    if batch.progress is not None and batch.progress.board != batch.board:
        raise MalformedJson(f"progress: got that of {batch.progress.board!r} in a message of {batch.board!r}")
    return batch


def trace_bounds_s(trace: Trace) -> tuple[float, float]:
    """Return begin and end of a non-empty trace, in the unit of its clock."""
    return trace.start_s[0], trace.start_s[-1] + trace.span_s[-1]


def keep_plausible(trace: Trace) -> Trace:
    """Return the trace without values that a server would reject.

    An implausible value becomes None and loads are clipped to 0 to 1. A stretch with implausible power or time is
    removed.
    """
    required = [(getattr(trace, name), COLUMN_RANGES[name]) for name in REQUIRED_COLUMNS]
    kept = [i for i in range(len(trace)) if all(_is_plausible(column[i], within) for column, within in required)]
    if not kept:
        return EMPTY_TRACE
    columns: dict[str, Any] = {
        name: _pick_plausible(getattr(trace, name), kept, within) for name, within in COLUMN_RANGES.items()
    }
    rails = [rail for rail in sorted(trace.rails_w)[:MOST_RAILS] if rail[:LONGEST_RAIL].isprintable()]
    rails_w = {rail[:LONGEST_RAIL]: _pick_plausible(trace.rails_w[rail], kept, POWER_W) for rail in rails}
    return Trace(**columns, rails_w=rails_w)


def plausible_or_none(value: float | None, within: tuple[float, float]) -> float | None:
    """Return the value, or None if it is outside the range."""
    return value if _is_plausible(value, within) else None


def _is_plausible(value: float | None, within: tuple[float, float]) -> bool:
    return value is not None and within[0] <= value <= within[1]


def _pick_plausible(
    column: tuple[float | None, ...], kept: list[int], within: tuple[float, float]
) -> tuple[float | None, ...]:
    values = [column[i] if column else None for i in kept]
    if within == (0.0, 1.0):  # a load that was rounded to 1.001 is a full one
        values = [min(max(v, 0.0), 1.0) if v is not None and math.isfinite(v) else v for v in values]
    return tuple(plausible_or_none(value, within) for value in values)


def _has_values(column: Any) -> bool:
    return any(value is not None for value in column)
