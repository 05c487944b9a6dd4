"""Families: settings that differ in one knob alone, drawn as one line or one group of bars.

A sweep over several knobs has many families; those nearest to the reference (``setting_summary``) are drawn.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.characterisation.setting_summary import SettingSummary, collect_knobs, find_preset_name
from fedge.characterisation.point_knobs import MODE_KNOBS, describe_knob, format_knob_value
from fedge.characterisation.sweep_plan import SweepPoint

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
    return (axis == "mode" and find_preset_name(setting.point.board, value)) or format_knob_value(axis, value)


def find_axes(settings: Sequence[SettingSummary]) -> tuple[str, ...]:
    """Return the axes along which the settings vary."""
    return tuple(axis for axis in KNOB_AXES if _is_worth_drawing(settings, axis))


def _is_worth_drawing(settings: Sequence[SettingSummary], axis: str) -> bool:
    values = {get_axis_value(one, axis) for one in settings}
    if len(values) < 2 or (axis == "mode" and len(values) > MAX_MODE_BARS):
        return False
    groups = _group_along(settings, axis)
    # Modes that differ in one clock alone are drawn along that clock instead.
    return any(len(_varied_knobs(group, MODE_KNOBS)) > 1 for group in groups) if axis == "mode" else bool(groups)


def _varied_knobs(settings: Sequence[SettingSummary], names: Sequence[str]) -> list[str]:
    every = [collect_knobs(one.point) for one in settings]
    return [name for name in names if len({knobs[name] for knobs in every}) > 1]


def build_families(settings: Sequence[SettingSummary], axis: str) -> tuple[SettingFamily, ...]:
    """Build all families along an axis of ``KNOB_AXES`` with two or more values, the nearest to the reference first."""
    compared = [name for name in _varied_knobs(settings, COMPARED_KNOBS) if name != axis]
    groups = _group_along(settings, axis)
    away = [_list_knobs_off_reference(group[0], axis) for group in groups]
    named = list(dict.fromkeys(name for names in away for name in names))
    families = []
    for group, names in zip(groups, away, strict=True):
        knobs = named if len(named) <= MAX_NAMED_KNOBS else names
        name = _describe_by(group[0], [*compared, *knobs]) or SAME_NAME
        families.append(SettingFamily(axis, name, _order_settings(group, axis), len(names)))
    return tuple(sorted(families, key=_family_rank))


def _list_knobs_off_reference(setting: SettingSummary, axis: str) -> list[str]:
    silent = {*_axis_knobs(axis), *COMPARED_KNOBS}
    knobs = collect_knobs(setting.point)
    return [name for name, value in knobs.items() if name not in silent and value != setting.reference[name]]


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


def _family_rank(family: SettingFamily) -> tuple[int, int, bool, str]:
    """Rank by distance, then by number of values, then the plan's own workload first."""
    first = family.settings[0]
    usual = first.point.workload == first.reference["workload"]
    return family.distance, -len(family.settings), not usual, family.name


def split_by_scale(families: Sequence[SettingFamily]) -> tuple[tuple[SettingFamily, ...], ...]:
    """Split the families of one axis by workload if epochs differ so much that one axis would hide some of them."""
    apart: dict[str, list[SettingFamily]] = {}
    for family in families:
        apart.setdefault(family.settings[0].point.workload, []).append(family)
    longest = [max(one.stats.e2e_s.value for one in family.settings) for family in families]
    if families[0].axis == "workload" or max(longest) <= MAX_EPOCH_RATIO * min(longest):
        return (tuple(families),)
    return tuple(map(tuple, apart.values()))


def _axis_knobs(axis: str) -> tuple[str, ...]:
    return MODE_KNOBS if axis == "mode" else (axis,)


def _group_along(settings: Sequence[SettingSummary], axis: str) -> list[list[SettingSummary]]:
    """Group the settings that differ along the axis alone, where there are several."""
    groups: dict[Hashable, list[SettingSummary]] = {}
    for one in settings:
        same = tuple(value for name, value in collect_knobs(one.point).items() if name not in _axis_knobs(axis))
        groups.setdefault(same, []).append(one)
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
