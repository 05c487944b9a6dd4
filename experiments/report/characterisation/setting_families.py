"""Families: settings that differ in one knob alone, drawn as one line or one group of bars.

A sweep over several knobs has many families; those nearest to the reference
(``characterisation_summary``) are drawn. Sentences say how a quantity changes along a knob.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.characterisation.characterisation_summary import (
    FigureBasis,
    SettingSummary,
    collect_knobs,
    find_preset_name,
)
from experiments.report.quantities import percent
from fedge.characterisation.sweep_plan import (
    CLOCK_KNOBS,
    KNOB_TITLES,
    MODE_KNOBS,
    SweepPoint,
    describe_knob,
    format_knob_value,
)
from fedge.confidence_interval import Estimate
from fedge.groups import group_by

KNOB_AXES = (
    *("workers", "prefetch", "pinned", "batch_size", "storage", "cache", "mode", *MODE_KNOBS),
    *("dvfs", "runtime", "kind", "workload"),
)
"""Possible axes in the order of the page."""
NUMERIC_KNOBS = frozenset({"workers", "prefetch", "batch_size", *MODE_KNOBS})
COMPARED_KNOBS = ("workload", "board", "kind")
"""Knobs whose differences do not count towards a family's distance, since they are what is compared."""
FIRST_VALUES = ("dropped", "train", "bare", False)
"""Values that others are compared with, drawn first."""
OPTIONAL_KNOBS = ("pinned", "storage", "runtime", "dvfs")
"""Knobs mentioned only if a sweep has them at another value than the usual one."""
SAME_NAME = "all else the same"
"""Name of a family at the reference, since names list differences from it."""
MAX_NAMED_KNOBS = 2
"""Up to this number of varied knobs, each family's name lists all of them; above it, only those off the reference."""
MAX_EPOCH_RATIO = 8.0
"""Ratio of the longest epochs of two families from which they get separate charts; a default at which the shorter
one is still readable."""
MAX_MODE_BARS = 16
"""Maximum number of modes drawn as bars; more are shown along their clocks and in the plane."""


@dataclass(frozen=True, slots=True)
class SettingFamily:
    """Settings in order along an axis; ``name`` says how the family differs from others."""

    axis: str
    name: str
    settings: tuple[SettingSummary, ...]

    @property
    def values(self) -> tuple[Any, ...]:
        """The values on the axis."""
        return tuple(get_axis_value(one, self.axis) for one in self.settings)


def get_axis_value(setting: SettingSummary, axis: str) -> Any:
    """Return the setting's value on the axis."""
    return setting.point.mode if axis == "mode" else collect_knobs(setting.point)[axis]


def format_axis_value(setting: SettingSummary, axis: str) -> str:
    """Format the setting's value on the axis; a power mode by the name of its preset, if it has one."""
    value = get_axis_value(setting, axis)
    return (axis == "mode" and find_preset_name(setting.point.board, value)) or format_knob_value(axis, value)


def find_axes(settings: Sequence[SettingSummary]) -> list[str]:
    """Return the axes along which the settings vary."""
    axes = []
    for axis in KNOB_AXES:
        groups = _group_along(settings, axis)
        if axis == "mode":
            # Modes that differ in one clock alone are drawn along that clock instead.
            groups = [group for group in groups if len(_varied_knobs(group, MODE_KNOBS)) > 1]
            modes = {one.point.mode for one in settings}
            groups = groups if len(modes) <= MAX_MODE_BARS else []
        if groups:
            axes.append(axis)
    return axes


def _varied_knobs(settings: Sequence[SettingSummary], names: Sequence[str]) -> list[str]:
    every = [collect_knobs(one.point) for one in settings]
    return [name for name in names if len({knobs[name] for knobs in every}) > 1]


def build_families(settings: Sequence[SettingSummary], axis: str) -> tuple[SettingFamily, ...]:
    """Build all families along an axis of ``KNOB_AXES`` with two or more values, the nearest to the reference first.

    Of equally near ones, those with more values are first, then those of the plan's own workload.
    """
    compared = [name for name in _varied_knobs(settings, COMPARED_KNOBS) if name != axis]
    silent, groups, away = {*_axis_knobs(axis), *COMPARED_KNOBS}, _group_along(settings, axis), []
    for first, *_ in groups:
        knobs = collect_knobs(first.point).items()
        away.append([name for name, value in knobs if name not in silent and value != first.reference[name]])
    named = list(dict.fromkeys(name for names in away for name in names))
    families = []
    for group, names in zip(groups, away, strict=True):
        shown = named if len(named) <= MAX_NAMED_KNOBS else names
        name = _describe_by(group[0], [*compared, *shown]) or SAME_NAME
        ordered = _order_settings(group, axis)
        usual = ordered[0].point.workload == ordered[0].reference["workload"]
        rank = (len(names), -len(group), not usual, name)
        families.append((rank, SettingFamily(axis, name, ordered)))
    return tuple(family for _, family in sorted(families, key=lambda one: one[0]))


