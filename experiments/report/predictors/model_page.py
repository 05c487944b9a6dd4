"""A model's predicted front as one HTML file: the front, the knobs along it, the modes, their source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from experiments.report.chart import (
    Chart,
    Trace,
    axis,
    error_bars,
    highlight_trace,
    line_trace,
    log_ticks,
    scatter_trace,
    xy_chart,
)
from experiments.report.page import Card, Section, render_badge, write_page
from experiments.report.palette import COLOURS, GREY, SYMBOLS
from experiments.report.predictors.model_terminal import (
    KNOB_HEADINGS,
    compare_with_maxn,
    describe_origin,
    describe_point,
    facts_to_table,
    format_knobs,
    quantity_cells,
    thin_front,
)
from experiments.report.quantities import number, percent
from experiments.report.tables import Cell, Table, number_cell
from fedge.decisions.mode_objectives import compute_step_energy_j
from fedge.knowledge.model_summary import ModelSummary
from fedge.knowledge.saved_model import ModeFront, ModePoint, PredictionInterval
from fedge.types import Measurement, Predictions

MAX_BACKGROUND_MODES = 1500
"""Default number of candidates drawn behind the front: more make the page slow without showing more."""
BARS = 20
GROUPS = 40
"""Default number of front points with error bars, and of mode groups in the knob chart, so that bars stay apart."""
TAIL_SHARE = 0.03
"""The chart omits the tail of the front with this share of its total saving, because the last watt may take a hundred
times as long. A default; zooming out shows the rest.
"""
LOG_AXIS_RATIO = 6.0
"""From this ratio of slowest to fastest on, the time axis is logarithmic (default)."""
INTERVAL_COLOUR = "rgba(0,114,178,0.35)"
"""Colour of the 90 % intervals: the front's own, faint."""
KNOB_TITLES = (("cores", "cores"), ("cpu_mhz", "CPU clock"), ("gpu_mhz", "GPU clock"), ("mem_mhz", "memory clock"))


@dataclass(frozen=True, slots=True)
class _CostAxis:
    """The front's cost axis: title and unit, and how to read it from a point and from a measurement."""

    title: str
    unit: str
    point_interval: Callable[[ModePoint], PredictionInterval]
    measured_value: Callable[[Measurement], float]


COST_AXES = {
    "power": _CostAxis("power", "W", lambda point: point.power_w, lambda measurement: measurement.power_w),
    "energy": _CostAxis(
        "energy", "J", lambda point: point.energy_j, lambda measurement: measurement.step_s * measurement.power_w
    ),
}


def front_chart(front: ModeFront, facts: ModelSummary, predictions: Predictions) -> Chart:
    """Plot time over cost: all modes, the front with intervals, the measurements, MAXN and the knee."""
    cost = COST_AXES[front.against]
    points = front.points
    near = _cut_tail(points, cost)
    measured = describe_origin(facts.about.origin.label)
    data = [
        _background_trace(front, predictions),
        _front_trace(points, cost),
        _interval_trace(_space_points(near, BARS), cost),
        _measurement_trace(facts.measurements, cost, measured),
        _highlight_mode("knee", front.knee, cost, "diamond"),
        _highlight_mode("MAXN", front.maxn, cost, "star"),
    ]
    shown = [*near, front.knee, front.maxn]
    low_ms, high_ms = _axis_range(shown, lambda point: point.step_s, 1e3)
    low, high = _axis_range(shown, cost.point_interval, 1.0)
    caption = (
        f"Bars: 90 % intervals, at most {BARS}. Grey: other modes, at most {MAX_BACKGROUND_MODES:,}. "
        f"Rings: the modes that the model was fitted to, as {measured}. Zoom out for slower modes."
    )
    return xy_chart(
        "front",
        f"Time and {cost.title}",
        data,
        xaxis=_time_axis(low_ms, high_ms),
        yaxis=axis(f"{cost.title}{' per step' * (cost.unit == 'J')} ({cost.unit})", range=[low, high]),
        caption=caption,
        height_px=480,
    )


def knobs_chart(front: ModeFront) -> Chart:
    """Plot each knob along the front, as a share of the board's maximum."""
    points = _cut_tail(front.points, COST_AXES[front.against])
    groups = _group_points(points)
    data = [_knob_trace(front, groups, i) for i in range(len(KNOB_TITLES))]
    return xy_chart(
        "knobs",
        "Knobs along the front",
        data,
        xaxis=_time_axis(980.0 * points[0].step_s.value, 1020.0 * points[-1].step_s.value),
        yaxis=axis("share of the maximum (%)", range=[0, 104]),
        caption="Mean of neighbouring modes. Where a knob hardly matters, its mean varies between neighbours as noise.",
        height_px=330,
    )


