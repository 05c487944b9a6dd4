"""Charts of a placement: throughput over batch size, power over latency, and the fit."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from experiments.report.analysis.placement_terminal import shorten_combination
from experiments.report.chart import Chart, Trace, axis, legend_layout, line_trace, log_ticks, scatter_trace, xy_layout
from experiments.report.palette import ALARM, COLOURS, GREY, assign_colours, assign_dashes, assign_symbols
from fedge.analysis.placement.accelerator_fit import predict_images_per_s
from fedge.analysis.placement.accelerators import Placement
from fedge.analysis.placement.placement_outcome import PlacementOutcome

if TYPE_CHECKING:
    from fedge.analysis.placement.placement_advice import PlacementAdvice


def throughput_chart(advice: PlacementAdvice) -> Chart:
    """Plot images per second over the batch size, one line per combination; measured rows are hollow marks."""
    names = [curve.combination for curve in advice.curves]
    colour, symbol, dash = assign_colours(names), assign_symbols(names), assign_dashes(names)
    data: list[Trace] = [
        line_trace(
            shorten_combination(curve.combination),
            [_batch_size(one.placement) for one in curve.outcomes],
            [one.images_per_s for one in curve.outcomes],
            colour=colour[curve.combination],
            dash=dash[curve.combination],
            markers=True,
            marker={"symbol": symbol[curve.combination], "size": 8},
            hover=[_hover_text(one, advice.knows_watts) for one in curve.outcomes],
        )
        for curve in advice.curves
    ]
    data += _measured_traces(advice, colour)
    sizes = [_batch_size(one.placement) for one in advice.curves[0].outcomes]
    layout = xy_layout(
        axis("batch size of every instance", type="log", tickvals=sizes, ticktext=[str(s) for s in sizes]),
        axis("images per second", rangemode="tozero"),
        legend_layout(len(data), [shorten_combination(name) for name in names]),
    )
    caption = "Full load. Hollow: measured rows." if advice.measured else "Full load."
    return Chart("throughput", "Throughput of accelerator combinations", caption, data, layout=layout, height_px=480)


def power_latency_chart(advice: PlacementAdvice) -> Chart:
    """Plot power over latency: a numbered point per combination, its other batch sizes as a thin line, and the choice.

    The numbers are the places of the combinations in ``advice.curves``; a table lists them.
    """
    colour = assign_colours([curve.combination for curve in advice.curves])
    data = [
        line_trace(
            shorten_combination(curve.combination),
            [1e3 * one.latency_s for one in curve.outcomes],
            [one.power_w for one in curve.outcomes],
            colour=colour[curve.combination],
            width=1,
            markers=True,
            marker={"size": 3},
            opacity=0.45,
            legend=False,
            hover=[_hover_text(one, advice.knows_watts) for one in curve.outcomes],
        )
        for curve in advice.curves
    ]
    data += [_numbered_trace(advice, colour), _chosen_trace(advice), *_limit_traces(advice)]
    # The chosen placement has its own load, so its latency may lie outside the combinations'.
    latencies_ms = [1e3 * one.latency_s for curve in advice.curves for one in curve.outcomes]
    low, high = _log_range([*latencies_ms, 1e3 * advice.chosen.latency_s])
    layout = xy_layout(
        axis("latency (ms), logarithmic", type="log", range=[low, high], **log_ticks(low, high)),
        axis("power (W)", rangemode="tozero"),
    )
    rate_hz = advice.plan.goal.rate_hz
    at = "at full load" if rate_hz is None else f"at {rate_hz:g} images/s, including the time to collect a batch"
    caption = (
        "Numbers: the table below, each combination at its batch size of highest throughput; thin lines: its other "
        f"batch sizes. Star: the chosen placement, {at}."
    )
    return Chart("plane", "Power against latency", caption, data, layout=layout, height_px=480)


def _numbered_trace(advice: PlacementAdvice, colour: dict[str, str]) -> Trace:
    """Return each combination's fastest point with its number."""
    fastest = [curve.best_outcome for curve in advice.curves]
    return scatter_trace(
        "combinations, by number",
        [1e3 * one.latency_s for one in fastest],
        [one.power_w for one in fastest],
        mode="markers+text",
        marker={"color": [colour[curve.combination] for curve in advice.curves], "size": 11},
        text=[str(place) for place in range(1, len(fastest) + 1)],
        textposition=_place_numbers(fastest),
        textfont={"size": 13},
        hover=[_hover_text(one, advice.knows_watts) for one in fastest],
    )