def _describe_by(setting: SettingSummary, names: Sequence[str]) -> str:
    """Describe a setting by some of its knobs; a power mode by its preset, its one part, or as a whole."""
    knobs = collect_knobs(setting.point)
    words = [format_knob_value(name, knobs[name]) for name in names if name in COMPARED_KNOBS]
    parts = [name for name in names if name in MODE_KNOBS]
    if parts:
        whole = len(parts) > 1 or setting.point.mode is None
        mode = format_axis_value(setting, "mode") if whole else describe_knob(parts[0], knobs[parts[0]])
        words.append(find_preset_name(setting.point.board, setting.point.mode) or mode)
    words += [describe_knob(name, knobs[name]) for name in names if name not in (*COMPARED_KNOBS, *MODE_KNOBS)]
    return ", ".join(words)


def split_by_scale(families: Sequence[SettingFamily]) -> tuple[tuple[SettingFamily, ...], ...]:
    """Split the families of one axis by workload if epochs differ so much that one axis would hide some of them."""
    apart = group_by(families, lambda family: family.settings[0].point.workload)
    longest = [max(one.stats.e2e_s.value for one in family.settings) for family in families]
    if families[0].axis == "workload" or max(longest) <= MAX_EPOCH_RATIO * min(longest):
        return (tuple(families),)
    return tuple(map(tuple, apart.values()))


def _axis_knobs(axis: str) -> tuple[str, ...]:
    return MODE_KNOBS if axis == "mode" else (axis,)


def _group_along(settings: Sequence[SettingSummary], axis: str) -> list[list[SettingSummary]]:
    """Group the settings that differ along the axis alone, where there are several."""
    own = _axis_knobs(axis)
    groups = group_by(settings, lambda one: tuple(v for name, v in collect_knobs(one.point).items() if name not in own))
    return [group for group in groups.values() if len(group) > 1]


def _order_settings(group: Sequence[SettingSummary], axis: str) -> tuple[SettingSummary, ...]:
    """Order numbers ascending, power modes from slow to fast, names with the reference first, then alphabetically."""

    def rank(one: SettingSummary) -> tuple[Any, ...]:
        value = get_axis_value(one, axis)
        if axis == "mode":
            return (-(one.get_mean("e2e_s") or 0.0),)
        return (float(value),) if axis in NUMERIC_KNOBS else (value not in FIRST_VALUES, str(value))

    return tuple(sorted(group, key=rank))


def describe_fixed_knobs(family: SettingFamily, settings: Sequence[SettingSummary]) -> str:
    """Describe the values of the knobs that are not compared, in one line.

    Optional knobs that have their usual value in all ``settings`` are left out.
    """
    usual = collect_knobs(SweepPoint("", ""))
    every = [collect_knobs(one.point) for one in settings]
    silent = {*_axis_knobs(family.axis), *COMPARED_KNOBS}
    silent |= {name for name in OPTIONAL_KNOBS if all(knobs[name] == usual[name] for knobs in every)}
    knobs = collect_knobs(family.settings[0].point)
    if family.axis != "workers" and not knobs["workers"]:
        silent.add("prefetch")
    shown = {name: value for name, value in knobs.items() if value is not None and name not in silent}
    return ", ".join(describe_knob(name, value) for name, value in shown.items())


def make_short_names(settings: Sequence[SettingSummary]) -> dict[str, str]:
    """Return a name by each setting's key: the knobs that vary among the settings, else workload and board."""
    varied = _varied_knobs(settings, tuple(collect_knobs(SweepPoint("", ""))))
    return {one.key: _describe_by(one, varied) or f"{one.point.workload}, {one.point.board}" for one in settings}


MIN_CHANGE = 0.02
"""Relative change below which a change counts as none, as for findings."""
NEAR_ZERO = 0.005
"""Ratio below which nothing is left."""
OVERLAP_TEXT = " (intervals overlap)"
"""Added if the 95 % intervals overlap."""
MAX_DESCRIBED_FAMILIES = 6
"""Number of families that a sentence may describe: those that are drawn."""
MULTIPLE_FROM = 2.0
"""Ratio from which a rise is written as a multiple."""
KNOB_UNITS = {**dict.fromkeys(CLOCK_KNOBS, "MHz"), "batch_size": "samples", "prefetch": "batches ahead"}


def describe_change(title: str, families: Sequence[SettingFamily], field: str, basis: FigureBasis) -> str:
    """Describe how a quantity, a field of ``PointStats``, changes along the families' axis, as a sentence.

    All families are described if their axis is numeric, else the one with the largest range.
    """
    knob = families[0].axis
    if knob in NUMERIC_KNOBS:
        change = _describe_numbers(families, field, basis)
    else:
        family = max(families, key=lambda one: _value_range([basis.get_mean(each, field) for each in one.settings]))
        change = _describe_categories(family, field, basis)
        change += _family_suffix(family, families) if change else ""
    return f"{title} {change or f'by {KNOB_TITLES[knob]}'}"


