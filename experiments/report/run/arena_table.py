"""The arena's tables: one row per variant, of the undisturbed and of the disturbed fleet."""

from __future__ import annotations

import math

from experiments.report.confidence_intervals import ConfidenceInterval
from experiments.report.quantities import UNKNOWN, duration, energy, percent
from experiments.report.tables import Cell, Table, number_cell, text_cell, value_cell
from experiments.sweeps.arena import ArenaFigure, ArenaResult, ArenaRow

HEADS = ("variant", "n", "accuracy", "difference", "reached", "time", "ratio", "energy", "ratio of energy")


def list_arena_tables(result: ArenaResult) -> list[Table]:
    """Return the table of the first sweep, and that of the second if there is one."""
    budgets = f"within {duration(result.budget_s)} and {energy(result.budget_j)}; cost to {percent(result.target)}"
    named = (("arena", "arena", result.rows), ("arena-disturbed", "disturbed fleet", result.disturbed))
    return [
        Table(key, HEADS, tuple(map(_build_row, rows)), title=f"{title}: accuracy {budgets}")
        for key, title, rows in named
        if rows
    ]


def _build_row(row: ArenaRow) -> tuple[Cell, ...]:
    seconds, joules = row.seconds.mean, row.joules.mean
    return (
        text_cell(row.label),
        value_cell(row.seeds),
        value_cell(None if row.quality.mean is None else row.quality.mean.mean, percent),
        _difference_cell(row.quality.difference),
        number_cell(f"{row.seconds.reached} of {row.seeds}", row.seconds.reached),
        value_cell(None if seconds is None else seconds.mean, duration, "s"),
        _ratio_cell(row.seconds),
        value_cell(None if joules is None else joules.mean, energy, "J"),
        _ratio_cell(row.joules),
    )


def _difference_cell(found: ConfidenceInterval | None) -> Cell:
    if found is None:
        return number_cell(UNKNOWN)
    half = "" if found.half_width is None else f" ± {100 * found.half_width:.1f}"
    return Cell(
        f"{100 * found.mean:+.1f}{half}",
        numeric=True,
        best=found.verdict == "higher",
        value=found.mean,
        half_interval=found.half_width,
    )


def _ratio_cell(figure: ArenaFigure) -> Cell:
    """Show the geometric mean of the seeds' ratios to the first variant with its interval."""
    found = figure.difference
    if found is None:
        return number_cell(UNKNOWN)
    span = "" if found.half_width is None else f" [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"
    return Cell(
        f"{math.exp(found.mean):.2f}{span}", numeric=True, best=found.verdict == "lower", value=math.exp(found.mean)
    )