def _time_axis(low_ms: float, high_ms: float) -> dict[str, Any]:
    """Return the time axis, logarithmic if it spans more than ``LOG_AXIS_RATIO``."""
    title = "time per step (ms)"
    if high_ms < LOG_AXIS_RATIO * low_ms:
        return axis(title, range=[low_ms, high_ms])
    low, high = np.log10([low_ms, high_ms]).tolist()
    return axis(title, type="log", range=[low, high], **log_ticks(low, high))


def _cut_tail(points: Sequence[ModePoint], cost: _CostAxis) -> list[ModePoint]:
    """Return the points from the fastest to the first that costs hardly more than the cheapest."""
    dearest, cheapest = cost.point_interval(points[0]).value, cost.point_interval(points[-1]).value
    enough = cheapest + TAIL_SHARE * (dearest - cheapest)
    last = next(i for i, point in enumerate(points) if cost.point_interval(point).value <= enough)
    return list(points[: last + 1])


def _space_points(points: Sequence[ModePoint], count: int) -> list[ModePoint]:
    """Return at most ``count`` points, evenly spaced in the logarithm of time, both ends included."""
    places = np.log([point.step_s.value for point in points])
    rows = {int(np.abs(places - place).argmin()) for place in np.linspace(places[0], places[-1], count)}
    return [points[row] for row in sorted(rows)]


def _group_points(points: Sequence[ModePoint]) -> list[list[ModePoint]]:
    """Group neighbouring points, evenly in the logarithm of time."""
    places = np.log([point.step_s.value for point in points])
    edges = np.linspace(places[0], places[-1], GROUPS + 1)[1:-1]
    which = np.digitize(places, edges)
    return [[points[int(i)] for i in np.flatnonzero(which == group)] for group in np.unique(which)]


def _background_trace(front: ModeFront, predictions: Predictions) -> Trace:
    count = len(predictions.modes)
    rows = np.sort(np.random.default_rng(0).permutation(count)[:MAX_BACKGROUND_MODES])
    cost = predictions.power_w if front.against == "power" else compute_step_energy_j(predictions)
    return scatter_trace(
        "other modes",
        (1e3 * predictions.step_s[rows]).tolist(),
        cost[rows].tolist(),
        marker={"color": GREY, "size": 3, "opacity": 0.35},
    )


def _front_trace(points: Sequence[ModePoint], cost: _CostAxis) -> Trace:
    return line_trace(
        "front",
        [1e3 * point.step_s.value for point in points],
        [cost.point_interval(point).value for point in points],
        colour=COLOURS[0],
        marker={"size": 6},
        hover=[_hover_text(point) for point in points],
    )


def _interval_trace(points: Sequence[ModePoint], cost: _CostAxis) -> Trace:
    times, costs = [point.step_s for point in points], [cost.point_interval(point) for point in points]
    return scatter_trace(
        "90 %",
        [1e3 * time.value for time in times],
        [one.value for one in costs],
        marker={"size": 4, "color": COLOURS[0]},
        error_x=_error_bars(times, 1e3),
        error_y=_error_bars(costs, 1.0),
    )


def _error_bars(intervals: Sequence[PredictionInterval], factor: float) -> dict[str, Any]:
    upper = [factor * (one.high90 - one.value) for one in intervals]
    return error_bars(upper, [factor * (one.value - one.low90) for one in intervals], colour=INTERVAL_COLOUR)


def _measurement_trace(measurements: Sequence[Measurement], cost: _CostAxis, word: str) -> Trace:
    return scatter_trace(
        word,
        [1e3 * measurement.step_s for measurement in measurements],
        [cost.measured_value(measurement) for measurement in measurements],
        marker={"symbol": "circle-open", "size": 9, "color": COLOURS[2], "line": {"width": 2}},
        hover=[
            f"<b>{measurement.mode}</b><br>{word}: {1e3 * measurement.step_s:.4g} ms, {measurement.power_w:.3g} W"
            for measurement in measurements
        ],
    )


def _highlight_mode(name: str, point: ModePoint, cost: _CostAxis, symbol: str) -> Trace:
    return highlight_trace(
        name, 1e3 * point.step_s.value, cost.point_interval(point).value, symbol, hover=_hover_text(point)
    )


def _hover_text(point: ModePoint) -> str:
    quantities = (("ms", point.step_s, 1e3), ("W", point.power_w, 1.0), ("J", point.energy_j, 1.0))
    lines = [
        f"{factor * one.value:.4g} {unit} ({factor * one.low90:.3g} to {factor * one.high90:.3g})"
        for unit, one, factor in quantities
    ]
    return "<br>".join([f"<b>{point.mode}</b>", *lines])


def _axis_range(
    points: Sequence[ModePoint], of: Callable[[ModePoint], PredictionInterval], factor: float
) -> tuple[float, float]:
    """Return an axis range slightly wider than the intervals of all points."""
    low = min(factor * of(point).low90 for point in points)
    high = max(factor * of(point).high90 for point in points)
    return low / 1.06, high * 1.06


