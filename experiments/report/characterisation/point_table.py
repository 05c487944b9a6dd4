"""The table of points with its anchors for links, the list of omitted points, and the points' short names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from experiments.report.characterisation.characterisation_summary import CharacterisationSummary, collect_knobs
from experiments.report.page import Section, render_badge, render_paragraph
from experiments.report.quantities import number, ratio
from experiments.report.tables import Cell, Table, number_cell, percent_cell, text_cell, value_cell
from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.sweep_plan import KNOB_TITLES, KNOBS, SweepPoint, describe_point, format_knob_value

MAX_REASONS = 60
"""Skipped or failed points up to which each one is listed; above it, points are counted by reason. A default that
limits the page's length."""
MAX_NOTE_CHARS = 40
"""Length of notes above which they are folded."""


def name_points(summary: CharacterisationSummary, short: Mapping[str, str]) -> dict[str, str]:
    """Name every finished point by its setting's short name, with the repeat if there are several."""
    return {
        one.key: short[setting.key] + (f", repeat {one.point.repeat + 1}" if len(setting.repeats) > 1 else "")
        for setting in summary.settings
        for one in setting.repeats
    }


def build_points_section(summary: CharacterisationSummary) -> Section:
    """Build the section with one row per finished point."""
    if not summary.stats:
        return Section("All points", "No point is finished.")
    course = summary.result.plan.course
    lead = (
        f"Means per epoch of {course.epochs} epochs"
        + (f", without the first {course.discard}" if course.discard else "")
        + "; ± is half of the 95 % interval. Outliers and warm-up are numbers of steps. Click a header to sort."
    )
    common = [render_paragraph(f"At all points: {one}.", "caption") for one in _find_common_notes(summary.stats)]
    table = Markup('<div class="sortable">{}</div>').format(build_points_table(summary).html)
    return Section("All points", lead, html=table + Markup().join(common))


def _find_common_notes(stats: Sequence[PointStats]) -> tuple[str, ...]:
    """Return the notes that all of several points share, which the rows then omit."""
    if len(stats) < 2:
        return ()
    return tuple(note for note in dict.fromkeys(stats[0].notes) if all(note in one.notes for one in stats))


def build_points_table(summary: CharacterisationSummary) -> Table:
    """Build the table of points, without knobs that have the same value everywhere."""
    stats, metered = summary.stats, summary.has_power
    varied = [name for name in KNOBS if name == "workload" or len({getattr(one.point, name) for one in stats}) > 1]
    repeats = len({one.point.repeat for one in stats}) > 1
    heads = (
        *("point", "board", *(KNOB_TITLES[name] for name in varied)),
        *(("repeat",) if repeats else ()),
        *("E2E (s)", "± (s)", "stall (s)", "stall", "compute (s)"),
        *(("energy (J)", "power (W)") if metered else ()),
        *("settled", "warm-up", "outliers", "label", "notes"),
    )
    common = set(_find_common_notes(stats))
    rows = tuple(
        (
            *_make_knob_cells(one.point, varied, repeats=repeats),
            *_make_figure_cells(one, metered=metered),
            *_make_quality_cells(replace(one, notes=tuple(note for note in one.notes if note not in common))),
        )
        for one in sorted(stats, key=_point_sort_key)
    )
    return Table("points", heads, rows)


def _point_sort_key(one: PointStats) -> tuple[Any, ...]:
    """Sort by the knobs in their order, since the plan's order is random."""
    known = [(value is not None, value) for value in collect_knobs(one.point).values()]
    return tuple(known), one.point.repeat


def _make_knob_cells(point: SweepPoint, varied: Sequence[str], *, repeats: bool) -> tuple[Cell, ...]:
    key = Cell(Markup('<code id="point-{}">{}</code>').format(point.key, point.key))
    values = {name: getattr(point, name) for name in varied} | ({"repeat": point.repeat + 1} if repeats else {})
    cells = (
        value_cell(value)
        if isinstance(value, int) and not isinstance(value, bool)
        else text_cell(format_knob_value(name, value))
        for name, value in values.items()
    )
    return (key, text_cell(point.board), *cells)


def _make_figure_cells(one: PointStats, *, metered: bool) -> tuple[Cell, ...]:
    share = ratio(one.stall_s.value, one.e2e_s.value)
    half_s = (one.e2e_s.high - one.e2e_s.low) / 2 if one.e2e_s.is_bounded else None
    power = (_make_mean_cell(one.energy_j, "J"), _make_mean_cell(one.power_w, "W")) if metered else ()
    return (
        _make_mean_cell(one.e2e_s, "s"),
        number_cell(number(half_s, 2), half_s, "s"),
        _make_mean_cell(one.stall_s, "s"),
        percent_cell(share),
        _make_mean_cell(one.compute_s, "s"),
        *power,
    )


def _make_mean_cell(amount: Estimate | None, unit: str) -> Cell:
    return value_cell(None if amount is None else amount.value, number, unit)


def _make_quality_cells(one: PointStats) -> tuple[Cell, ...]:
    labels = tuple(dict.fromkeys(label for label in (one.label, one.power_label) if label))
    notes = "; ".join((*(["throttled"] if one.throttled else []), *one.notes))
    count = f"{len(one.notes)} note{'s' * (len(one.notes) != 1)}"
    return (
        text_cell("yes") if one.settled else _make_folded_cell("no", one.unsettled_reason),
        value_cell(one.warm_up),
        value_cell(one.outliers),
        Cell(Markup(" ").join(map(render_badge, labels)), words="; ".join(labels)),
        text_cell(notes) if len(notes) <= MAX_NOTE_CHARS else _make_folded_cell(count, notes),
    )


def _make_folded_cell(word: str, details: str) -> Cell:
    if not details:
        return text_cell(word)
    html = Markup("<details><summary>{}</summary>{}</details>").format(word, details)
    return Cell(html, words=f"{word}: {details}")


def build_omitted_section(summary: CharacterisationSummary) -> Section | None:
    """Build the section of skipped and failed points, or None if there are none."""
    omitted = (("failed", summary.result.failed), ("skipped", summary.result.skipped))
    parts = [
        Markup("<h3>{:,} {}</h3>{}").format(len(points), word, build_reasons_table(word, points).html)
        for word, points in omitted
        if points
    ]
    return (
        Section("Skipped and failed", "Points without results, by reason.", html=Markup().join(parts))
        if parts
        else None
    )


def build_reasons_table(word: str, points: Sequence[tuple[SweepPoint, str]]) -> Table:
    """Build a table of points without results and the reasons; of many points, it has one row per reason."""
    if len(points) > MAX_REASONS:
        counts = Counter(reason for _, reason in points).most_common(MAX_REASONS)
        return Table(word, ("points", "why"), tuple((value_cell(n), text_cell(reason)) for reason, n in counts))
    rows = tuple(
        (Cell(Markup("<code>{}</code>").format(one.key)), text_cell(describe_point(one)), text_cell(reason))
        for one, reason in points
    )
    return Table(word, ("point", "setting", "why"), rows)
