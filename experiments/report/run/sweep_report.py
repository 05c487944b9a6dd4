"""The summary of a sweep as a table, for the terminal, CSV, LaTeX and the report of its runs, and those of an arena."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup

from experiments.report.page import Section, render_paragraph
from experiments.report.quantities import UNKNOWN, duration, energy, format_metric, metric_scale, number
from experiments.report.run.seed_comparison import HeadlineFigure, describe_summary_figure
from experiments.report.tables import Cell, Column, Table, build_table, number_cell, text_cell, value_cell
from experiments.sweeps.arena import ArenaFigure, ArenaResult, ArenaRow
from experiments.sweeps.sweep_summary import (
    SweepSummary,
    VariantFigure,
    VariantSummary,
    is_sweep,
    list_point_folders,
    read_summary,
)
from fedge.confidence_interval import ConfidenceInterval
from fedge.errors import BadInput

SWEEP_LEAD = (
    "Mean ± half of its 95 % confidence interval over n seeds, and the paired difference to the first variant over "
    "common seeds. A variant is better or worse if the interval of the difference excludes zero."
)


def sweep_table(summary: SweepSummary) -> Table:
    """Build a table with one row per figure and variant: mean, and difference to the first variant.

    Figures that no variant has are left out once a point is finished: runs of the task ``none`` have no accuracy.
    """
    variants, rows = summary.variants, []
    for name in variants[0].figures if variants else ():
        if summary.finished_count == 0 or any(variant.figures[name].mean is not None for variant in variants):
            shown = describe_summary_figure(name, summary.metric)
            rows += [_build_row(shown, variant.figures[name], variant) for variant in variants]
    title = f"{summary.name}: {summary.finished_count} of {summary.planned} points"
    if len(variants) > 1:
        title += f"; differences to {variants[0].label}"
    heads = ("figure", "variant", "n", "mean", "difference", "verdict")
    return Table("sweep", heads, tuple(rows), title=title)


def _build_row(shown: HeadlineFigure, figure: VariantFigure, variant: VariantSummary) -> tuple[Cell, ...]:
    seeds, difference = len(variant.points), figure.difference
    verdict = "" if difference is None else str(difference.verdict)
    if verdict in {"higher", "lower"}:
        verdict = "better" if shown.is_improved(verdict) else "worse"
    return (
        text_cell(f"{shown.heading} ({shown.unit})" if shown.unit else shown.heading),
        text_cell(variant.label),
        value_cell(seeds),
        shown.build_cell(figure.mean, seeds),
        number_cell("") if difference is None else shown.build_difference_cell(difference),
        Cell(verdict, best=verdict == "better"),
    )


def expand_sweeps(folders: Sequence[Path]) -> list[Path]:
    """Return run folders, with the finished points in the place of sweeps.

    Raises:
        BadInput: If a sweep has no finished point, or its summary is damaged.
    """
    found: list[Path] = []
    for folder in folders:
        points = list_point_folders(folder, read_summary(folder)) if is_sweep(folder) else [folder]
        if not points:
            raise BadInput(str(folder), "a sweep without a finished point", "a sweep with at least one")
        found += points
    return found


def list_sweep_tables(folders: Sequence[Path]) -> list[Table]:
    """Return the tables of the sweeps among the folders."""
    return [sweep_table(read_summary(folder)) for folder in folders if is_sweep(folder)]


def build_sweep_sections(folders: Sequence[Path]) -> list[Section]:
    """Return a section for every sweep among the folders."""
    sections = []
    for folder in filter(is_sweep, folders):
        summary = read_summary(folder)
        notes = [render_paragraph(f"{point} failed: {reason}", "caption") for point, reason in summary.failures.items()]
        table = Markup().join((sweep_table(summary).html, *notes))
        sections.append(Section(f"Sweep {summary.name}", SWEEP_LEAD, (), table))
    return sections


def list_arena_tables(result: ArenaResult, name: str) -> list[Table]:
    """Return the table of the first sweep, whose block on a page has its name, and that of the second, if any."""
    show = partial(format_metric, result.metric)
    budgets = f"within {duration(result.budget_s)} and {energy(result.budget_j)}; cost to {show(result.target)}"
    named = ((f"arena {name}", "arena", result.rows), ("arena-disturbed", "disturbed fleet", result.disturbed))
    columns: tuple[Column[ArenaRow], ...] = (
        ("variant", lambda row: text_cell(row.label)),
        ("n", lambda row: value_cell(row.seeds)),
        (result.metric, lambda row: value_cell(None if row.quality.mean is None else row.quality.mean.mean, show)),
        ("difference", lambda row: _difference_cell(row.quality.difference, result.metric)),
        ("reached", lambda row: number_cell(f"{row.seconds.reached} of {row.seeds}", row.seconds.reached)),
        ("time", lambda row: value_cell(None if row.seconds.mean is None else row.seconds.mean.mean, duration, "s")),
        ("ratio", lambda row: _ratio_cell(row.seconds)),
        ("energy", lambda row: value_cell(None if row.joules.mean is None else row.joules.mean.mean, energy, "J")),
        ("ratio of energy", lambda row: _ratio_cell(row.joules)),
    )
    if any(row.cost.reached for row in result.rows):
        columns += (
            ("cost by signal", lambda row: value_cell(None if row.cost.mean is None else row.cost.mean.mean, number)),
            ("ratio of cost", lambda row: _ratio_cell(row.cost)),
        )
    return [
        build_table(key, columns, rows, f"{title}: {result.metric} {budgets}") for key, title, rows in named if rows
    ]


def _difference_cell(found: ConfidenceInterval | None, metric: str) -> Cell:
    if found is None:
        return number_cell(UNKNOWN)

    def show(value: float) -> str:
        return f"{100 * value:.1f}" if metric_scale(metric).unit == "%" else number(value)

    half = "" if found.half_width is None else f" ± {show(found.half_width)}"
    return Cell(
        f"{'-' if found.mean < 0 else '+'}{show(abs(found.mean))}{half}",
        numeric=True,
        best=found.verdict == "higher",
        value=found.mean,
        half_interval=found.half_width,
    )


def _ratio_cell(figure: ArenaFigure) -> Cell:
    """Show the geometric mean of the seeds' ratios to the first variant with its interval.

    The mean beside it is over the seeds that reached the target; where the first variant did not reach it with all of
    them, there are fewer ratios, whose number is shown.
    """
    found = figure.difference
    if found is None:
        return number_cell(UNKNOWN)
    span = "" if found.half_width is None else f" [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"
    pairs = f" ({found.n} of {figure.reached} seeds)" if found.n < figure.reached else ""
    return Cell(
        f"{math.exp(found.mean):.2f}{span}{pairs}",
        numeric=True,
        best=found.verdict == "lower",
        value=math.exp(found.mean),
    )
