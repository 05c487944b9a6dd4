"""Families: settings that differ in one knob alone, drawn as one line or one group of bars.

A sweep over several knobs has many families; those nearest to the reference (``setting_summary``) are drawn.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.characterisation.knob_labels import (
    MODE_PARTS,
    collect_knobs,
    format_knob_phrase,
    format_knob_value,
    format_mode,
    is_same_mode,
    preset_names,
)
from experiments.report.characterisation.setting_summary import SettingSummary
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.types import PowerMode

KNOB_AXES = (
    "workers",
    "prefetch",
    "pinned",
    "batch_size",
    "storage",
    "cache",
    "mode",
    *MODE_PARTS,
    "dvfs",
    "runtime",
    "kind",
    "workload",
)
"""Possible axes in the order of the page."""
NUMERIC_KNOBS = frozenset({"workers", "prefetch", "batch_size", *MODE_PARTS})
COMPARED_KNOBS = frozenset({"board", "workload", "kind"})
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
    distance: int
    """Number of knobs that differ from the reference."""

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
    if not isinstance(value, PowerMode):
        return format_knob_value(axis, value)
    named = preset_names(setting.point.board).items()
    return next((name for one, name in named if is_same_mode(one, value)), format_mode(value))


def find_axes(settings: Sequence[SettingSummary]) -> tuple[str, ...]:
    """Return the axes along which the settings vary."""
    return tuple(axis for axis in KNOB_AXES if _is_worth_drawing(settings, axis))


def _is_worth_drawing(settings: Sequence[SettingSummary], axis: str) -> bool:
    values = {get_axis_value(one, axis) for one in settings}
    if len(values) < 2 or (axis == "mode" and len(values) > MAX_MODE_BARS):
        return False
    groups = [group for group in _group_along(settings, axis).values() if len(group) > 1]
    # Modes that differ in one clock alone are drawn along that clock instead.
    return any(map(_differs_in_several_parts, groups)) if axis == "mode" else bool(groups)


def _differs_in_several_parts(group: Sequence[SettingSummary]) -> bool:
    knobs = [collect_knobs(one.point) for one in group]
    return sum(len({each[part] for each in knobs}) > 1 for part in MODE_PARTS) > 1


def build_families(settings: Sequence[SettingSummary], axis: str) -> tuple[SettingFamily, ...]:
    """Build all families along an axis of ``KNOB_AXES`` with two or more values, the nearest to the reference first."""
    compared = [
        name for name in ("workload", "board", "kind") if len({getattr(one.point, name) for one in settings}) > 1
    ]
    groups = [group for group in _group_along(settings, axis).values() if len(group) > 1]
    away = [_list_knobs_off_reference(group[0], axis) for group in groups]
    named = list(dict.fromkeys(name for names in away for name in names))
    families = []
    for group, names in zip(groups, away, strict=True):
        knobs = named if len(named) <= MAX_NAMED_KNOBS else names
        words = _describe_family(group[0], [name for name in compared if name != axis], knobs)
        families.append(SettingFamily(axis, ", ".join(words) or SAME_NAME, _order_settings(group, axis), len(names)))
    return tuple(sorted(families, key=_family_rank))


def _list_knobs_off_reference(setting: SettingSummary, axis: str) -> tuple[str, ...]:
    knobs = {name: value for name, value in collect_knobs(setting.point).items() if name not in _axis_knobs(axis)}
    return tuple(
        name for name, value in knobs.items() if name not in COMPARED_KNOBS and value != setting.reference[name]
    )


def _describe_family(setting: SettingSummary, compared: Sequence[str], knobs: Sequence[str]) -> list[str]:
    """Describe a family by the compared knobs and the given ones; a power mode by its preset, if it has one."""
    at = collect_knobs(setting.point)
    preset = format_axis_value(setting, "mode")
    mode = [name for name in knobs if name in MODE_PARTS]
    modes = [preset] if mode and "/" not in preset else [format_knob_phrase(name, at[name]) for name in mode]
    others = [format_knob_phrase(name, at[name]) for name in knobs if name not in MODE_PARTS]
    return [*(format_knob_value(name, at[name]) for name in compared), *modes, *others]


def _family_rank(family: SettingFamily) -> tuple[int, int, bool, str]:
    """Rank by distance, then by number of values, then the plan's own workload first."""
    first = family.settings[0]
    usual = first.point.workload == first.reference["workload"]
    return family.distance, -len(family.settings), not usual, family.name


