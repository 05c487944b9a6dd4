"""The table of points, the list of omitted points, and links that lead to a point's row and mark it in the charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from experiments.report.characterisation.characterisation_summary import CharacterisationSummary
from experiments.report.characterisation.knob_labels import (
    KIND_NAMES,
    KNOB_TITLES,
    collect_knobs,
    format_knob_value,
    format_setting,
)
from experiments.report.chart import Section
from experiments.report.html_elements import ReportTable, TableCell, label_badge, number_cell, text_cell, value_cell
from experiments.report.quantities import UNKNOWN, number, percent
from fedge.characterisation.confidence_interval import Estimate
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.sweep_plan import KNOBS, SweepPoint

MAX_LINKS = 8
"""Maximum number of links of one finding; a default that keeps them on about two lines."""


def point_anchor(key: str) -> str:
    """Return the HTML id of a point's row."""
    return f"point-{key}"


def link_point(key: str, word: str) -> str:
    """Return a link to the point's row; ``word`` is escaped here."""
    return f'<a class="point" href="#{point_anchor(key)}" data-point="{escape(key)}">{escape(word)}</a>'


def link_points(keys: Sequence[str], names: Mapping[str, str]) -> str:
    """Return links to the points by their short names, and how many more there are.

    Args:
        keys: Keys of points; those without a name are left out.
        names: Short names by key.
    """
    known = [key for key in dict.fromkeys(keys) if key in names]
    if not known:
        return ""
    more = f" and {len(known) - MAX_LINKS:,} more" if len(known) > MAX_LINKS else ""
    shown = " · ".join(link_point(key, names[key]) for key in known[:MAX_LINKS])
    return f'<p class="points">{"Point" if len(known) == 1 else "Points"}: {shown}{more}</p>'


MAX_REASONS = 60
"""Skipped or failed points up to which each one is listed; above it, points are counted by reason. A default that
limits the page's length."""
MAX_NOTE_CHARS = 40
"""Length of notes above which they are folded."""


def build_points_section(told: CharacterisationSummary) -> Section:
    """Build the section with one row per finished point."""
    if not told.stats:
        return Section("All points", "No point is finished.", ())
    course = told.result.plan.course
    lead = (
        f"Means per epoch of {course.epochs} epochs"
        + (f", without the first {course.discard}" if course.discard else "")
        + "; ± is half of the 95 % interval. Outliers and warm-up are counted in minibatches. Click a head to sort."
    )
    everywhere = "".join(
        f'<p class="caption">At every point: {escape(one)}.</p>' for one in _find_common_notes(told.stats)
    )
    return Section("All points", lead, (), f'<div class="sortable">{build_points_table(told).html}</div>{everywhere}')


def _find_common_notes(stats: Sequence[PointStats]) -> tuple[str, ...]:
    """Return the notes that all of several points share, which the rows then omit."""
    if len(stats) < 2:
        return ()
    return tuple(note for note in dict.fromkeys(stats[0].notes) if all(note in one.notes for one in stats))


def build_points_table(told: CharacterisationSummary) -> ReportTable:
    """Build the table of points, without knobs that have the same value everywhere."""
    shown = _list_shown_knobs(told.stats)
    repeats = len({one.point.repeat for one in told.stats}) > 1
    heads = (
        "point", "board", *(KNOB_TITLES[name] for name in shown), *(("repeat",) if repeats else ()), "E2E (s)", "± (s)",
        "stall (s)", "stall", "compute (s)", *(("energy (J)", "power (W)") if told.has_power else ()), "settled",
        "warm-up", "outliers", "label", "notes",
    )  # fmt: skip
    common = _find_common_notes(told.stats)
    rows = tuple(
        _build_row(_drop_notes(one, common), shown, repeats=repeats, metered=told.has_power)
        for one in sorted(told.stats, key=_point_sort_key)
    )
    return ReportTable("points", heads, rows)


def _point_sort_key(one: PointStats) -> tuple[Any, ...]:
    """Sort by the knobs in their order, since the plan's order is random."""
    known = [(value is not None, value) for value in collect_knobs(one.point).values()]
    return tuple(known), one.point.repeat


def _drop_notes(one: PointStats, notes: Sequence[str]) -> PointStats:
    return replace(one, notes=tuple(note for note in one.notes if note not in notes))


def _list_shown_knobs(stats: Sequence[PointStats]) -> tuple[str, ...]:
    varied = [name for name in KNOBS if len({getattr(one.point, name) for one in stats}) > 1]
    return tuple(name for name in KNOBS if name in varied or name == "workload")