def _value_range(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return max(known) - min(known) if known else 0.0


def _family_suffix(family: SettingFamily, families: Sequence[SettingFamily]) -> str:
    return f" ({family.name})" if len(families) > 1 and family.name != SAME_NAME else ""


def _describe_numbers(families: Sequence[SettingFamily], field: str, basis: FigureBasis) -> str:
    """Describe the change from the lowest to the highest value on the axis."""
    both = [tuple(basis.get_estimate(family.settings[end], field) for end in (0, -1)) for family in families]
    ends = [(first, last) for first, last in both if first is not None and last is not None and first.value > 0]
    if not ends:
        return ""
    ratios = [last.value / first.value for first, last in ends]
    knob, values = families[0].axis, [value for family in families for value in family.values]
    span = " to ".join(format_knob_value(knob, end) for end in (min(values), max(values)))
    over = f"from {span} {KNOB_UNITS.get(knob, KNOB_TITLES[knob])}"
    if all(abs(ratio - 1) < MIN_CHANGE for ratio in ratios):
        return f"changes by less than 2 % {over}"
    doubt = "" if any(are_disjoint(*pair) for pair in ends) else OVERLAP_TEXT
    return f"{_describe_ratios(min(ratios), max(ratios))} {over}{doubt}"


def are_disjoint(one: Estimate, other: Estimate) -> bool:
    """Return whether two intervals do not overlap; True if either is unbounded."""
    if not (one.is_bounded and other.is_bounded):
        return True
    return one.high < other.low or other.high < one.low


def _describe_ratios(low: float, high: float) -> str:
    if high < NEAR_ZERO:
        return "falls to nothing"
    if high < 1:
        return f"falls by {_format_range(percent(1 - high, 0), percent(1 - low, 0))}"
    if low >= MULTIPLE_FROM:
        return f"grows {_format_range(f'{low:.1f}', f'{high:.1f}')} times"
    if low > 1:
        return f"rises by {_format_range(percent(low - 1, 0), percent(high - 1, 0))}"
    return "changes by " + " to ".join(f"{'+' if end >= 1 else ''}{percent(end - 1, 0)}" for end in (low, high))


def _format_range(low: str, high: str) -> str:
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def _describe_categories(family: SettingFamily, field: str, basis: FigureBasis) -> str:
    known = [(value, one) for one in family.settings if (value := basis.get_estimate(one, field)) is not None]
    if len(known) < 2:
        return ""
    (least, first), *_, (most, last) = sorted(known, key=lambda pair: pair[0].value)
    lowest, highest = (_format_position(one, family.axis) for one in (first, last))
    if least.value <= 0:
        return f"is nothing with {lowest}, most with {highest}" if most.value > 0 else ""
    ratio = most.value / least.value
    if ratio < 1 + MIN_CHANGE:
        return f"is within {percent(MIN_CHANGE, 0)} whatever the {KNOB_TITLES[family.axis]}"
    more = f"{ratio:.1f} times as much" if ratio >= MULTIPLE_FROM else f"{percent(ratio - 1, 0)} more"
    doubt = "" if are_disjoint(least, most) else OVERLAP_TEXT
    return f"is least with {lowest}, {more} with {highest}{doubt}"


def _format_position(setting: SettingSummary, knob: str) -> str:
    """Format a value after "with": "sd"; switches and the cache with their names, such as "DVFS on"."""
    word = format_axis_value(setting, knob)
    return f"{KNOB_TITLES[knob]} {word}" if knob in {"pinned", "dvfs", "cache"} else word


def describe_stall(families: Sequence[SettingFamily]) -> str:
    """Describe the stall's share of an epoch at both ends of a numeric axis, else at its maximum and minimum.

    The families are of one axis, nearest to the reference first; the one with the largest range is described.
    """
    family = max(
        families[:MAX_DESCRIBED_FAMILIES], key=lambda one: _value_range([each.stall_share for each in one.settings])
    )
    known = [(share, one) for one in family.settings if math.isfinite(share := one.stall_share)]
    if not known:
        return f"Stall is unknown{_family_suffix(family, families)}"
    numeric = family.axis in NUMERIC_KNOBS
    ends = (max(known, key=lambda pair: pair[0]), min(known, key=lambda pair: pair[0]))
    (share, one), (other_share, other) = (known[0], known[-1]) if numeric else ends
    text = f"Stall is {percent(share, 0)} of an epoch"
    if not numeric and share - other_share < MIN_CHANGE:
        text += f" whatever the {KNOB_TITLES[family.axis]}"
    else:
        at = "at" if numeric else "with"
        text += f" {at} {_format_position(one, family.axis)}"
        text += f", {percent(other_share, 0)} {at} {_format_position(other, family.axis)}"
    return f"{text}{_family_suffix(family, families)}"
