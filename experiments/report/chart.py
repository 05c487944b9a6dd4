"""Charts as plain data (Plotly's ``data`` and ``layout``) with heading and caption, and their colours.

A trace is drawn of values, or of items (``of``) from which functions read the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C1A", "#7A6FAC"),
    *("#8B4A2B", "#B5179E", "#7FC241"),
)
"""The eight of Okabe and Ito, distinguishable with colour blindness, on light and dark; with brown, magenta and lime
for comparisons of more."""
LINE_DASHES = ("solid", "dash", "dot", "dashdot")
"""Line patterns as a second cue besides colour."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "hexagram", "star-square")
"""Marker shapes as a second cue besides colour, for greyscale prints."""
GREY = "#7d8590"
"""Neutral colour for lines and marks; readable on white and on black."""
FETCH, SEND, WAIT = "#5f7189", "#9db0c8", "rgba(128,138,150,0.22)"
EVALUATION = "#e8ecf1"
ALARM = "#c8102e"
SHARE_COLOURS = ((0.0, "#f3e9c8"), (0.25, "#a9c6a0"), (0.5, "#5b9d9b"), (0.75, "#2f6690"), (1.0, "#1d2f5e"))
"""Sequential scale from light to dark for a share of a maximum; lightness alone conveys the order."""
HIGHLIGHTS = {"star": (15, ALARM), "diamond": (13, COLOURS[1]), "square": (12, COLOURS[2])}
"""Size and colour of a highlighted point by its symbol: MAXN, the choice, the request."""

Trace = dict[str, Any]
LEGEND = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left", "traceorder": "normal"}
"""Above the plot and left-aligned, so that it never covers data."""
TITLE_HEIGHT_PX = 80
"""Space for the title of a figure that stands alone; a page has headings of its own."""
SPANS_IN_VIEW = 10
"""Number of a chart's named ranges that are visible at first, the last ones."""
CATEGORY_AXIS = {"autorange": "reversed", "type": "category", "showgrid": False, "fixedrange": True}
"""A vertical axis of names, the first one on top."""
MAX_ROW_NAME = 18
"""Longest name of a row on one line: more would take the plot's width on a phone."""
JSON_DIGITS = 6
"""Significant digits kept in the page: more than a screen shows, at half the size."""
LOG_MARGIN = 0.08
"""Space of a logarithmic axis beyond its values, in decades."""


@dataclass(frozen=True, slots=True)
class SeriesStyle:
    """Colour of a series with its second cues: names of the same colour differ in symbol and dash."""

    colour: str = COLOURS[0]
    symbol: str = SYMBOLS[0]
    dash: str = LINE_DASHES[0]

    def marker(self, size: float, **more: Any) -> dict[str, Any]:
        """Return Plotly's marker in the style; ``more`` replaces or adds settings."""
        return {"color": self.colour, "symbol": self.symbol, "size": size, **more}


def assign_styles(names: Iterable[str]) -> dict[str, SeriesStyle]:
    """Assign a style to every distinct name, in order; colours repeat if there are more names."""
    styles: dict[str, SeriesStyle] = {}
    for i, name in enumerate(dict.fromkeys(names)):
        turn = i // len(COLOURS)
        symbol = SYMBOLS[(i % len(SYMBOLS) + turn) % len(SYMBOLS)]
        styles[name] = SeriesStyle(COLOURS[i % len(COLOURS)], symbol, LINE_DASHES[turn % len(LINE_DASHES)])
    return styles


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """One view of a chart with a slider or menu; ``summary`` is the text beside it, the label if empty."""

    label: str
    data: list[Trace]
    layout: dict[str, Any]
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of a page.

    Attributes:
        key: Identifier, unique in the page.
        caption: How to read it.
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

    @property
    def first_span(self) -> int:
        """Return the position of the first of ``spans`` that is visible before a reader chooses others."""
        return max(0, len(self.spans) - SPANS_IN_VIEW)


