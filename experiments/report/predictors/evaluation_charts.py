"""Charts of a predictor study: error over profiled modes, predicted over measured values, Pareto fronts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.report.chart import (
    LEGEND,
    Chart,
    ChartFrame,
    Trace,
    axis,
    error_bars,
    line_trace,
    log_ticks,
    scatter_trace,
    xy_layout,
)
from experiments.report.palette import GREY, assign_colours, assign_symbols
from experiments.report.predictors.choice_terminal import list_known_values
from fedge.modes import front_mask
from fedge.studies.prediction_cells import CellResult, PredictionRow, PredictionTarget
from fedge.types import Floats, Predictions

MAX_SCATTER_POINTS = 700
"""Modes drawn per method in a scatter plot; the error figures use all of them."""
METHOD_SHIFT_DECADES = 0.012
"""Horizontal shift between methods, in decades, so that their error bars do not overlap."""


def build_error_charts(key: str, rows: Sequence[PredictionRow]) -> tuple[Chart, Chart]:
    """Plot the mean errors of time and power over the number of profiled modes; bars span the seeds."""
    return (
        _error_chart(f"{key}-time", "Error of predicted time", "time_mape", rows),
        _error_chart(f"{key}-power", "Error of predicted power", "power_mape", rows),
    )


def build_scatter_charts(key: str, target: PredictionTarget, outcomes: Sequence[CellResult]) -> tuple[Chart, Chart]:
    """Plot predicted over measured time and power of modes not profiled (seed 0), with a slider over profiled modes."""
    table = target.table
    return (
        _scatter_chart(
            f"{key}-predicted-time",
            title="time per step",
            unit="ms",
            measured=1e3 * table.step_s,
            target=target,
            outcomes=outcomes,
        ),
        _scatter_chart(
            f"{key}-predicted-power", title="power", unit="W", measured=table.power_w, target=target, outcomes=outcomes
        ),
    )


def build_fronts_chart(key: str, target: PredictionTarget, outcomes: Sequence[CellResult]) -> Chart:
    """Plot the measured front, each method's predicted front, and measured values of the latter's modes (seed 0)."""
    frames = []
    for count in _list_counts(outcomes):
        data = [_measured_front_trace(target)]
        for outcome in _outcomes_with_predictions(outcomes, count):
            data += _predicted_front_traces(target, outcome, _list_methods(outcomes))
        frames.append(ChartFrame(f"{count} modes profiled", data, {}))
    layout = xy_layout(
        axis("time per step (ms)", type="log", **log_ticks(*_log_range((1e3 * target.table.step_s).tolist()))),
        axis("power (W)", rangemode="normal"),
    )
    caption = (
        "Line: the measured front, without implausible rows. Dashed: the front that a method predicts. Marks: the "
        "measured values of the modes on the predicted front; on the line they are optimal."
    )
    return Chart(
        f"{key}-fronts",
        "Fronts of time and power",
        caption,
        [],
        layout=layout,
        height_px=420,
        frames=_apply_layout(frames, layout),
    )


def _error_chart(key: str, title: str, field: str, rows: Sequence[PredictionRow]) -> Chart:
    methods = tuple(dict.fromkeys(row.method for row in rows))
    counts = sorted({row.modes for row in rows})
    colour, symbol = assign_colours(methods), assign_symbols(methods)
    data: list[Trace] = []
    for place, method in enumerate(methods):
        shift = 10 ** (METHOD_SHIFT_DECADES * (place - (len(methods) - 1) / 2))
        values_by_count = {
            n: list_known_values([r for r in rows if r.method == method and r.modes == n], field) for n in counts
        }
        known = {n: values for n, values in values_by_count.items() if values}
        means = [sum(values) / len(values) for values in known.values()]
        data.append(
            line_trace(
                method,
                [shift * n for n in known],
                means,
                colour=colour[method],
                markers=True,
                marker={"symbol": symbol[method], "size": 8},
                error_y=error_bars(
                    [max(values) - mean for values, mean in zip(known.values(), means, strict=True)],
                    [mean - min(values) for values, mean in zip(known.values(), means, strict=True)],
                    colour=colour[method],
                ),
                hover=[_hover_text(method, n, values) for n, values in known.items()],
            )
        )
    values = list_known_values(rows, field)
    layout = {
        "xaxis": axis(
            "modes profiled", type="log", tickvals=counts, ticktext=[str(n) for n in counts], range=_log_range(counts)
        ),
        "yaxis": axis("MAPE (%), logarithmic", type="log", range=_log_range(values), **log_ticks(*_log_range(values))),
        "legend": LEGEND,
    }
    caption = (
        "Mean absolute error over the modes that were not profiled: mean over seeds, bars from best to worst seed."
    )
    return Chart(f"{key}-error", title, caption, data, layout=layout, height_px=330)


def _hover_text(method: str, count: int, values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return f"<b>{escape(method)}</b>, {count} modes: {mean:.2f} %<br>{min(values):.2f} to {max(values):.2f} %"


def _log_range(values: Sequence[float]) -> list[float]:
    """Return the range of a logarithmic axis, slightly wider than the values."""
    positive = [value for value in values if value > 0]
    if not positive:
        return [0.0, 1.0]
    return [math.log10(min(positive)) - 0.1, math.log10(max(positive)) + 0.1]


def _scatter_chart(
    key: str, title: str, unit: str, measured: Floats, target: PredictionTarget, outcomes: Sequence[CellResult]
) -> Chart:
    methods = _list_methods(outcomes)
    reach = _log_range(measured.tolist())
    ticks = log_ticks(*_log_range(measured.tolist()))
    frames = []
    for count in _list_counts(outcomes):
        data: list[Trace] = [_diagonal_trace(reach)]
        for outcome in _outcomes_with_predictions(outcomes, count):
            assert outcome.predictions is not None
            predicted = _select_quantity(outcome.predictions, unit)
            data.append(
                _points_trace(
                    outcome,
                    methods=methods,
                    measured=measured,
                    predicted=predicted,
                    unit=unit,
                    plausible=target.plausible,
                )
            )
        frames.append(ChartFrame(f"{count} modes profiled", data, {}))
    layout = xy_layout(
        axis(f"measured {title} ({unit})", type="log", range=reach, **ticks),
        axis(f"predicted {title} ({unit})", type="log", range=reach, **ticks),
    )
    caption = (
        "Marks above the diagonal are predicted too high. Seed 0, modes that were not profiled"
        f"{f', {MAX_SCATTER_POINTS} of them' if len(measured) > MAX_SCATTER_POINTS else ''}. Hollow: implausible "
        f"rows of the table."
    )
    return Chart(
        key,
        f"Predicted and measured {title}",
        caption,
        [],
        layout=layout,
        height_px=420,
        frames=_apply_layout(frames, layout),
    )


def _select_quantity(predictions: Predictions, unit: str) -> Floats:
    return 1e3 * predictions.step_s if unit == "ms" else predictions.power_w


def _points_trace(
    outcome: CellResult,
    methods: Sequence[str],
    measured: Floats,
    predicted: Floats,
    unit: str,
    plausible: NDArray[np.bool_],
) -> Trace:
    method = outcome.row.method
    rows = _select_rows(len(measured), outcome.profiled)
    colour, symbol = assign_colours(methods)[method], assign_symbols(methods)[method]
    shapes = [symbol if plausible[row] else f"{symbol}-open" for row in rows]
    return scatter_trace(
        method,
        measured[rows].tolist(),
        predicted[rows].tolist(),
        marker={"color": colour, "symbol": shapes, "size": 4.5, "opacity": 0.55},
        hover=f"measured %{{x:.4g}} {unit}, predicted %{{y:.4g}} {unit}<extra>{escape(method)}</extra>",
    )


def _select_rows(count: int, profiled: Sequence[int]) -> list[int]:
    """Return the rows to draw, the same for every method except for the modes it profiled."""
    excluded = {*profiled}
    order = np.random.default_rng(0).permutation(count)[: MAX_SCATTER_POINTS + len(excluded)].tolist()
    return [row for row in order if row not in excluded][:MAX_SCATTER_POINTS]


def _diagonal_trace(reach: Sequence[float]) -> Trace:
    ends = [10.0**end for end in reach]
    return line_trace("equal", ends, ends, colour=GREY, width=1, dash="dash", markers=False, legend=False)


def _measured_front_trace(target: PredictionTarget) -> Trace:
    rows = np.flatnonzero(target.plausible)
    step_s, power_w = target.table.step_s[rows], target.table.power_w[rows]
    best = _front_rows(step_s, power_w)
    return line_trace(
        "measured",
        (1e3 * step_s[best]).tolist(),
        power_w[best].tolist(),
        colour=GREY,
        width=4,
        markers=False,
        hover="%{x:.4g} ms, %{y:.3g} W<extra>measured front</extra>",
    )


def _predicted_front_traces(target: PredictionTarget, outcome: CellResult, methods: Sequence[str]) -> list[Trace]:
    assert outcome.predictions is not None
    method, predictions = outcome.row.method, outcome.predictions
    rows = np.flatnonzero(target.plausible)
    best = rows[_front_rows(predictions.step_s[rows], predictions.power_w[rows])]
    colour, symbol = assign_colours(methods)[method], assign_symbols(methods)[method]
    return [
        line_trace(
            f"{method}: predicted",
            (1e3 * predictions.step_s[best]).tolist(),
            predictions.power_w[best].tolist(),
            colour=colour,
            width=1.5,
            dash="dash",
            markers=False,
            legendgroup=method,
            hover=f"%{{x:.4g}} ms, %{{y:.3g}} W<extra>{escape(method)} predicts</extra>",
        ),
        scatter_trace(
            f"{method}: measured there",
            (1e3 * target.table.step_s[best]).tolist(),
            target.table.power_w[best].tolist(),
            marker={"color": colour, "symbol": symbol, "size": 6, "opacity": 0.75},
            legendgroup=method,
            hover=f"%{{x:.4g}} ms, %{{y:.3g}} W<extra>measured, front of {escape(method)}</extra>",
        ),
    ]


def _front_rows(step_s: Floats, power_w: Floats) -> NDArray[np.intp]:
    """Return the rows on the Pareto front of time and power, from fastest to slowest."""
    rows = np.flatnonzero(front_mask(step_s, power_w))
    return rows[np.argsort(step_s[rows])]


def _list_methods(outcomes: Sequence[CellResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(outcome.row.method for outcome in outcomes))


def _list_counts(outcomes: Sequence[CellResult]) -> list[int]:
    return sorted({outcome.cell.modes for outcome in outcomes if outcome.predictions is not None})


def _outcomes_with_predictions(outcomes: Sequence[CellResult], count: int) -> list[CellResult]:
    return [outcome for outcome in outcomes if outcome.cell.modes == count and outcome.predictions is not None]


def _apply_layout(frames: Sequence[ChartFrame], layout: dict[str, Any]) -> tuple[ChartFrame, ...]:
    return tuple(ChartFrame(frame.label, frame.data, layout) for frame in frames)
