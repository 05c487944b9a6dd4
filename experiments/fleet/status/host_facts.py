"""Conversions of untrusted facts that a host reported, and clock offsets from them.

Any input is accepted, and the expected type is returned. Offsets are intervals: each remote reading lies between two
readings of the control node's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]
UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))


def as_mapping(value: object) -> Facts:
    """Return the value if it is a mapping, otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_rows(value: object) -> list[Facts]:
    """Return the mappings in a list; other items are dropped."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def as_lines(value: object) -> list[str]:
    """Return the strings in a list; other items are dropped."""
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []


def as_text(value: object) -> str | None:
    """Return the value if it is a non-empty string, otherwise None."""
    return value if isinstance(value, str) and value else None


def as_number(value: object) -> float | None:
    """Return the value as a finite float, otherwise None; booleans do not count as numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def error_kind(value: object) -> str | None:
    """Return the kind of error reported in place of a fact, or None."""
    found = as_mapping(value)
    return str(found["error"]) if "error" in found else None


def least_free_mb(free_mb: object) -> float | None:
    """Return the smallest free space among several folders, in MB."""
    known = [free for value in as_mapping(free_mb).values() if (free := as_number(value)) is not None]
    return min(known, default=None)


# Clocks ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Lower and upper bound on how far one clock is ahead of another, in seconds."""

    least_s: float
    most_s: float

    @property
    def middle_s(self) -> float:
        return (self.least_s + self.most_s) / 2

    @property
    def uncertainty_s(self) -> float:
        return abs(self.most_s - self.least_s) / 2


def measure_offset(told: Facts) -> ClockOffset | None:
    """Bound a host's clock offset against the control node.

    Args:
        told: ``asked_at_s`` and ``answered_at_s`` by the control node's clock, and the host's ``facts`` with ``at_s``
            and optionally ``done_at_s`` by the host's clock (Unix time, seconds).

    Returns:
        The bounds, or None if a reading is missing.
    """
    facts = as_mapping(told.get("facts"))
    asked_s, answered_s, at_s = (
        as_number(told.get("asked_at_s")),
        as_number(told.get("answered_at_s")),
        as_number(facts.get("at_s")),
    )
    if asked_s is None or answered_s is None or at_s is None:
        return None
    done_s = as_number(facts.get("done_at_s"))
    return ClockOffset((at_s if done_s is None else done_s) - answered_s, at_s - asked_s)


def subtract_offset(clock: ClockOffset | None, server: ClockOffset | None) -> ClockOffset | None:
    """Bound a board's clock offset against the server from both offsets against the control node."""
    if clock is None or server is None:
        return None
    return ClockOffset(clock.least_s - server.most_s, clock.most_s - server.least_s)


def format_duration(seconds: float) -> str:
    """Format a duration for people, in the largest fitting unit."""
    for unit_s, unit in UNITS:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
