"""A chart as plain data (Plotly's ``data`` and ``layout``) with its heading and what to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Trace = dict[str, Any]
LEGEND = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left", "traceorder": "normal"}
"""Above the plot, from the left: it never covers data."""
JSON_DIGITS = 6
"""Significant digits kept in the page: more than any screen shows, and half the bytes."""


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """One of the views that a slider or a menu chooses from; ``told`` is written beside it, else the label."""

    label: str
    data: list[Trace]
    layout: dict[str, Any]
    told: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of the page; with ``frames``, a slider picks which of them is shown (the last one first)."""

    key: str
    title: str
    caption: str
    data: list[Trace]
    layout: dict[str, Any]
    height_px: int = 320
    frames: tuple[ChartFrame, ...] = ()
    spans: tuple[tuple[str, float, float], ...] = ()
    """Named ranges of the x axis (label, from, to) that two menus choose from."""
    menu: str = ""
    """What a menu of the frames is called; without it they have a slider."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, what to look at, and charts side by side where there is room."""

    title: str
    lead: str
    charts: tuple[Chart, ...] = field(default_factory=tuple)
    html: str = ""
    """Tables and legends below the charts, already escaped."""


MAX_TICKS = 12
"""Rounds up to which each has a mark on the axis; with more, marks fall on whole numbers anyway."""


def round_axis(rounds: int) -> dict[str, Any]:
    """An axis of so many rounds, with whole numbers on it."""
    return axis("round", **({"dtick": 1} if rounds <= MAX_TICKS else {}))


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title; everything of taste is the page's theme."""
    return {"title": {"text": title}, **more}


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Marks of a logarithmic axis between two powers of ten: 1, 2 and 5 of each decade, written out.

    More of them where less than a decade is shown; none where fewer than two would fit.
    """
    digits = (1, 2, 5) if high - low > 1.0 else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [digit * 10.0**decade for decade in range(math.floor(low), math.ceil(high) + 1) for digit in digits]
    shown = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return {"tickvals": shown, "ticktext": [f"{tick:g}" for tick in shown]} if len(shown) > 1 else {}


def line_mode(points: int) -> str:
    """A mark per point as long as they can be told apart."""
    return "lines+markers" if points <= 60 else "lines"


def to_json_value(value: Any) -> Any:
    """Numbers shortened, what is not finite turned into null."""
    if isinstance(value, float):
        return float(f"{value:.{JSON_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    return value
