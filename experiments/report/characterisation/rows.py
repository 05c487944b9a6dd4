"""The table of all points, which can be sorted, and what was skipped or failed with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from experiments.report.cells import Cell, Table, badge, figure, measured, text
from experiments.report.characterisation.links import anchor
from experiments.report.characterisation.names import KINDS, TITLES, knobs_of, value_word, whole_word
from experiments.report.characterisation.told import Told
from experiments.report.chart import Section
from experiments.report.quantities import UNKNOWN, number, percent
from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.point import KNOBS, Point

MOST_REASONS = 60
"""Skipped or failed points that are named one by one; of more, how many had each reason. Chosen by us."""
NOTES = 40
"""Characters of notes that are shown unfolded."""


def section(told: Told) -> Section:
    """Every finished point, one row each."""
    if not told.stats:
        return Section("All points", "No point is finished.", ())
    course = told.result.plan.course
    lead = (
        f"Means per epoch of {course.epochs} epochs"
        + (f", without the first {course.discard}" if course.discard else "")
        + "; ± is half of the 95 % interval. Outliers and warm-up are counted in minibatches. Click a head to sort."
    )
    everywhere = "".join(f'<p class="caption">At every point: {escape(one)}.</p>' for one in _everywhere(told.stats))
    return Section("All points", lead, (), f'<div class="sortable">{points_table(told).html}</div>{everywhere}')


def _everywhere(stats: Sequence[PointStats]) -> tuple[str, ...]:
    """Notes that all points have, of which there are several; they are not repeated in every row."""
    if len(stats) < 2:
        return ()
    return tuple(note for note in dict.fromkeys(stats[0].notes) if all(note in one.notes for one in stats))


def points_table(told: Told) -> Table:
    """Knobs that are the same for all are left out of it; the plan has them."""
    shown = _shown(told.stats)
    repeats = len({one.point.repeat for one in told.stats}) > 1
    heads = (
        "point", "board", *(TITLES[name] for name in shown), *(("repeat",) if repeats else ()), "E2E (s)", "± (s)",
        "stall (s)", "stall", "compute (s)", *(("energy (J)", "power (W)") if told.metered else ()), "settled",
        "warm-up", "outliers", "label", "notes",
    )  # fmt: skip
    common = _everywhere(told.stats)
    rows = tuple(
        _row(_without(one, common), shown, repeats=repeats, metered=told.metered)
        for one in sorted(told.stats, key=_place)
    )
    return Table("points", heads, rows)


def _place(one: PointStats) -> tuple[Any, ...]:
    """By the knobs, in their order; the plan's own order is random."""
    known = [(value is not None, value) for value in knobs_of(one.point).values()]
    return tuple(known), one.point.repeat


def _without(one: PointStats, notes: Sequence[str]) -> PointStats:
    return replace(one, notes=tuple(note for note in one.notes if note not in notes))


def _shown(stats: Sequence[PointStats]) -> tuple[str, ...]:
    varied = [name for name in KNOBS if len({getattr(one.point, name) for one in stats}) > 1]
    return tuple(name for name in KNOBS if name in varied or name == "workload")


def _row(one: PointStats, shown: Sequence[str], *, repeats: bool, metered: bool) -> tuple[Cell, ...]:
    point = one.point
    stalled = one.stall_s.value / one.e2e_s.value if one.e2e_s.value > 0 else None
    watts = (_mean(one.energy_j, "J"), _mean(one.power_w, "W")) if metered else ()
    return (
        Cell(f'<code id="{anchor(point.key)}">{point.key}</code>'),
        text(point.board),
        *(_knob(name, point) for name in shown),
        *((measured(str(point.repeat + 1), point.repeat + 1),) if repeats else ()),
        _mean(one.e2e_s, "s"),
        _half(one.e2e_s),
        _mean(one.stall_s, "s"),
        measured(percent(stalled), None if stalled is None else 100 * stalled, "%"),
        _mean(one.compute_s, "s"),
        *watts,
        Cell("yes") if one.settled else _folded("no", one.unsettled),
        measured(str(one.warm_up), one.warm_up),
        measured(str(one.outliers), one.outliers),
        _label(one),
        _notes(one),
    )


def _knob(name: str, point: Point) -> Cell:
    value = getattr(point, name)
    if isinstance(value, int) and not isinstance(value, bool):
        return measured(str(value), value)
    return text(KINDS[value] if name == "kind" else value_word(name, value))


def _mean(amount: Estimate | None, unit: str) -> Cell:
    return figure(UNKNOWN) if amount is None else measured(number(amount.value), amount.value, unit)


def _half(amount: Estimate) -> Cell:
    half = (amount.high - amount.low) / 2 if amount.bounded else None
    return measured(number(half, 2), half, "s")


def _label(one: PointStats) -> Cell:
    labels = tuple(dict.fromkeys(word for word in (one.label, one.power_label) if word))
    return Cell(" ".join(badge(word) for word in labels), words="; ".join(labels))


def _notes(one: PointStats) -> Cell:
    said = "; ".join((*(["throttled"] if one.throttled else []), *one.notes))
    if len(said) <= NOTES:
        return text(said)
    return _folded(f"{len(one.notes)} note{'s' * (len(one.notes) != 1)}", said)


def _folded(word: str, said: str) -> Cell:
    if not said:
        return text(word)
    return Cell(f"<details><summary>{escape(word)}</summary>{escape(said)}</details>", words=f"{word}: {said}")


def left_out(told: Told) -> Section | None:
    """What was skipped or failed; None where nothing was."""
    result = told.result
    parts = [_reasons(word, some) for word, some in (("failed", result.failed), ("skipped", result.skipped)) if some]
    if not parts:
        return None
    return Section("Skipped and failed", "Points of the plan without figures, and why.", (), "".join(parts))


def _reasons(word: str, some: Sequence[tuple[Point, str]]) -> str:
    if len(some) > MOST_REASONS:
        counts = Counter(why for _, why in some).most_common(MOST_REASONS)
        rows: tuple[tuple[Cell, ...], ...] = tuple((measured(str(count), count), text(why)) for why, count in counts)
        return f"<h3>{len(some):,} {word}</h3>{Table(word, ('points', 'why'), rows).html}"
    rows = tuple((Cell(f"<code>{one.key}</code>"), text(whole_word(one)), text(why)) for one, why in some)
    return f"<h3>{len(some)} {word}</h3>{Table(word, ('point', 'setting', 'why'), rows).html}"


def names_by_key(told: Told, short: Mapping[str, str]) -> dict[str, str]:
    """Of every finished point: its setting's short name, with its repeat where there are several."""
    names = {}
    for setting in told.settings:
        for one in setting.repeats:
            repeat = f", repeat {one.point.repeat + 1}" if len(setting.repeats) > 1 else ""
            names[one.key] = f"{short[setting.key]}{repeat}"
    return names