def to_figure(chart: Chart) -> Any:
    """Return a chart as a ``plotly.graph_objects.Figure``, of a chart with several views the one shown first."""
    import plotly.graph_objects as go

    view = chart.frames[-1] if chart.frames else chart
    layout: dict[str, Any] = {"template": "plotly_white", "title": {"text": chart.title}, **chart.layout, **view.layout}
    if chart.spans:
        layout["xaxis"] = {**layout.get("xaxis", {}), "range": [chart.spans[chart.first_span][1], chart.spans[-1][2]]}
    return go.Figure(view.data, {**layout, "height": chart.height_px + TITLE_HEIGHT_PX})


MAX_TICKS = 12
"""Number of rounds up to which each has a tick; beyond it, Plotly's own ticks are whole numbers anyway."""


def round_axis(rounds: int) -> dict[str, Any]:
    """Return an axis of rounds whose ticks are whole numbers."""
    return axis("round", **({"dtick": 1} if rounds <= MAX_TICKS else {}))


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title; colours and fonts come from the page's theme."""
    return {"title": {"text": title}, **more}


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Return ticks of a logarithmic axis, whose ends are powers of ten: 1, 2 and 5 of each decade, written out.

    There are more if less than a decade is shown, and round numbers at equal steps if fewer than three would fit.
    """
    digits = (1, 2, 5) if high - low > 1.0 else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [digit * 10.0**decade for decade in range(math.floor(low), math.ceil(high) + 1) for digit in digits]
    shown = [tick for tick in ticks if low <= math.log10(tick) <= high]
    if len(shown) < 3 and 10.0**high > 10.0**low * (1 + 1e-9):  # else no float lies between the ends
        first, last = 10.0**low, 10.0**high
        unit = 10.0 ** math.floor(math.log10(last - first))
        step = next(factor * unit for factor in (2, 1, 0.5, 0.2) if last - first >= 4 * factor * unit)
        shown = [step * i for i in range(math.ceil(first / step), math.floor(last / step) + 1)]
    return {"tickvals": shown, "ticktext": [f"{tick:,.6g}" for tick in shown]} if len(shown) > 1 else {}


def log_range(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis in decades, slightly beyond the positive ones of the values."""
    decades = [math.log10(value) for value in values if value > 0]
    return (min(decades) - LOG_MARGIN, max(decades) + LOG_MARGIN) if decades else (0.0, 1.0)


