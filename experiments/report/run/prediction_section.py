"""Predictions of a run against measurements and, if emulated, the truth: errors over rounds, by sample, quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from experiments.report import chart
from experiments.report.chart import MAX_TICKS, Chart, Trace, axis
from experiments.report.page import EMPTY, render_paragraph
from experiments.report.quantities import is_known, median
from experiments.report.run.loaded_runs import LoadedRun, thin_points
from experiments.report.tables import Table, percent_cell, swatch_cell, text_cell, value_cell
from fedge.groups import group_by
from fedge.telemetry.store_records import ClientRow, relative_error

PREDICTED_QUANTITIES = (("step_s", "time", "time per step", "ms", 1e3), ("power_w", "power", "power", "W", 1.0))
OLD_TABLES_NOTE = "This run was written by an older version that did not record prediction errors over all modes."
NO_TRUTH_NOTE = "Prediction errors over all modes are unknown: these boards have no measurements of all modes."
SAMPLE_BINS = (0, 1, 3, 6, 11, 21, 51)
"""Lower bounds of the table's bins, in a board's own measurements."""
QUANTILES = (0.5, 0.9, 0.95, 1.0)
QUANTILES_NOTE = (
    "Quantiles of the prediction error over all boards and rounds, relative to the measured value. A negative signed "
    "median means that predictions were too low."
)
BY_SAMPLES_NOTE = "Median errors: in the modes used, against measurements; in all modes, against the emulated truth."


def explain_missing_errors(run: LoadedRun) -> str:
    """Explain why the error over all modes is not drawn; empty if it is."""
    rows = [row for row in run.clients if row.status != "failed"]
    if any(is_known(row.time_ape) for row in rows):
        return ""
    return NO_TRUTH_NOTE if any(row.own_samples is not None for row in rows) else OLD_TABLES_NOTE


def error_over_all_modes(run: LoadedRun, key: str) -> tuple[float | None, ...]:
    """Return the fleet's median relative error of ``time`` or ``power`` over all modes.

    Returns:
        The error before the first round, then that of each round, as shares; None where unknown.
    """
    prior = median(getattr(row, f"prior_{key}_ape") for row in run.clients)
    rows_by_round = group_by(run.clients, lambda row: row.round)
    by_round = [rows_by_round.get(row.round, ()) for row in run.rounds]
    return (prior, *(median(getattr(row, f"{key}_ape") for row in rows) for rows in by_round))


def _format_range(low: float, above: float) -> str:
    if above - low == 1:
        return f"{low:.0f}"
    return f"{low:.0f} or more" if math.isinf(above) else f"{low:.0f} to {above - 1:.0f}"


def pair_predictions(rows: Sequence[ClientRow], column: str) -> list[tuple[ClientRow, float, float]]:
    """Return the rows with both a measurement and a prediction made before it, with the two values."""
    pairs = [(row, getattr(row, column), getattr(row, f"predicted_{column}")) for row in rows]
    return [(row, float(m), float(p)) for row, m, p in pairs if is_known(m) and is_known(p) and m > 0 and p > 0]


# Tables ---------------------------------------------------------------------------------------------------------------


def errors_by_samples_table(run: LoadedRun) -> Table:
    """Build a table of median errors by a board's own measurements; without rows for older runs, which lack these.

    In the modes used, they are against measurements; over all modes, against the truth.
    """
    rows, lines = [row for row in run.clients if row.own_samples is not None], []
    for low, above in pairwise((*SAMPLE_BINS, math.inf)):
        binned = [row for row in rows if low <= (row.own_samples or 0) < above]
        pairs = [pair_predictions(binned, column) for column, *_ in PREDICTED_QUANTITIES]
        worked = [median(relative_error(predicted, m) for _, m, predicted in known) for known in pairs]
        every = [median(row.time_ape for row in binned), median(row.power_ape for row in binned)]
        if binned:
            shown = (text_cell(_format_range(low, above)), value_cell(len(binned)))
            lines.append((*shown, *(percent_cell(error) for error in (*worked, *every))))
    kinds = ("time, modes used", "power, modes used", "time, all modes", "power, all modes")
    return Table("errors-by-measurements", ("own measurements", "rounds", *kinds), tuple(lines))


def error_quantile_table(run: LoadedRun) -> Table:
    """Build a table with one row per kind of board and quantity that was both predicted and measured."""
    rows = []
    for column, key, *_ in PREDICTED_QUANTITIES:
        pairs = pair_predictions(run.clients, column)
        for device, style in run.styles.items():
            misses = [p / m - 1.0 for row, m, p in pairs if row.device == device]
            if misses:
                shares = (np.median(misses), *np.quantile(np.abs(misses), QUANTILES))
                names = (swatch_cell(style.colour, device), text_cell(key), value_cell(len(misses)))
                rows.append((*names, *(percent_cell(float(share)) for share in shares)))
    heads = ("board", "of", "predictions", "signed median", "median", "90 %", "95 %", "largest")
    return Table("prediction-quantiles", heads, tuple(rows))


def render_prediction_errors(run: LoadedRun) -> Markup:
    """Render both tables with their notes, and why errors are missing."""
    noted = ((QUANTILES_NOTE, error_quantile_table(run)), (BY_SAMPLES_NOTE, errors_by_samples_table(run)))
    parts = [render_paragraph(note, "caption") + table.html for note, table in noted if table.rows]
    missing = explain_missing_errors(run)
    return Markup().join(parts) + (render_paragraph(missing, "caption") if missing else EMPTY)


def build_prediction_charts(run: LoadedRun) -> tuple[Chart, ...]:
    """Plot predicted over measured values, then two errors over the rounds, each for time and power.

    The error over all modes needs the truth, and columns that older runs lack; see ``explain_missing_errors``.
    """
    every = () if explain_missing_errors(run) else PREDICTED_QUANTITIES
    return (
        *(_scatter_chart(run, *quantity) for quantity in PREDICTED_QUANTITIES),
        *(_error_where_worked_chart(run, column, key) for column, key, *_ in PREDICTED_QUANTITIES),
        *(_error_over_all_modes_chart(run, key) for _, key, *_ in every),
    )


def _scatter_chart(run: LoadedRun, column: str, key: str, title: str, unit: str, factor: float) -> Chart:
    pairs, note = thin_points([(row, factor * m, factor * p) for row, m, p in pair_predictions(run.clients, column)])
    first = run.rounds[0].round
    ends = chart.log_range([value for _, measured, predicted in pairs for value in (measured, predicted)])
    data: list[Trace] = [chart.diagonal_trace(*ends)]
    for device, style in run.styles.items():
        # Latest first: the legend copies the first point's mark and should show a filled one.
        own = [pair for pair in reversed(pairs) if pair[0].device == device]
        symbols = [style.symbol + ("-open" if row.round == first else "") for row, _, _ in own]
        data.append(
            chart.scatter_trace(
                device,
                [measured for _, measured, _ in own],
                [predicted for _, _, predicted in own],
                marker=style.marker(8, symbol=symbols, opacity=0.8, line={"width": 1.5, "color": style.colour}),
                hover=[_hover_text(row, measured, predicted, unit) for row, measured, predicted in own],
            )
        )
    return chart.xy_chart(
        f"predicted-{key}",
        f"Predicted and measured {key}",
        data,
        xaxis=chart.log_axis(f"measured {title} ({unit})", *ends),
        yaxis=chart.log_axis(f"predicted {title} ({unit})", *ends),
        caption=f"Marks above the diagonal are predicted too high. Hollow: round {first}, from the prior alone. {note}",
        height_px=380,
    )


def _hover_text(row: ClientRow, measured: float, predicted: float, unit: str) -> Markup:
    figures = f"measured {measured:.3g} {unit}, predicted {predicted:.3g} {unit}"
    error = f"{100 * (predicted / measured - 1):+.1f} %"
    return Markup("<b>{}</b>, round {}<br>{} ({})").format(row.board, row.round, figures, error)


def _error_where_worked_chart(run: LoadedRun, column: str, key: str) -> Chart:
    def error(rows: Sequence[ClientRow]) -> float | None:
        return median(relative_error(p, m) for _, m, p in pair_predictions(rows, column))

    caption = (
        "Against measurements: in the one mode in which each board worked, as predicted before the round; the median "
        "over the boards of a kind. It includes the meter's noise, so it does not fall to zero."
    )
    return _error_chart(run, f"error-{key}", f"Error of predicted {key}, modes used", caption, error=error)


def _error_over_all_modes_chart(run: LoadedRun, key: str) -> Chart:
    def error(rows: Sequence[ClientRow]) -> float | None:
        return median(getattr(row, f"{key}_ape") for row in rows)

    caption = (
        "Against the emulated truth: the mean over all modes that a board may choose, of what it predicted when it "
        "decided; the median over the boards of a kind. At 0, before anything was measured."
    )
    title, prior = f"Error of predicted {key}, all modes", f"prior_{key}_ape"
    return _error_chart(run, f"learning-{key}", title, caption, error=error, prior=prior)


def _error_chart(
    run: LoadedRun,
    key: str,
    title: str,
    caption: str,
    *,
    error: Callable[[Sequence[ClientRow]], float | None],
    prior: str = "",
) -> Chart:
    """Plot one line per kind of board over the rounds; ``prior`` is the column of the point at round 0."""
    numbers = [row.round for row in run.rounds]
    data: list[Trace] = []
    for device, style in run.styles.items():
        own = [row for row in run.clients if row.device == device]
        by_round = group_by(own, lambda row: row.round)
        before = [median(getattr(row, prior) for row in own)] if prior else []
        errors = [*before, *(error(by_round.get(number, [])) for number in numbers)]
        data.append(
            chart.line_trace(
                device,
                [0, *numbers] if prior else numbers,
                [None if value is None else 100 * value for value in errors],
                colour=style.colour,
                hover=Markup("round %{{x}}: %{{y:.1f}} %<extra>{}</extra>").format(device),
                marker={"symbol": style.symbol, "size": 7},
            )
        )
    first, last = 0 if prior else numbers[0], numbers[-1]
    ticks = {"dtick": 1} if last - first < MAX_TICKS else {}
    rounds = axis("round (0: prior)" if prior else "round", range=[first - 0.4, last + 0.4], **ticks)
    up = axis(f"error of {key.partition('-')[2]} (%)", rangemode="tozero")
    return chart.xy_chart(key, title, data, xaxis=rounds, yaxis=up, caption=caption)