def _place_numbers(points: Sequence[PlacementOutcome]) -> list[str]:
    """Return the place of each point's number: above it, or below if its nearest neighbour lies above."""
    places = np.array([(np.log10(one.latency_s), one.power_w) for one in points])
    scaled = (places - places.min(axis=0)) / np.maximum(np.ptp(places, axis=0), 1e-9)
    apart = np.linalg.norm(scaled[:, None] - scaled[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1)
    return [
        "bottom center" if len(points) > 1 and places[near, 1] > place[1] else "top center"
        for place, near in zip(places, nearest, strict=True)
    ]


def _chosen_trace(advice: PlacementAdvice) -> Trace:
    chosen = advice.chosen
    return scatter_trace(
        "chosen",
        [1e3 * chosen.latency_s],
        [chosen.power_w],
        marker={"color": ALARM, "symbol": "star", "size": 18, "line": {"color": "#ffffff", "width": 1}},
        hover=[_hover_text(chosen, advice.knows_watts)],
    )


def placement_fit_chart(advice: PlacementAdvice) -> Chart:
    """Plot predicted over measured images per second for every measured row."""
    measured = [row.images_per_s for row in advice.measured]
    predicted = predict_images_per_s(
        advice.board_fitted, advice.network, [row.placement for row in advice.measured]
    ).tolist()
    low, high = _log_range([*measured, *predicted])
    ends = [10**low, 10**high]
    texts = [
        f"<b>{escape(str(row.placement))}</b><br>measured {a:.1f}, predicted {b:.1f} images/s"
        for row, a, b in zip(advice.measured, measured, predicted, strict=True)
    ]
    data = [
        line_trace("equal", ends, ends, colour=GREY, width=1, markers=False),
        scatter_trace("rows", measured, predicted, marker={"color": COLOURS[0], "size": 9}, hover=texts),
    ]
    layout = xy_layout(
        axis("measured images/s", type="log", range=[low, high], **log_ticks(low, high)),
        axis("predicted images/s", type="log", range=[low, high], **log_ticks(low, high)),
    )
    return Chart(
        "fit",
        "Measured and predicted",
        "On the line, prediction and measurement agree.",
        data,
        layout=layout,
        height_px=420,
    )


def _measured_traces(advice: PlacementAdvice, colour: dict[str, str]) -> list[Trace]:
    """Return the measured rows that belong to one of the lines."""
    lines = {(curve.combination, str(one.placement)) for curve in advice.curves for one in curve.outcomes}
    rows = [row for row in advice.measured if (row.placement.combination, str(row.placement)) in lines]
    if not rows:
        return []
    shades = [colour[row.placement.combination] for row in rows]
    return [
        scatter_trace(
            "measured",
            [_batch_size(row.placement) for row in rows],
            [row.images_per_s for row in rows],
            marker={"symbol": "circle-open", "size": 14, "color": shades, "line": {"width": 2}},
            hover=[f"<b>{escape(str(row.placement))}</b><br>measured {row.images_per_s:.1f}" for row in rows],
        )
    ]


def _limit_traces(advice: PlacementAdvice) -> list[Trace]:
    """Return the goal's limits as lines."""
    goal, latencies = advice.plan.goal, [1e3 * one.latency_s for curve in advice.curves for one in curve.outcomes]
    lines: list[Trace] = []
    if goal.max_power_w is not None:
        lines.append(_limit_trace("power limit", [min(latencies) / 2, 2 * max(latencies)], [goal.max_power_w] * 2))
    if goal.max_latency_s is not None:
        most_w = max(one.power_w for curve in advice.curves for one in curve.outcomes)
        lines.append(_limit_trace("latency limit", [1e3 * goal.max_latency_s] * 2, [0.0, most_w]))
    return lines


def _limit_trace(name: str, x: list[float], y: list[float]) -> Trace:
    return line_trace(name, x, y, colour=GREY, width=1.5, dash="dash", markers=False, hover=name)


def _hover_text(one: PlacementOutcome, knows_watts: bool) -> str:
    watts = f"{one.power_w:.1f} W, {one.joules_per_image:.3f} J per image<br>" if knows_watts else ""
    return (
        f"<b>{escape(str(one.placement))}</b><br>{one.images_per_s:.1f} images/s<br>{watts}"
        f"latency {1e3 * one.latency_s:.1f} ms"
    )


def _batch_size(placement: Placement) -> int:
    return placement.instances[0].batch_size


def _log_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of a logarithmic axis (powers of ten), slightly wider than the values."""
    return float(np.log10(min(values))) - 0.08, float(np.log10(max(values))) + 0.08
