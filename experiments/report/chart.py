"""Charts as plain data (Plotly's ``data`` and ``layout``) with heading and caption."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Trace = dict[str, Any]
LEGEND = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left", "traceorder": "normal"}
"""Above the plot and left-aligned, so that it never covers data."""
JSON_DIGITS = 6
"""Significant digits kept in the page: more than a screen shows, at half the size."""


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """One view of a chart with a slider or menu.

    Attributes:
        label: Its entry in the slider or menu.
        data: Plotly traces.
        layout: Plotly layout.
        told: Text beside the control; the label if empty.
    """

    label: str
    data: list[Trace]
    layout: dict[str, Any]
    told: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of a page.

    Attributes:
        key: Identifier, unique in the page.
        title: Heading.
        caption: How to read it.
        data: Plotly traces.
        layout: Plotly layout.
        height_px: Height, in pixels.
        frames: Views selected by a slider or menu; the last one is shown first.
    """

    key: str
    title: str
    caption: str
    data: list[Trace]
    layout: dict[str, Any]
    height_px: int = 320
    frames: tuple[ChartFrame, ...] = ()
    spans: tuple[tuple[str, float, float], ...] = ()
    """Named ranges of the x axis (label, from, to), selected by two menus."""
    menu: str = ""
    """Label of the menu that selects a frame; if empty, a slider selects it."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a page: heading, introduction and charts, side by side if there is room."""

    title: str
    lead: str
    charts: tuple[Chart, ...] = field(default_factory=tuple)
    html: str = ""
    """Tables and legends below the charts, as escaped HTML."""


MAX_TICKS = 12
"""Number of rounds up to which each has a tick; beyond it, Plotly's own ticks are whole numbers anyway."""


def round_axis(rounds: int) -> dict[str, Any]:
    """Return an axis of rounds whose ticks are whole numbers."""
    return axis("round", **({"dtick": 1} if rounds <= MAX_TICKS else {}))


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title; colours and fonts come from the page's theme."""
    return {"title": {"text": title}, **more}


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Return ticks of a logarithmic axis with written-out labels: 1, 2 and 5 of each decade.

    Args:
        low: Lower end, as a power of ten.
        high: Upper end, as a power of ten.

    Returns:
        Plotly's tick settings; with more ticks if less than a decade is shown, empty if fewer than two would fit.
    """
    digits = (1, 2, 5) if high - low > 1.0 else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [digit * 10.0**decade for decade in range(math.floor(low), math.ceil(high) + 1) for digit in digits]
    shown = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return {"tickvals": shown, "ticktext": [f"{tick:g}" for tick in shown]} if len(shown) > 1 else {}


def line_mode(points: int) -> str:
    """Return Plotly's line mode: with markers as long as points can be told apart."""
    return "lines+markers" if points <= 60 else "lines"


def to_json_value(value: Any) -> Any:
    """Convert a value for JSON: numbers are rounded to ``JSON_DIGITS``, non-finite ones become null."""
    if isinstance(value, float):
        return float(f"{value:.{JSON_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    return value
