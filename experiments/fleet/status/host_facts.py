"""Conversions of untrusted facts that a host reported: any input is accepted, the expected type is returned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]


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
