"""Quantiles of prediction errors against measurements, per kind of board, over boards and rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.report.html_elements import ReportTable, TableCell, swatch_cell, value_cell
from experiments.report.palette import assign_colours
from experiments.report.quantities import percent
from experiments.report.run import prediction_charts
from experiments.report.run.loaded_runs import LoadedRun

QUANTILES = (0.5, 0.9, 0.95, 1.0)


def interpolate_quantile(values: Sequence[float], p: float) -> float | None:
    """Return the quantile ``p`` by linear interpolation between the sorted values; None if there are none."""
    if not values:
        return None
    place = p * (len(values) - 1)
    ordered, below = sorted(values), math.floor(place)
    above = min(below + 1, len(values) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def error_quantile_table(run: LoadedRun) -> ReportTable:
    """Build a table with one row per kind of board and quantity that was both predicted and measured."""
    colour = assign_colours(run.devices)
    rows = []
    for column, key, *_ in prediction_charts.PREDICTED_QUANTITIES:
        pairs = prediction_charts.pair_predictions(run.clients, column)
        for device in run.devices:
            misses = [p / m - 1.0 for row, m, p in pairs if row.device == device]
            if misses:
                sizes = [abs(miss) for miss in misses]
                cells = (
                    _percent_cell(interpolate_quantile(misses, 0.5)),
                    *(_percent_cell(interpolate_quantile(sizes, p)) for p in QUANTILES),
                )
                rows.append(
                    (
                        swatch_cell(colour[device], device),
                        TableCell(key),
                        value_cell(str(len(misses)), len(misses)),
                        *cells,
                    )
                )
    heads = ("board", "of", "predictions", "middle, with its sign", "median", "90 %", "95 %", "largest")
    return ReportTable("prediction-quantiles", heads, tuple(rows))


def _percent_cell(miss: float | None) -> TableCell:
    return value_cell(percent(miss), None if miss is None else 100 * miss, "%")


def render_error_quantiles(run: LoadedRun) -> str:
    """Render the table with a reading aid."""
    found = error_quantile_table(run)
    said = (
        "Every board and round above the diagonals: by how much predictions missed what was measured. So many of them "
        "missed by no more than the figure; the one with a sign is negative where predictions were too low."
    )
    return f'<p class="caption">{said}</p>{found.html}' if found.rows else ""
