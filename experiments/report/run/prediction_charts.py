"""Predictions of one run against measurements and, if emulated, the truth, with the errors over the rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import median
from typing import Any

from experiments.report.chart import LEGEND, Chart, Trace, axis, line_mode
from experiments.report.palette import GREY, assign_colours, assign_symbols
from experiments.report.quantities import is_known
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.run.run_sample import thin_rows
from fedge.telemetry.store_records import ClientRow

PREDICTED_QUANTITIES = (("step_s", "time", "time per minibatch", "ms", 1e3), ("power_w", "power", "power", "W", 1.0))
OLD_TABLES_NOTE = (
    "This run's tables do not say how far predictions were off over all modes; an older version wrote them."
)
NO_TRUTH_NOTE = "How far predictions are off over all modes is not known: nobody measured all modes of these boards."
SAMPLE_BINS = (0, 1, 3, 6, 11, 21, 51)
"""Lower bounds of the table's bins, in a board's own measurements."""


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


def explain_missing_errors(run: LoadedRun) -> str:
    """Explain why the error over all modes is not drawn; empty if it is."""
    told = [row for row in run.clients if row.status != "failed"]
    if any(is_known(row.time_ape) for row in told):
        return ""
    return NO_TRUTH_NOTE if any(row.own_samples is not None for row in told) else OLD_TABLES_NOTE


def error_over_all_modes(run: LoadedRun, key: str) -> tuple[float | None, ...]:
    """Return the fleet's median relative error over all modes.

    Args:
        run: The run.
        key: ``time`` or ``power``.

    Returns:
        The error before the first round, then that of each round, as shares; None where unknown.
    """
    prior = _median_known(getattr(row, f"prior_{key}_ape") for row in run.clients)
    found = _group_by_round(run.clients)
    by_round = [found.get(played.round, ()) for played in run.rounds]
    return (prior, *(_median_known(getattr(row, f"{key}_ape") for row in rows) for rows in by_round))


def _group_by_round(rows: Iterable[ClientRow]) -> dict[int, list[ClientRow]]:
    found: dict[int, list[ClientRow]] = {}
    for row in rows:
        found.setdefault(row.round, []).append(row)
    return found


@dataclass(frozen=True, slots=True)
class ErrorsBySamples:
    """Median relative errors of rows with similar numbers of measurements.

    Attributes:
        samples: The range of the board's own measurements, as text.
        rows: Number of rows.
        worked_time: Error of time in the modes used, against measurements.
        worked_power: Error of power in the modes used, against measurements.
        every_time: Error of time over all modes, against the truth.
        every_power: Error of power over all modes, against the truth.
    """

    samples: str
    rows: int
    worked_time: float | None
    worked_power: float | None
    every_time: float | None
    every_power: float | None


def errors_by_samples(run: LoadedRun) -> tuple[ErrorsBySamples, ...]:
    """Return the errors by the number of a board's own measurements; empty for older runs, which lack the column."""
    rows = [row for row in run.clients if row.own_samples is not None]
    found = []
    for low, above in pairwise((*SAMPLE_BINS, math.inf)):
        here = [row for row in rows if low <= (row.own_samples or 0) < above]
        if here:
            found.append(_summarize_errors(_format_range(low, above), here))
    return tuple(found)


def _format_range(low: float, above: float) -> str:
    if above - low == 1:
        return f"{low:.0f}"
    return f"{low:.0f} or more" if math.isinf(above) else f"{low:.0f} to {above - 1:.0f}"


def _summarize_errors(samples: str, rows: Sequence[ClientRow]) -> ErrorsBySamples:
    time, power = (
        _median_known(_relative_error(m, p) for _, m, p in pair_predictions(rows, column))
        for column, *_ in PREDICTED_QUANTITIES
    )
    return ErrorsBySamples(
        samples,
        rows=len(rows),
        worked_time=time,
        worked_power=power,
        every_time=_median_known(r.time_ape for r in rows),
        every_power=_median_known(r.power_ape for r in rows),
    )


def _relative_error(measured: float, predicted: float) -> float:
    return abs(predicted - measured) / measured


