"""From what was looked at to a strip over time and to each epoch's loads; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedge.characterisation.here.looking import Look
from fedge.characterisation.seen import Strip
from fedge.types import Floats


def strip_of(looks: Sequence[Look], begun_s: float) -> Strip:
    """Element i is of the stretch that ends with look i + 1; times count from ``begun_s``."""
    at_s = _column(looks, "at_s")
    span_s = np.maximum(np.diff(at_s), 1e-9)
    ticks = np.maximum(np.diff(_column(looks, "ticks_so_far")), 1e-9)
    nothing = np.full(len(span_s), math.nan)
    return Strip(
        at_s=at_s[1:] - begun_s,
        cpu_load=np.clip(np.diff(_column(looks, "busy_so_far")) / ticks, 0.0, 1.0),
        gpu_load=nothing,
        memory_mb=_column(looks, "memory_mb")[1:],
        disk_mb_per_s=np.diff(_column(looks, "read_bytes_so_far")) / 1e6 / span_s,
        power_w=np.diff(_column(looks, "joules_so_far")) / span_s,
        temperature_c=_column(looks, "temperature_c")[1:],
    )


def grown(looks: Sequence[Look], name: str, start_s: float, end_s: float) -> float | None:
    """By how much a counter grew from one moment to another, between looks along a line; None where nothing tells."""
    ends = np.interp([start_s, end_s], _column(looks, "at_s"), _column(looks, name))
    grew = float(ends[1] - ends[0])
    return None if math.isnan(grew) else grew


def load(looks: Sequence[Look], start_s: float, end_s: float) -> float | None:
    """Mean load of all cores over a stretch, 0 to 1."""
    busy, ticks = (grown(looks, name, start_s, end_s) for name in ("busy_so_far", "ticks_so_far"))
    return None if busy is None or not ticks else min(1.0, busy / ticks)


def highest(looks: Sequence[Look], name: str, start_s: float, end_s: float) -> float | None:
    """The highest value of a stretch and of the looks about it; None where there is no sensor."""
    at_s, values = _column(looks, "at_s"), _column(looks, name)
    first, last = np.searchsorted(at_s, start_s, "right") - 1, np.searchsorted(at_s, end_s, "left")
    among = values[max(0, first) : last + 1]
    among = among[~np.isnan(among)]
    return float(among.max()) if len(among) else None


def _column(looks: Sequence[Look], name: str) -> Floats:
    return np.array([getattr(look, name) for look in looks], dtype=np.float64)