def _knob_trace(front: ModeFront, groups: Sequence[Sequence[ModePoint]], i: int) -> Trace:
    name, title = KNOB_TITLES[i]
    top = float(getattr(front.maxn.mode, name))
    values = [float(np.mean([getattr(point.mode, name) for point in group])) for group in groups]
    return line_trace(
        title,
        [1e3 * float(np.median([point.step_s.value for point in group])) for group in groups],
        [100.0 * value / top for value in values],
        colour=COLOURS[i],
        markers=True,
        marker={"symbol": SYMBOLS[i], "size": 6},
        hover=f"{title}: %{{y:.0f}} % of {top:g}",
    )


MAX_PAGE_ROWS = 60
"""Default number of modes in the page's table; --out writes all."""


def write_front_page(front: ModeFront, facts: ModelSummary, predictions: Predictions, out: Path) -> None:
    """Write the page atomically."""
    about = facts.about
    sections = [
        Section("Pareto front", _describe_front(front, facts), (front_chart(front, facts, predictions),)),
        Section(
            "Knobs along the front",
            "Which knob is lowered first when a step may take longer.",
            (knobs_chart(front),),
        ),
        Section("Modes", _describe_modes_table(front), html=_modes_table(front).html),
        Section("Sources", "Provenance of each number.", html=facts_to_table(facts).html),
    ]
    write_page(
        out,
        f"{about.device}: {about.workload}",
        sections,
        "All values are per step.",
        heading=f"{about.workload} on {about.device}",
        facts=(
            f"batch size {about.batch_size}",
            Markup("predicted by <b>{}</b>").format(about.method),
            f"fitted to {facts.modes:,} mode{'s' * (facts.modes > 1)}",
            f"{facts.candidates:,} candidate modes",
        ),
        cards=_list_cards(front, facts),
        notes=(_describe_labels(facts),),
    )


def _describe_labels(facts: ModelSummary) -> Markup:
    origin, predicted = facts.about.origin, render_badge(facts.predictions_label)
    if origin.label == "measured":
        text = Markup("The profiled modes are {} ({}). Predictions are {} from them.")
    else:
        why = "Nothing says where the table comes from" if origin.label == "unknown" else "no board was measured"
        text = Markup("<b>{}:</b> {}. The profiled modes are {{}}: {{}}. Predictions are {{}} from them.").format(
            describe_origin(origin.label).capitalize(), why
        )
    return text.format(render_badge(origin.label), origin.source, predicted)


def _list_cards(front: ModeFront, facts: ModelSummary) -> list[Card]:
    """Return the headline figures, each with a reference value."""
    knee, fastest, maxn = front.knee, front.points[0], front.maxn
    held_out = facts.about.held_out
    spread = f"spread ±{percent(facts.time_spread.median)} and ±{percent(facts.power_spread.median)} in the median"
    error = ("unknown", "every measured mode was used for the fit")
    if held_out is not None:
        error = (
            f"{percent(held_out.time_mape)} / {percent(held_out.power_mape)}",
            f"time / power, on {held_out.modes:,} modes not profiled; {spread}",
        )
    return [
        Card("MAXN", _format_time_power(maxn), _format_mode_energy(maxn)),
        Card("Knee", _format_time_power(knee), f"vs MAXN: {compare_with_maxn(knee, maxn)}"),
        Card("Fastest", _format_time_power(fastest), f"vs MAXN: {compare_with_maxn(fastest, maxn)}"),
        Card("Mean error", *error),
    ]


def _format_time_power(point: ModePoint) -> str:
    return f"{number(1e3 * point.step_s.value, 3, 'ms')}, {number(point.power_w.value, 3, 'W')}"


def _format_mode_energy(point: ModePoint) -> str:
    return f"{point.mode}, {number(point.energy_j.value, 3, 'J')}"


def _describe_front(front: ModeFront, facts: ModelSummary) -> str:
    dear = "draws more power" if front.against == "power" else "needs more energy"
    return (
        f"{len(front.points)} of {facts.candidates:,} modes: a mode that is faster than one of them {dear} (predicted)."
    )


def _modes_table(front: ModeFront) -> Table:
    heads = ("remark", *KNOB_HEADINGS, "ms", "W", "J", "vs MAXN")
    return Table("modes", heads, tuple(_mode_row(point, front) for point in thin_front(front, MAX_PAGE_ROWS)))


def _describe_modes_table(front: ModeFront) -> str:
    some = f" {MAX_PAGE_ROWS} modes of the front, evenly spread;" if len(front.points) > MAX_PAGE_ROWS else ""
    return f"Per step;{some} brackets: 90 % intervals."


def _mode_row(point: ModePoint, front: ModeFront) -> tuple[Cell, ...]:
    return (
        Cell(describe_point(point, front)),
        *(number_cell(knob) for knob in format_knobs(point.mode)),
        *quantity_cells(point),
        number_cell(compare_with_maxn(point, front.maxn)),
    )
