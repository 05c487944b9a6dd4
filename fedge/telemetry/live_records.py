"""Records that a board sends between its replies, with the limits of every field: progress, and samples in batches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, create_model, with_config

from fedge.json_reader import MalformedJson
from fedge.strict_json import (
    BOARD,
    KNOWN_FIELDS,
    PrintableText,
    equal_version,
    limit_int,
    limit_number,
    limit_size,
    match_text,
    validate_json,
)
from fedge.telemetry.trace_operations import LONGEST_RAIL, MOST_RAILS, PLAUSIBLE_RANGES
from fedge.types import EMPTY_TRACE, Trace

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
    for name, column in (*columns.items(), *(("rails_w", column) for column in rails_w.values())):
        if len(column) != count:
            raise MalformedJson(f"{name}: a list of {count} numbers is right")
    ends = (start + span for start, span in zip(columns["start_s"], columns["span_s"], strict=True))
    for end, (_, following) in zip(ends, pairwise(columns["start_s"]), strict=False):
        if following < end - OVERLAP_S:
            raise MalformedJson(f"trace: a stretch begins at {following:.3f}, before the one in front of it ends")
    return Trace(**columns, rails_w=rails_w)


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
        trace: Samples in unix time.
        lost: Samples that the board has had to drop in this stream because they could not be sent in time.
    """

    version: Annotated[int, Field(strict=True), equal_version(VERSION)]
    board: BoardName
    stream: StreamName
    seq: SequenceNumber
    trace: Annotated[Trace, PlainValidator(parse_trace)] = EMPTY_TRACE
    progress: BoardProgress | None = None
    lost: MessageCount = 0
