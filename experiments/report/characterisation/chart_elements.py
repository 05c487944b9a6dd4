"""Elements that the charts share: the parts of an epoch with their colours, error bars, and thinning of long series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.report.chart import error_bars
from experiments.report.palette import GREY
from experiments.report.quantities import number
from fedge.characterisation.confidence_interval import Estimate
from fedge.types import Floats


@dataclass(frozen=True, slots=True)
class EpochPart:
    """One part of an epoch or minibatch.

    Attributes:
        field: Name of the field in the records, in seconds.
    """

    field: str
    name: str
    colour: str


STALL = EpochPart("stall_s", "stall", "#E69F00")
COPY = EpochPart("copy_s", "copy", "#CC79A7")
COMPUTE = EpochPart("compute_s", "compute", "#0072B2")
OVERHEAD = EpochPart("overhead_s", "overhead", GREY)
FETCH = EpochPart("fetch_s", "fetch", "#56B4E9")
PREPROCESS = EpochPart("preprocess_s", "preprocess", "#7A6FAC")
REST_OF_EPOCH = EpochPart("rest_s", "rest of the epoch", "#c4cad1")
"""End to end minus the timed parts: start and shutdown of the loader, and gaps between timers."""
STACKED_PARTS = (STALL, COPY, COMPUTE, OVERHEAD)
"""Parts that follow one another in a minibatch and add up to it."""
TIMELINE_PARTS = (STALL, COMPUTE, FETCH, PREPROCESS)
"""Parts shown over time; the last two overlap with training if there are workers, else they make up the stall."""
LINE_COLOURS = ("#009E73", "#D55E00", "#8C8C1A", "#8b4a2b", "#117a8b", "#c2185b")
"""Colours of boards and workloads, none of which is that of a part."""


def make_error_bars(amounts: Sequence[Estimate | None], per: float = 1.0, colour: str = GREY) -> dict[str, Any]:
    """Return Plotly's ``error_x`` or ``error_y`` for 95 % intervals, divided by ``per`` and not drawn below zero.

    None and unbounded estimates have no bar.
    """
    bounded = [one if one is not None and one.is_bounded else None for one in amounts]
    if all(one is None for one in bounded):
        return {"visible": False}
    upper = [None if one is None else (one.high - one.value) / per for one in bounded]
    lower = [None if one is None else (one.value - max(one.low, 0.0)) / per for one in bounded]
    return error_bars(upper, lower, colour=colour, thickness=1.3, width=3)


def format_with_interval(amount: Estimate | None, unit: str) -> str:
    """Format a value with its interval: "12.3 s (11.9 to 12.7)"; without it if it is unbounded."""
    if amount is None:
        return "not metered"
    value = number(amount.value, 3, unit)
    return f"{value} ({number(amount.low)} to {number(amount.high)})" if amount.is_bounded else value


def select_extremes(series: Sequence[Floats], most: int) -> NDArray[np.int64]:
    """Select the rows to draw of long series, so that no peak is lost: both ends, and the extremes of equal stretches.

    Args:
        series: Arrays of the same length n; NaN is never an extreme.
        most: Maximum number of rows.

    Returns:
        Ascending row indices; all n rows if n <= ``most``. Minimum and maximum of each series are always among them.

    Raises:
        ValueError: ``most`` is less than two per series plus both ends.
    """
    n = len(series[0])
    if n <= most:
        return np.arange(n)
    stretches = (most - 2) // (2 * len(series))
    if stretches < 1:
        raise ValueError(f"{most} rows cannot hold the extremes of {len(series)} series; {2 * len(series) + 2} can")
    kept = {0, n - 1}
    edges = np.linspace(0, n, stretches + 1).astype(int)
    for one in series:
        for begin, end in pairwise(edges):
            part = one[begin:end]
            if len(part) and not np.isnan(part).all():
                kept |= {begin + int(np.nanargmin(part)), begin + int(np.nanargmax(part))}
    return np.array(sorted(kept), dtype=np.int64)