def _median_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values, or None if there is none."""
    given = [value for value in values if value is not None and math.isfinite(value)]
    return median(given) if given else None


def pair_predictions(rows: Sequence[ClientRow], column: str) -> list[tuple[ClientRow, float, float]]:
    """Return the rows with both a measurement and a prediction made before it, with the two values."""
    found = [(row, getattr(row, column), getattr(row, f"predicted_{column}")) for row in rows]
    return [(row, float(m), float(p)) for row, m, p in found if is_known(m) and is_known(p) and m > 0 and p > 0]


def _device_trace(
    device: str, pairs: Sequence[tuple[ClientRow, float, float]], marker: Trace, *, factor: float, unit: str
) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": escape(device),
        "x": [measured * factor for _, measured, _ in pairs],
        "y": [predicted * factor for _, _, predicted in pairs],
        "marker": marker,
        "hovertext": [_hover_text(row, m * factor, p * factor, unit) for row, m, p in pairs],
        "hoverinfo": "text",
    }


def _scatter_chart(run: LoadedRun, column: str, key: str, title: str, unit: str, factor: float) -> Chart:
    colour, symbol = assign_colours(run.devices), assign_symbols(run.devices)
    shown, note = thin_rows(pair_predictions(run.clients, column))
    first = run.rounds[0].round
    low, high = _pad_range([value * factor for _, measured, predicted in shown for value in (measured, predicted)])
    data: list[Trace] = [_diagonal_trace(low, high)]
    for device in run.devices:
        # Latest first: the legend copies the first point's mark and should show a filled one.
        own = [pair for pair in reversed(shown) if pair[0].device == device]
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
    layout = {
        "xaxis": axis(f"measured {title} ({unit})", **ends),
        "yaxis": axis(f"predicted {title} ({unit})", **ends),
        "legend": LEGEND,
        "hovermode": "closest",
    }
    caption = (
        "On the diagonal the prediction was right; above it, it was too high. "
        f"Hollow: round {first}, from the prior alone. {note}"
    )
    return Chart(
        f"predicted-{key}",
        title=f"Predicted and measured {key}",
        caption=caption,
        data=data,
        layout=layout,
        height_px=380,
    )


def _pad_range(values: Sequence[float]) -> tuple[float, float]:
    """Return a range slightly wider than the values, to be used for both axes."""
    return (min(values) / 1.15, max(values) * 1.15) if values else (1.0, 10.0)


def _log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each decade, or round numbers at equal steps if those would be too few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= tick <= high]
    if len(shown) >= 3:
        return shown
    decade = 10.0 ** math.floor(math.log10(high - low))
    step = next(factor * decade for factor in (2, 1, 0.5, 0.2) if (high - low) / (factor * decade) >= 4)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _diagonal_trace(low: float, high: float) -> Trace:
    style = {"color": GREY, "width": 1, "dash": "dash"}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [low, high],
        "y": [low, high],
        "line": style,
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _hover_text(row: ClientRow, measured: float, predicted: float, unit: str) -> str:
    return (
        f"<b>{escape(row.board)}</b>, round {row.round}<br>measured {measured:.3g} {unit}, "
        f"predicted {predicted:.3g} {unit} ({100 * (predicted / measured - 1):+.1f} %)"
    )


def _error_where_worked_chart(run: LoadedRun, column: str, key: str) -> Chart:
    def error(rows: Sequence[ClientRow]) -> float | None:
        return _median_known(_relative_error(m, p) for _, m, p in pair_predictions(rows, column))

    caption = (
        "<b>Measured.</b> In the one mode that each board worked in, predicted before it did: the median over the "
        "boards of a kind. Noise of the meter is in it, so it does not fall to nothing."
    )
    layout = _error_layout("round", (run.rounds[0].round, run.rounds[-1].round), key)
    title = f"Error of predicted {key}, where the board worked"
    return Chart(
        f"error-{key}", title=title, caption=caption, data=_error_traces(run, error), layout=layout, height_px=320
    )


def _error_over_all_modes_chart(run: LoadedRun, key: str) -> Chart:
    def error(rows: Sequence[ClientRow]) -> float | None:
        return _median_known(getattr(row, f"{key}_ape") for row in rows)

    caption = (
        "<b>Emulated truth.</b> The mean over all modes that a board may choose, of what it predicted when it decided; "
        "the median over the boards of a kind. At 0, before anything was measured."
    )
    layout = _error_layout("round (0: prior)", (0, run.rounds[-1].round), key)
    title = f"Error of predicted {key}, over all modes"
    return Chart(
        f"learning-{key}",
        title=title,
        caption=caption,
        data=_error_traces(run, error, f"prior_{key}_ape"),
        layout=layout,
        height_px=320,
    )


def _error_layout(title: str, ends: tuple[int, int], key: str) -> dict[str, Any]:
    return {
        "xaxis": axis(title, range=[ends[0] - 0.4, ends[1] + 0.4]),
        "yaxis": axis(f"error of {key} (%)", rangemode="tozero"),
        "legend": LEGEND,
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
        by_round = _group_by_round(own)
        values = [error(by_round.get(n, [])) for n in numbers]
        before = [] if prior is None else [_median_known(getattr(row, prior) for row in own)]
        data.append(
            {
                "type": "scatter",
                "mode": line_mode(len(run.rounds)),
                "name": escape(device),
                "x": [0, *numbers] if before else numbers,
                "y": [None if value is None else 100 * value for value in (*before, *values)],
                "line": {"color": colour[device], "width": 2},
                "marker": {"symbol": symbol[device], "size": 7},
                "hovertemplate": f"round %{{x}}: %{{y:.1f}} %<extra>{escape(device)}</extra>",
            }
        )
    return data