def log_axis(title: str, low: float, high: float, **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis from ``low`` to ``high`` decades, with ticks written out."""
    return axis(title, **{"type": "log", "range": [low, high], **log_ticks(low, high), **more})


def thin_rows(count: int, most: int) -> NDArray[np.int64]:
    """Return at most ``most`` of ``count`` row numbers, ascending: the same random choice at every call."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def line_mode(points: int) -> str:
    """Return Plotly's line mode: with markers as long as points can be told apart."""
    return "lines+markers" if points <= 60 else "lines"


Values = Sequence[Any] | Callable[[Any], Any]
"""One value per point, or how it is read from the point's item."""
Hover = str | Values | None
"""Plotly's hover template, one text per point, or None: the trace has no hover text. Tags are ``Markup``."""


def scatter_trace(
    name: str,
    x: Values,
    y: Values,
    *,
    of: Sequence[Any] = (),
    mode: str = "markers",
    hover: Hover = None,
    legend: bool = True,
    **more: Any,
) -> Trace:
    """Return points, lines or both, by ``mode``: ``markers``, ``lines``, ``lines+markers``.

    Texts are escaped here, as everywhere in this module. ``more`` are further Plotly settings, such as ``marker``.
    """
    ends = {"x": _escape_texts(_read_values(x, of)), "y": _escape_texts(_read_values(y, of))}
    return _make_trace("scatter", name, {"mode": mode, **ends, **more}, of, hover=hover, legend=legend)


def line_trace(
    name: str,
    x: Values,
    y: Values,
    *,
    of: Sequence[Any] = (),
    colour: str,
    width: float = 2,
    dash: str = "solid",
    markers: bool | None = None,
    **more: Any,
) -> Trace:
    """Return a line; ``markers`` None marks its points as long as they can be told apart."""
    x = _read_values(x, of)
    mode = line_mode(len(x)) if markers is None else "lines+markers" if markers else "lines"
    line = {"color": colour, "width": width, **({} if dash == "solid" else {"dash": dash})}
    return scatter_trace(name, x, y, of=of, mode=mode, line=line, **more)


def diagonal_trace(low: float, high: float) -> Trace:
    """Return the line on which predictions equal measurements; the ends are in decades."""
    ends = [10.0**low, 10.0**high]
    return line_trace("equal", ends, ends, colour=GREY, width=1, dash="dash", markers=False, legend=False)


def bar_trace(
    name: str,
    labels: Values,
    values: Values,
    *,
    of: Sequence[Any] = (),
    colour: str | Sequence[str],
    horizontal: bool = False,
    hover: Hover = None,
    legend: bool = True,
    **more: Any,
) -> Trace:
    """Return bars at categories or positions; ``colour`` may be one per bar."""
    ends = {"x": _escape_texts(_read_values(labels, of)), "y": list(_read_values(values, of))}
    lying = {"y": ends["x"], "x": ends["y"], "orientation": "h"} if horizontal else ends
    marker = {"color": colour, **more.pop("marker", {})}
    return _make_trace("bar", name, {**lying, "marker": marker, **more}, of, hover=hover, legend=legend)


def band_trace(x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str) -> Trace:
    """Return the area between two curves over ``x``, filled with a CSS colour, without legend and hover text."""
    along, edge = [*x, *reversed(x)], [*high, *reversed(low)]
    fill: dict[str, Any] = {"fill": "toself", "fillcolor": colour, "line": {"width": 0}}
    return scatter_trace("", along, edge, mode="lines", legend=False, **fill)


def step_trace(
    name: str, y: Sequence[float | None], *, begin: float, step: float, colour: str, width: float = 1.5, **more: Any
) -> Trace:
    """Return a line of steps of equal length from ``begin``, without storing the x value of each; ``y`` may have gaps.

    The last step is drawn to its end.
    """
    line = {"shape": "hv", "width": width, "color": colour}
    trace = scatter_trace(name, (), [*y, *y[-1:]], mode="lines", line=line, **more)
    del trace["x"]
    return {**trace, "x0": begin, "dx": step}


def highlight_trace(name: str, x: float, y: float, symbol: str, hover: str) -> Trace:
    """Return one point with a white edge; ``hover`` follows its name."""
    size, colour = HIGHLIGHTS[symbol]
    marker = {"symbol": symbol, "size": size, "color": colour, "line": {"width": 1.5, "color": "white"}}
    return scatter_trace(name, [x], [y], marker=marker, hover=[Markup("{}: {}").format(name, hover)])


def heatmap_trace(
    x: Sequence[Any],
    y: Sequence[Any],
    z: Sequence[Sequence[float | None]],
    *,
    hover: Sequence[Sequence[str]],
    texts: Sequence[Sequence[str]] | None = None,
) -> Trace:
    """Return a heat map of shares without colour bar; a cell of None is empty."""
    words = {} if texts is None else {"text": texts, "texttemplate": "%{text}", "textfont": {"size": 10}}
    colours = [list(stop) for stop in SHARE_COLOURS]
    scale = {"zmin": 0.0, "zmax": 1.0, "colorscale": colours, "showscale": False}
    cells = {"x": _escape_texts(x), "y": _escape_texts(y), "z": z, "xgap": 1, "ygap": 1}
    shown = {"hovertext": [_escape_texts(row) for row in hover], "hoverinfo": "text"}
    return {"type": "heatmap", **cells, **scale, **shown, **words}


def error_bars(
    upper: Sequence[float | None], lower: Sequence[float | None] | None = None, *, colour: str, **more: Any
) -> dict[str, Any]:
    """Return error bars of the given lengths, symmetric if ``lower`` is None."""
    both = {"symmetric": lower is None, "array": list(upper), **({} if lower is None else {"arrayminus": list(lower)})}
    return {"type": "data", **both, "color": colour, "thickness": 1.5, "width": 0, **more}


AXIS_PX, FRAME_PX = 48, 130
"""Height of an axis' ticks and title, and of all that is around a plot."""


def legend_layout(entries: int, labels: Sequence[str] = (), plot_px: float = 5 * AXIS_PX) -> dict[str, Any]:
    """Return a legend above the plot; with many or long entries below it, where it takes no height from the chart."""
    crowded = entries > 6 or sum(len(label) + 6 for label in labels) > 200
    return {**LEGEND, "y": -AXIS_PX / plot_px, "yanchor": "top"} if crowded else dict(LEGEND)


def xy_layout(
    xaxis: Mapping[str, Any], yaxis: Mapping[str, Any], legend: Mapping[str, Any] = LEGEND, **more: Any
) -> dict[str, Any]:
    """Return the layout of a plot with two axes, in which the nearest point shows its hover text."""
    return {"xaxis": xaxis, "yaxis": yaxis, "legend": legend, "hovermode": "closest", **more}


def xy_chart(
    key: str,
    title: str,
    data: Iterable[Trace],
    xaxis: Mapping[str, Any],
    yaxis: Mapping[str, Any],
    *,
    caption: str = "",
    height_px: int = 320,
    **more: Any,
) -> Chart:
    """Return a chart of traces over two axes, with a legend of those that have an entry; ``more`` is for its layout."""
    traces = list(data)
    names = [trace["name"] for trace in traces if trace["name"] and trace.get("showlegend", True)]
    legend = legend_layout(len(names), names, max(1.5 * AXIS_PX, height_px - FRAME_PX))
    return Chart(key, title, caption, traces, layout=xy_layout(xaxis, yaxis, legend, **more), height_px=height_px)


def frame_chart(
    key: str, title: str, frames: Iterable[ChartFrame], *, caption: str = "", height_px: int = 320, menu: str = "show"
) -> Chart:
    """Return a chart of several views, with a menu that shows the first one first, or a slider without its label."""
    return Chart(key, title, caption, [], layout={}, height_px=height_px, frames=tuple(frames), menu=menu)


def horizontal_line(y: float, colour: str, *, width: float = 1.2) -> dict[str, Any]:
    """Return a dotted line across the whole plot, for a layout's ``shapes``."""
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}
    return {"type": "line", **ends, "line": {"color": colour, "width": width, "dash": "dot"}}


