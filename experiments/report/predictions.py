"""Predictions of one run against what was measured, and how their error shrinks; pure, from rows to plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from experiments.report.chart import LEGEND, Chart, Trace, axis, marks
from experiments.report.palette import GREY, colours, symbols
from experiments.report.quantities import known, mean
from experiments.report.runs import Run
from experiments.report.sampling import thinned
from fedge.telemetry.rows import ClientRow

QUANTITIES = (("step_s", "time", "time per minibatch", "ms", 1e3), ("power_w", "power", "power", "W", 1.0))


def predictions(run: Run) -> tuple[Chart, ...]:
    """Predicted against measured, and how the error shrinks over the rounds; time first, then power."""
    return (
        *(_scatter(run, *quantity) for quantity in QUANTITIES),
        *(_errors(run, column, key) for column, key, *_ in QUANTITIES),
    )


def _pairs(rows: Sequence[ClientRow], column: str) -> list[tuple[ClientRow, float, float]]:
    """Rows with a measurement and the prediction made before it."""
    found = [(row, getattr(row, column), getattr(row, f"predicted_{column}")) for row in rows]
    return [(row, float(m), float(p)) for row, m, p in found if known(m) and known(p) and m > 0 and p > 0]


def _scatter(run: Run, column: str, key: str, title: str, unit: str, factor: float) -> Chart:
    colour, symbol = colours(run.devices), symbols(run.devices)
    pairs, note = thinned(_pairs(run.clients, column))
    first = run.rounds[0].round
    low, high = _ends([value * factor for _, measured, predicted in pairs for value in (measured, predicted)])
    data: list[Trace] = [_diagonal(low, high)]
    for device in run.devices:
        # Latest first: the legend takes its mark from the first point, and should show a filled one.
        own = [pair for pair in reversed(pairs) if pair[0].device == device]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(device),
                "x": [measured * factor for _, measured, _ in own],
                "y": [predicted * factor for _, _, predicted in own],
                "marker": {
                    "color": colour[device],
                    "symbol": [symbol[device] + ("-open" if row.round == first else "") for row, _, _ in own],
                    "size": 8,
                    "opacity": 0.8,
                    "line": {"width": 1.5, "color": colour[device]},
                },
                "hovertext": [_missed(row, m * factor, p * factor, unit) for row, m, p in own],
                "hoverinfo": "text",
            }
        )
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
    return Chart(f"predicted-{key}", f"Predicted and measured {key}", caption, data, layout, 380)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """A little more than the range of the values, the same for both axes."""
    return (min(values) / 1.15, max(values) * 1.15) if values else (1.0, 10.0)


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade; where that would be too few, round numbers at even steps."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= tick <= high]
    if len(shown) >= 3:
        return shown
    decade = 10.0 ** math.floor(math.log10(high - low))
    step = next(factor * decade for factor in (2, 1, 0.5, 0.2) if (high - low) / (factor * decade) >= 4)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _diagonal(low: float, high: float) -> Trace:
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


def _missed(row: ClientRow, measured: float, predicted: float, unit: str) -> str:
    return (
        f"<b>{escape(row.board)}</b>, round {row.round}<br>measured {measured:.3g} {unit}, "
        f"predicted {predicted:.3g} {unit} ({100 * (predicted / measured - 1):+.1f} %)"
    )


def _errors(run: Run, column: str, key: str) -> Chart:
    colour, symbol = colours(run.devices), symbols(run.devices)
    numbers = [row.round for row in run.rounds]
    data = []
    for device in run.devices:
        own = [row for row in run.clients if row.device == device]
        prior = mean(getattr(row, f"prior_{key}_ape") for row in own)
        error = {n: mean(abs(p - m) / m for _, m, p in pairs) for n, pairs in _by_round(own, column).items()}
        data.append(
            {
                "type": "scatter",
                "mode": marks(len(run.rounds)),
                "name": escape(device),
                "x": [0, *numbers],
                "y": [None if e is None else 100 * e for e in (prior, *(error.get(n) for n in numbers))],
                "line": {"color": colour[device], "width": 2},
                "marker": {"symbol": symbol[device], "size": 7},
                "hovertemplate": f"round %{{x}}: %{{y:.1f}} %<extra>{escape(device)}</extra>",
            }
        )
    layout: dict[str, Any] = {
        "xaxis": axis("round (0: prior)", range=[-0.4, numbers[-1] + 0.4]),
        "yaxis": axis(f"|predicted − measured| {key} (%)", rangemode="tozero"),
        "legend": LEGEND,
    }
    caption = (
        "At 0, the prior's mean error over all of the board's modes, before anything was measured; from round 1, the "
        "mean error in the modes that were played, each predicted before its round."
    )
    return Chart(f"error-{key}", f"Error of predicted {key}", caption, data, layout, 320)


def _by_round(rows: Sequence[ClientRow], column: str) -> dict[int, list[tuple[ClientRow, float, float]]]:
    found: dict[int, list[tuple[ClientRow, float, float]]] = {}
    for pair in _pairs(rows, column):
        found.setdefault(pair[0].round, []).append(pair)
    return found
