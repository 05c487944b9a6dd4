"""Charts of a placement: throughput over batch size, power over latency, and the fit."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from experiments.report.analysis.placement_terminal import shorten_combination
from experiments.report.chart import LEGEND, Chart, Trace, axis, log_ticks
from experiments.report.palette import ALARM, GREY, assign_colours, assign_symbols
from fedge.analysis.placement.accelerator_fit import predict_images_per_s
from fedge.analysis.placement.accelerators import Placement
from fedge.analysis.placement.placement_outcome import PlacementOutcome

if TYPE_CHECKING:
    from fedge.analysis.placement.placement_advice import PlacementAdvice


def throughput_chart(advice: PlacementAdvice) -> Chart:
    """Plot images per second over the batch size, one line per combination; measured rows are hollow marks."""
    names = [curve.combination for curve in advice.curves]
    colour, symbol = assign_colours(names), assign_symbols(names)
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": escape(shorten_combination(curve.combination)),
            "x": [_batch_size(one.placement) for one in curve.outcomes],
            "y": [one.images_per_s for one in curve.outcomes],
            "line": {
                "color": colour[curve.combination],
                "width": 2,
                "dash": _line_dash(names.index(curve.combination)),
            },
            "marker": {"symbol": symbol[curve.combination], "size": 8},
            "hovertext": [_hover_text(one, advice.knows_watts) for one in curve.outcomes],
            "hoverinfo": "text",
        }
        for curve in advice.curves
    ]
    data += _measured_traces(advice, colour)
    sizes = [_batch_size(one.placement) for one in advice.curves[0].outcomes]
    layout = {
        "xaxis": axis("batch size of every instance", type="log", tickvals=sizes, ticktext=[str(s) for s in sizes]),
        "yaxis": axis("images per second", rangemode="tozero"),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    caption = "Full load. Hollow marks are rows that you measured." if advice.measured else "Full load."
    return Chart(
        "throughput",
        title="What the accelerators do together",
        caption=caption,
        data=data,
        layout=layout,
        height_px=480,
    )


def power_latency_chart(advice: PlacementAdvice) -> Chart:
    """Plot power over latency with marks sized by throughput; the chosen placement is highlighted."""
    names = [curve.combination for curve in advice.curves]
    colour, symbol = assign_colours(names), assign_symbols(names)
    most = max(one.images_per_s for curve in advice.curves for one in curve.outcomes)
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape(shorten_combination(curve.combination)),
            "x": [1e3 * one.latency_s for one in curve.outcomes],
            "y": [one.power_w for one in curve.outcomes],
            "marker": {
                "color": colour[curve.combination],
                "symbol": symbol[curve.combination],
                "size": [6 + 14 * one.images_per_s / most for one in curve.outcomes],
                "opacity": 0.75,
            },
            "hovertext": [_hover_text(one, advice.knows_watts) for one in curve.outcomes],
            "hoverinfo": "text",
        }
        for curve in advice.curves
    ]
    chosen = advice.chosen
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "chosen",
            "x": [1e3 * chosen.latency_s],
            "y": [chosen.power_w],
            "marker": {"color": ALARM, "symbol": "star", "size": 18, "line": {"color": "#ffffff", "width": 1}},
            "hovertext": [_hover_text(chosen, advice.knows_watts)],
            "hoverinfo": "text",
        }
    )
    data += _limit_traces(advice)
    low, high = _log_range([1e3 * one.latency_s for curve in advice.curves for one in curve.outcomes])
    layout = {
        "xaxis": axis("latency (ms), logarithmic", type="log", range=[low, high], **log_ticks(low, high)),
        "yaxis": axis("power (W)", rangemode="tozero"),
        "legend": {**LEGEND, "itemsizing": "constant"},
        "hovermode": "closest",
    }
    rate_hz = advice.plan.goal.rate_hz
    at = "at full load" if rate_hz is None else f"at {rate_hz:g} images/s, with the time to collect a batch"
    caption = f"Larger marks do more images per second. The star is what was chosen, {at}."
    return Chart("plane", title="Power against latency", caption=caption, data=data, layout=layout, height_px=480)


def placement_fit_chart(advice: PlacementAdvice) -> Chart:
    """Plot predicted over measured images per second for every measured row."""
    seen = [row.images_per_s for row in advice.measured]
    found = predict_images_per_s(
        advice.board_fitted, advice.network, [row.placement for row in advice.measured]
    ).tolist()
    low, high = _log_range([*seen, *found])
    ends = [10**low, 10**high]
    data: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": ends,
            "y": ends,
            "line": {"color": GREY, "width": 1},
            "name": "equal",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "rows",
            "x": seen,
            "y": found,
            "marker": {"color": "#0072B2", "size": 9},
            "hovertext": [
                f"<b>{escape(str(row.placement))}</b><br>measured {a:.1f}, predicted {b:.1f} images/s"
                for row, a, b in zip(advice.measured, seen, found, strict=True)
            ],
            "hoverinfo": "text",
        },
    ]
    layout = {
        "xaxis": axis("measured images/s", type="log", range=[low, high], **log_ticks(low, high)),
        "yaxis": axis("predicted images/s", type="log", range=[low, high], **log_ticks(low, high)),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    return Chart(
        "fit",
        title="Measured and predicted",
        caption="On the line the fit is right.",
        data=data,
        layout=layout,
        height_px=420,
    )


def _measured_traces(advice: PlacementAdvice, colour: dict[str, str]) -> list[Trace]:
    """Return the measured rows that belong to one of the lines."""
    lines = {(curve.combination, str(one.placement)) for curve in advice.curves for one in curve.outcomes}
    rows = [row for row in advice.measured if (row.placement.combination, str(row.placement)) in lines]
    if not rows:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "measured",
            "x": [_batch_size(row.placement) for row in rows],
            "y": [row.images_per_s for row in rows],
            "marker": {
                "symbol": "circle-open",
                "size": 14,
                "color": [colour[row.placement.combination] for row in rows],
                "line": {"width": 2},
            },
            "hovertext": [f"<b>{escape(str(row.placement))}</b><br>measured {row.images_per_s:.1f}" for row in rows],
            "hoverinfo": "text",
        }
    ]


def _limit_traces(advice: PlacementAdvice) -> list[Trace]:
    """Return the goal's limits as lines."""
    goal, latencies = advice.plan.goal, [1e3 * one.latency_s for curve in advice.curves for one in curve.outcomes]
    lines: list[Trace] = []
    if goal.max_power_w is not None:
        lines.append(_line_trace([min(latencies) / 2, 2 * max(latencies)], [goal.max_power_w] * 2, "power limit"))
    if goal.max_latency_s is not None:
        most_w = max(one.power_w for curve in advice.curves for one in curve.outcomes)
        lines.append(_line_trace([1e3 * goal.max_latency_s] * 2, [0.0, most_w], "latency limit"))
    return lines


def _line_trace(x: list[float], y: list[float], name: str) -> Trace:
    line = {"color": GREY, "dash": "dash", "width": 1.5}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "line": line, "hoverinfo": "name"}


def _hover_text(one: PlacementOutcome, knows_watts: bool) -> str:
    watts = f"{one.power_w:.1f} W, {one.joules_per_image:.3f} J per image<br>" if knows_watts else ""
    return (
        f"<b>{escape(str(one.placement))}</b><br>{one.images_per_s:.1f} images/s<br>{watts}"
        f"latency {1e3 * one.latency_s:.1f} ms"
    )


def _batch_size(placement: Placement) -> int:
    return placement.instances[0].batch_size


def _line_dash(place: int) -> str:
    """Return a dash pattern that distinguishes lines whose colours repeat."""
    return "solid" if place < 8 else "dot"


def _log_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of a logarithmic axis (powers of ten), slightly wider than the values."""
    return float(np.log10(min(values))) - 0.08, float(np.log10(max(values))) + 0.08