def row_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return a vertical axis of numbered rows with names, the first one on top; long names are on two lines."""
    count = len(names)
    broken = Markup(",<br>")  # as a string it would be escaped too
    texts = [text.replace(", ", broken) if len(text) > MAX_ROW_NAME else text for text in _escape_texts(names)]
    ticks = {"tickvals": list(range(count)), "ticktext": texts}
    return {**ticks, "range": [count - 0.4, -0.6], "showgrid": False, "fixedrange": True}


def spread_range(values: Sequence[float]) -> list[float]:
    """Return an axis range around positive values that does not magnify small differences.

    It is at least a tenth of the largest value long. The values include the ends of error bars.
    """
    low, high = min(values), max(values)
    length = max(1.16 * (high - low), 0.1 * high)
    begin = max(0.0, (low + high - length) / 2)
    return [begin, begin + length]


def _make_trace(kind: str, name: str, settings: Trace, of: Sequence[Any], *, hover: Hover, legend: bool) -> Trace:
    if hover is None:
        shown: dict[str, Any] = {"hoverinfo": "skip"}
    elif isinstance(hover, str):
        shown = {"hovertemplate": escape(hover) + (Markup() if "<extra>" in hover else Markup("<extra></extra>"))}
    else:
        shown = {"hovertext": _escape_texts(_read_values(hover, of)), "hoverinfo": "text"}
    return {"type": kind, "name": escape(name), **settings, **shown, **({} if legend else {"showlegend": False})}


def _read_values(values: Values, of: Sequence[Any]) -> Sequence[Any]:
    return [values(one) for one in of] if callable(values) else values


def _escape_texts(values: Sequence[Any]) -> list[Any]:
    """Escape texts that are no ``Markup``: Plotly reads some HTML in them."""
    return [escape(value) if isinstance(value, str) else value for value in values]