def _build_row(one: PointStats, shown: Sequence[str], *, repeats: bool, metered: bool) -> tuple[TableCell, ...]:
    point = one.point
    stalled = one.stall_s.value / one.e2e_s.value if one.e2e_s.value > 0 else None
    watts = (_make_mean_cell(one.energy_j, "J"), _make_mean_cell(one.power_w, "W")) if metered else ()
    return (
        TableCell(f'<code id="{point_anchor(point.key)}">{point.key}</code>'),
        text_cell(point.board),
        *(_make_knob_cell(name, point) for name in shown),
        *((value_cell(str(point.repeat + 1), point.repeat + 1),) if repeats else ()),
        _make_mean_cell(one.e2e_s, "s"),
        _make_half_width_cell(one.e2e_s),
        _make_mean_cell(one.stall_s, "s"),
        value_cell(percent(stalled), None if stalled is None else 100 * stalled, "%"),
        _make_mean_cell(one.compute_s, "s"),
        *watts,
        TableCell("yes") if one.settled else _make_folded_cell("no", one.unsettled_reason),
        value_cell(str(one.warm_up), one.warm_up),
        value_cell(str(one.outliers), one.outliers),
        _make_label_cell(one),
        _make_notes_cell(one),
    )


def _make_knob_cell(name: str, point: SweepPoint) -> TableCell:
    value = getattr(point, name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value_cell(str(value), value)
    return text_cell(KIND_NAMES[value] if name == "kind" else format_knob_value(name, value))


def _make_mean_cell(amount: Estimate | None, unit: str) -> TableCell:
    return number_cell(UNKNOWN) if amount is None else value_cell(number(amount.value), amount.value, unit)


def _make_half_width_cell(amount: Estimate) -> TableCell:
    half = (amount.high - amount.low) / 2 if amount.is_bounded else None
    return value_cell(number(half, 2), half, "s")


def _make_label_cell(one: PointStats) -> TableCell:
    labels = tuple(dict.fromkeys(word for word in (one.label, one.power_label) if word))
    return TableCell(" ".join(label_badge(word) for word in labels), words="; ".join(labels))


def _make_notes_cell(one: PointStats) -> TableCell:
    said = "; ".join((*(["throttled"] if one.throttled else []), *one.notes))
    if len(said) <= MAX_NOTE_CHARS:
        return text_cell(said)
    return _make_folded_cell(f"{len(one.notes)} note{'s' * (len(one.notes) != 1)}", said)


def _make_folded_cell(word: str, said: str) -> TableCell:
    if not said:
        return text_cell(word)
    return TableCell(f"<details><summary>{escape(word)}</summary>{escape(said)}</details>", words=f"{word}: {said}")


def build_omitted_section(told: CharacterisationSummary) -> Section | None:
    """Build the section of skipped and failed points, or None if there are none."""
    result = told.result
    parts = [
        _build_reasons_table(word, some)
        for word, some in (("failed", result.failed), ("skipped", result.skipped))
        if some
    ]
    if not parts:
        return None
    return Section("Skipped and failed", "Points of the plan without figures, and why.", (), "".join(parts))


def _build_reasons_table(word: str, some: Sequence[tuple[SweepPoint, str]]) -> str:
    if len(some) > MAX_REASONS:
        counts = Counter(why for _, why in some).most_common(MAX_REASONS)
        rows: tuple[tuple[TableCell, ...], ...] = tuple(
            (value_cell(str(count), count), text_cell(why)) for why, count in counts
        )
        return f"<h3>{len(some):,} {word}</h3>{ReportTable(word, ('points', 'why'), rows).html}"
    rows = tuple(
        (TableCell(f"<code>{one.key}</code>"), text_cell(format_setting(one)), text_cell(why)) for one, why in some
    )
    return f"<h3>{len(some)} {word}</h3>{ReportTable(word, ('point', 'setting', 'why'), rows).html}"


def name_points(told: CharacterisationSummary, short: Mapping[str, str]) -> dict[str, str]:
    """Name every finished point by its setting's short name, with the repeat if there are several.

    Args:
        told: The sweep's results.
        short: Short names of settings by key.
    """
    names = {}
    for setting in told.settings:
        for one in setting.repeats:
            repeat = f", repeat {one.point.repeat + 1}" if len(setting.repeats) > 1 else ""
            names[one.key] = f"{short[setting.key]}{repeat}"
    return names
