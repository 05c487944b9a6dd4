"""Confidence intervals as Plotly draws them: how far above and below, nothing where nothing is known of the scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.report.palette import GREY
from experiments.report.quantities import number
from fedge.characterisation.judging.estimate import Estimate


def error_bars(amounts: Sequence[Estimate | None], per: float = 1.0, colour: str = GREY) -> dict[str, Any]:
    """For ``error_y`` or ``error_x``; every amount is divided by ``per``; none goes below nought."""
    above = [one.high - one.value if one is not None and one.bounded else None for one in amounts]
    below = [one.value - max(one.low, 0.0) if one is not None and one.bounded else None for one in amounts]
    if not any(one is not None for one in above):
        return {"visible": False}
    return {
        "type": "data", "symmetric": False, "color": colour, "thickness": 1.3, "width": 3,
        "array": [None if one is None else one / per for one in above],
        "arrayminus": [None if one is None else one / per for one in below],
    }  # fmt: skip


def with_interval(amount: Estimate | None, unit: str) -> str:
    """``12.3 s (11.9 to 12.7)``; alone where its scatter is not known."""
    if amount is None:
        return "not metered"
    value = number(amount.value, 3, unit)
    return f"{value} ({number(amount.low)} to {number(amount.high)})" if amount.bounded else value
