"""Predictions of one run against measurements and, if emulated, the truth, with the errors over the rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from experiments.report.chart import MAX_TICKS, Chart, Trace, axis, legend_layout, line_trace, scatter_trace, xy_layout
from experiments.report.palette import GREY, assign_colours, assign_symbols
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.prediction_errors import (
    PREDICTED_QUANTITIES,
    explain_missing_errors,
    group_by_round,
    median_known,
    pair_predictions,
)
from experiments.report.run.run_sample import thin_rows
from fedge.telemetry.store_records import ClientRow, relative_error


def build_prediction_charts(run: LoadedRun) -> tuple[Chart, ...]:
    """Plot predicted over measured values, then two errors over the rounds, each for time and power.

    The error over all modes needs the truth, and columns that older runs lack; see ``explain_missing_errors``.
    """
    return (
        *(_scatter_chart(run, *quantity) for quantity in PREDICTED_QUANTITIES),
        *(_error_where_worked_chart(run, column, key) for column, key, *_ in PREDICTED_QUANTITIES),
        *(
            _error_over_all_modes_chart(run, key)
            for _, key, *_ in PREDICTED_QUANTITIES
            if not explain_missing_errors(run)
        ),
    )


def _device_trace(
    device: str, pairs: Sequence[tuple[ClientRow, float, float]], marker: Trace, *, factor: float, unit: str
) -> Trace:
    return scatter_trace(
        device,
        [measured * factor for _, measured, _ in pairs],
        [predicted * factor for _, _, predicted in pairs],
        marker=marker,
        hover=[_hover_text(row, m * factor, p * factor, unit) for row, m, p in pairs],
    )


def _scatter_chart(run: LoadedRun, column: str, key: str, title: str, unit: str, factor: float) -> Chart:
    colour, symbol = assign_colours(run.devices), assign_symbols(run.devices)
    pairs, note = thin_rows(pair_predictions(run.clients, column))
    first = run.rounds[0].round
    low, high = _pad_range([value * factor for _, measured, predicted in pairs for value in (measured, predicted)])
    data: list[Trace] = [_diagonal_trace(low, high)]
    for device in run.devices:
        # Latest first: the legend copies the first point's mark and should show a filled one.
        own = [pair for pair in reversed(pairs) if pair[0].device == device]
        marker = {
            "color": colour[device],
            "symbol": [symbol[device] + ("-open" if row.round == first else "") for row, _, _ in own],
            "size": 8,
            "opacity": 0.8,
            "line": {"width": 1.5, "color": colour[device]},
        }
        data.append(_device_trace(device, own, marker, factor=factor, unit=unit))
    ticks = _log_ticks(low, high)
    ends = {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [f"{v:,g}" for v in ticks],
    }
    layout = xy_layout(
        axis(f"measured {title} ({unit})", **ends),
        axis(f"predicted {title} ({unit})", **ends),
        legend_layout(len(run.devices), run.devices),
    )
    caption = f"Marks above the diagonal are predicted too high. Hollow: round {first}, from the prior alone. {note}"
    return Chart(f"predicted-{key}", f"Predicted and measured {key}", caption, data, layout=layout, height_px=380)


def _pad_range(values: Sequence[float]) -> tuple[float, float]:
    """Return a range slightly wider than the values, to be used for both axes."""
    return (min(values) / 1.15, max(values) * 1.15) if values else (1.0, 10.0)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each decade, or round numbers at equal steps if those would be too few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    visible = [tick for tick in ticks if low <= tick <= high]
    if len(visible) >= 3:
        return visible
    decade = 10.0 ** math.floor(math.log10(high - low))
    step = next(factor * decade for factor in (2, 1, 0.5, 0.2) if (high - low) / (factor * decade) >= 4)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _diagonal_trace(low: float, high: float) -> Trace:
    style = {"color": GREY, "width": 1, "dash": "dash"}
    return scatter_trace("", [low, high], [low, high], mode="lines", line=style, legend=False)


def _hover_text(row: ClientRow, measured: float, predicted: float, unit: str) -> Markup:
    figures = f"measured {measured:.3g} {unit}, predicted {predicted:.3g} {unit}"
    error = f"{100 * (predicted / measured - 1):+.1f} %"
    return Markup("<b>{}</b>, round {}<br>{} ({})").format(row.board, row.round, figures, error)


def _error_where_worked_chart(run: LoadedRun, column: str, key: str) -> Chart:
    def error(rows: Sequence[ClientRow]) -> float | None:
        return median_known(relative_error(p, m) for _, m, p in pair_predictions(rows, column))

    caption = (
        "Against measurements: in the one mode in which each board worked, as predicted before the round; the median "
        "over the boards of a kind. It includes the meter's noise, so it does not fall to zero."
    )
    layout = _error_layout(run, "round", run.rounds[0].round, key)
    title = f"Error of predicted {key}, modes used"
    return Chart(f"error-{key}", title, caption, _error_traces(run, error), layout=layout, height_px=320)


def _error_over_all_modes_chart(run: LoadedRun, key: str) -> Chart:
    def error(rows: Sequence[ClientRow]) -> float | None:
        return median_known(getattr(row, f"{key}_ape") for row in rows)

    caption = (
        "Against the emulated truth: the mean over all modes that a board may choose, of what it predicted when it "
        "decided; the median over the boards of a kind. At 0, before anything was measured."
    )
    layout = _error_layout(run, "round (0: prior)", 0, key)
    title = f"Error of predicted {key}, all modes"
    return Chart(
        f"learning-{key}", title, caption, _error_traces(run, error, f"prior_{key}_ape"), layout=layout, height_px=320
    )


def _error_layout(run: LoadedRun, title: str, first: int, key: str) -> dict[str, Any]:
    last = run.rounds[-1].round
    return {
        "xaxis": axis(title, range=[first - 0.4, last + 0.4], **({"dtick": 1} if last - first < MAX_TICKS else {})),
        "yaxis": axis(f"error of {key} (%)", rangemode="tozero"),
        "legend": legend_layout(len(run.devices), run.devices),
    }


def _error_traces(
    run: LoadedRun, error: Callable[[Sequence[ClientRow]], float | None], prior: str | None = None
) -> list[Trace]:
    """Return one line per kind of board; ``prior`` is the column of the point at round 0."""
    colour, symbol = assign_colours(run.devices), assign_symbols(run.devices)
    numbers = [row.round for row in run.rounds]
    data: list[Trace] = []
    for device in run.devices:
        own = [row for row in run.clients if row.device == device]
        by_round = group_by_round(own)
        values = [error(by_round.get(n, [])) for n in numbers]
        before = [] if prior is None else [median_known(getattr(row, prior) for row in own)]
        data.append(
            line_trace(
                device,
                [0, *numbers] if before else numbers,
                [None if value is None else 100 * value for value in (*before, *values)],
                colour=colour[device],
                hover=Markup("round %{{x}}: %{{y:.1f}} %<extra>{}</extra>").format(device),
                marker={"symbol": symbol[device], "size": 7},
            )
        )
    return data
