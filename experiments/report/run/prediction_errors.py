"""Errors of one run's predictions: over all modes, by a board's own measurements, and their quantiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from markupsafe import Markup

from experiments.report.page import EMPTY, render_paragraph
from experiments.report.palette import assign_colours
from experiments.report.quantities import is_known
from experiments.report.run.loaded_runs import LoadedRun
from experiments.report.tables import Table, percent_cell, swatch_cell, text_cell, value_cell
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
    prior = median_known(getattr(row, f"prior_{key}_ape") for row in run.clients)
    rows_by_round = group_by_round(run.clients)
    by_round = [rows_by_round.get(row.round, ()) for row in run.rounds]
    return (prior, *(median_known(getattr(row, f"{key}_ape") for row in rows) for rows in by_round))


def group_by_round(rows: Iterable[ClientRow]) -> dict[int, list[ClientRow]]:
    """Return the rows of each round."""
    by_round: dict[int, list[ClientRow]] = {}
    for row in rows:
        by_round.setdefault(row.round, []).append(row)
    return by_round


@dataclass(frozen=True, slots=True)
class ErrorsBySamples:
    """Median relative errors of rows with similar numbers of measurements.

    Attributes:
        samples: The range of the board's own measurements, as text.
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
    errors = []
    for low, above in pairwise((*SAMPLE_BINS, math.inf)):
        binned = [row for row in rows if low <= (row.own_samples or 0) < above]
        if binned:
            errors.append(_summarize_errors(_format_range(low, above), binned))
    return tuple(errors)


def _format_range(low: float, above: float) -> str:
    if above - low == 1:
        return f"{low:.0f}"
    return f"{low:.0f} or more" if math.isinf(above) else f"{low:.0f} to {above - 1:.0f}"


def _summarize_errors(samples: str, rows: Sequence[ClientRow]) -> ErrorsBySamples:
    time, power = (
        median_known(relative_error(p, m) for _, m, p in pair_predictions(rows, column))
        for column, *_ in PREDICTED_QUANTITIES
    )
    return ErrorsBySamples(
        samples,
        rows=len(rows),
        worked_time=time,
        worked_power=power,
        every_time=median_known(r.time_ape for r in rows),
        every_power=median_known(r.power_ape for r in rows),
    )


def median_known(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values, or None if there is none."""
    given = [value for value in values if value is not None and math.isfinite(value)]
    return median(given) if given else None


def pair_predictions(rows: Sequence[ClientRow], column: str) -> list[tuple[ClientRow, float, float]]:
    """Return the rows with both a measurement and a prediction made before it, with the two values."""
    pairs = [(row, getattr(row, column), getattr(row, f"predicted_{column}")) for row in rows]
    return [(row, float(m), float(p)) for row, m, p in pairs if is_known(m) and is_known(p) and m > 0 and p > 0]


# Tables ---------------------------------------------------------------------------------------------------------------


def errors_by_samples_table(run: LoadedRun) -> Table:
    """Build a table of prediction errors by a board's own measurements; without rows if they are unknown."""
    kinds = ("time, modes used", "power, modes used", "time, all modes", "power, all modes")
    rows = tuple(
        (
            text_cell(errors.samples),
            value_cell(errors.rows),
            *(percent_cell(e) for e in (errors.worked_time, errors.worked_power)),
            *(percent_cell(e) for e in (errors.every_time, errors.every_power)),
        )
        for errors in errors_by_samples(run)
    )
    return Table("errors-by-measurements", ("own measurements", "rounds", *kinds), rows)


def error_quantile_table(run: LoadedRun) -> Table:
    """Build a table with one row per kind of board and quantity that was both predicted and measured."""
    colour = assign_colours(run.devices)
    rows = []
    for column, key, *_ in PREDICTED_QUANTITIES:
        pairs = pair_predictions(run.clients, column)
        for device in run.devices:
            misses = [p / m - 1.0 for row, m, p in pairs if row.device == device]
            if misses:
                sizes = [abs(miss) for miss in misses]
                shares = (np.median(misses), *np.quantile(sizes, QUANTILES))
                names = (swatch_cell(colour[device], device), text_cell(key), value_cell(len(misses)))
                rows.append((*names, *(percent_cell(float(share)) for share in shares)))
    heads = ("board", "of", "predictions", "signed median", "median", "90 %", "95 %", "largest")
    return Table("prediction-quantiles", heads, tuple(rows))


def render_prediction_errors(run: LoadedRun) -> Markup:
    """Render both tables with their notes, and why errors are missing."""
    noted = ((QUANTILES_NOTE, error_quantile_table(run)), (BY_SAMPLES_NOTE, errors_by_samples_table(run)))
    parts = [render_paragraph(note, "caption") + table.html for note, table in noted if table.rows]
    missing = explain_missing_errors(run)
    return Markup().join([*parts, render_paragraph(missing, "caption") if missing else EMPTY])
