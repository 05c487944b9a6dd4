"""JSON form of a board's message; every received field is validated."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from fedge.json_reader import MalformedJson
from fedge.strict_json import decode_json
from fedge.telemetry.live_records import (
    COLUMN_RANGES,
    POWER_W,
    REQUIRED_COLUMNS,
    TelemetryBatch,
)
from fedge.telemetry.trace_operations import LONGEST_RAIL, MOST_RAILS
from fedge.types import EMPTY_TRACE, Trace

MAX_MESSAGE_BYTES = 512 * 1024
"""Upper limit of a message in bytes: several times the size of the largest batch with a board's usual rails."""


class OversizedMessage(MalformedJson):
    """A message above ``MAX_MESSAGE_BYTES``."""


def encode_batch(batch: TelemetryBatch) -> bytes:
    """Encode a batch as JSON; columns without any value are left out.

    Raises:
        ValueError: A number is not finite.
    """
    fields = _list_fields(batch)
    fields["trace"] = {name: column for name, column in _list_fields(batch.trace).items() if _has_values(column)}
    fields["progress"] = None if batch.progress is None else _list_fields(batch.progress)
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


def _list_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass; ``dataclasses.asdict`` would copy every number of a trace."""
    return {item.name: getattr(record, item.name) for item in dataclasses.fields(record)}


def _has_values(column: Any) -> bool:
    return any(value is not None for value in column)
