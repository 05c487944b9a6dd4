"""Facts are whatever a host said: each of these takes anything, and gives the kind of value that was hoped for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]


def as_mapping(value: object) -> Facts:
    """A mapping; an empty one in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


def as_rows(value: object) -> list[Facts]:
    """The mappings of a list."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def as_lines(value: object) -> list[str]:
    """The texts of a list."""
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []


def as_text(value: object) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None


def as_number(value: object) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def error_kind(value: object) -> str | None:
    """The kind of error that stands in place of a part."""
    found = as_mapping(value)
    return str(found["error"]) if "error" in found else None


def least_free_mb(free_mb: object) -> float | None:
    """The least free megabytes of several folders."""
    known = [free for value in as_mapping(free_mb).values() if (free := as_number(value)) is not None]
    return min(known, default=None)