def split_by_scale(families: Sequence[SettingFamily]) -> tuple[tuple[SettingFamily, ...], ...]:
    """Split the families of one axis by workload if epochs differ so much that one axis would hide some of them."""
    if len({family.settings[0].point.workload for family in families}) < 2 or families[0].axis == "workload":
        return (tuple(families),)
    longest = [max(one.stats.e2e_s.value for one in family.settings) for family in families]
    if max(longest) <= MAX_EPOCH_RATIO * min(longest):
        return (tuple(families),)
    apart: dict[str, list[SettingFamily]] = {}
    for family in families:
        apart.setdefault(family.settings[0].point.workload, []).append(family)
    return tuple(map(tuple, apart.values()))


def _axis_knobs(axis: str) -> tuple[str, ...]:
    return MODE_PARTS if axis == "mode" else (axis,)


def _group_along(settings: Sequence[SettingSummary], axis: str) -> dict[Hashable, list[SettingSummary]]:
    groups: dict[Hashable, list[SettingSummary]] = {}
    for one in settings:
        same = tuple((name, value) for name, value in collect_knobs(one.point).items() if name not in _axis_knobs(axis))
        groups.setdefault(same, []).append(one)
    return groups


def _order_settings(group: Sequence[SettingSummary], axis: str) -> tuple[SettingSummary, ...]:
    """Order numbers ascending, power modes from slow to fast, names with the reference first, then alphabetically."""
    if axis in NUMERIC_KNOBS:
        return tuple(sorted(group, key=lambda one: float(get_axis_value(one, axis))))
    if axis == "mode":
        return tuple(sorted(group, key=lambda one: -(one.get_mean("e2e_s") or 0.0)))
    return tuple(
        sorted(group, key=lambda one: (get_axis_value(one, axis) not in FIRST_VALUES, str(get_axis_value(one, axis))))
    )


def describe_fixed_knobs(family: SettingFamily, settings: Sequence[SettingSummary]) -> str:
    """Describe the values of the knobs that are not compared, in one line.

    Optional knobs that have their usual value in all ``settings`` are left out.
    """
    first = family.settings[0]
    skipped = {family.axis, *COMPARED_KNOBS, *(MODE_PARTS if family.axis == "mode" else ())}
    usual = collect_knobs(SweepPoint("", ""))
    every = [collect_knobs(one.point) for one in settings]
    silent = {name for name in OPTIONAL_KNOBS if all(knobs[name] == usual[name] for knobs in every)}
    if family.axis != "workers" and not first.point.workers:
        silent.add("prefetch")
    known = {name: value for name, value in collect_knobs(first.point).items() if value is not None}
    return ", ".join(format_knob_phrase(name, value) for name, value in known.items() if name not in skipped | silent)


def make_short_names(settings: Sequence[SettingSummary]) -> dict[str, str]:
    """Return a name by each setting's key: the knobs that vary among the settings, else workload and board."""
    every = [collect_knobs(one.point) for one in settings]
    varied = [name for name in (every[0] if every else {}) if len({knobs[name] for knobs in every}) > 1]
    modes = [name for name in varied if name in MODE_PARTS]
    shown = [name for name in varied if name not in modes]
    return {
        one.key: _make_short_name(one, knobs, shown, bool(modes)) for one, knobs in zip(settings, every, strict=True)
    }


def _make_short_name(setting: SettingSummary, knobs: Mapping[str, Any], shown: Sequence[str], with_mode: bool) -> str:
    mode = [format_axis_value(setting, "mode")] if with_mode else []
    first = [format_knob_value(name, knobs[name]) for name in shown if name in COMPARED_KNOBS]
    rest = [format_knob_phrase(name, knobs[name]) for name in shown if name not in COMPARED_KNOBS]
    return ", ".join([*first, *mode, *rest]) or f"{setting.point.workload}, {setting.point.board}"
