"""Families: settings that differ in one knob alone, which is what a line, or a group of bars, is made of.

A sweep over several knobs has very many of them. Those nearest to the reference (``settings``) are drawn.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.characterisation.names import (
    MODE_PARTS,
    knobs_of,
    mode_names,
    mode_word,
    same_mode,
    value_phrase,
    value_word,
)
from experiments.report.characterisation.settings import Setting
from fedge.characterisation.point import Point
from fedge.types import PowerMode

AXES = (
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
"""What can be looked along, in the order of the page."""
NUMERIC = frozenset({"workers", "prefetch", "batch_size", *MODE_PARTS})
COMPARED = frozenset({"board", "workload", "kind"})
"""What families may differ in without being further from the reference: it is what one compares."""
FIRST = ("dropped", "train", "bare", False)
"""Values from which one compares."""
QUIET = ("pinned", "storage", "runtime", "dvfs")
"""Knobs that are told of only where a sweep has them at another value than the usual one."""
SAME = "all else the same"
"""The name of a family that is nowhere away from the reference, where only what is away is named."""
MOST_NAMED = 2
"""Knobs up to which every family says where each is; of more it says where it is not at the reference."""
UNLIKE = 8.0
"""From here on the longest epochs of two families are unlike; chosen by us."""
MOST_MODES = 16
"""Modes up to which they are bars beside each other; more are seen along their clocks, and in the plane."""


@dataclass(frozen=True, slots=True)
class Family:
    """Settings along an axis, in its order; ``name`` says in what it differs from the other families."""

    axis: str
    name: str
    settings: tuple[Setting, ...]
    distance: int
    """In how many knobs it is not at the reference."""

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(along(one, self.axis) for one in self.settings)


def along(setting: Setting, axis: str) -> Any:
    """The setting's value on the axis."""
    return setting.point.mode if axis == "mode" else knobs_of(setting.point)[axis]


def value_name(setting: Setting, axis: str) -> str:
    """The value on the axis as it is written there; a power mode by its preset's name, where it has one."""
    value = along(setting, axis)
    if not isinstance(value, PowerMode):
        return value_word(axis, value)
    named = mode_names(setting.point.board).items()
    return next((name for one, name in named if same_mode(one, value)), mode_word(value))


def axes_of(settings: Sequence[Setting]) -> tuple[str, ...]:
    """The axes along which there is anything to see."""
    return tuple(axis for axis in AXES if _worth(settings, axis))


def _worth(settings: Sequence[Setting], axis: str) -> bool:
    values = {along(one, axis) for one in settings}
    if len(values) < 2 or (axis == "mode" and len(values) > MOST_MODES):
        return False
    groups = [group for group in _groups(settings, axis).values() if len(group) > 1]
    # modes that differ in one clock alone are seen along this clock
    return any(map(_several_parts, groups)) if axis == "mode" else bool(groups)


def _several_parts(group: Sequence[Setting]) -> bool:
    knobs = [knobs_of(one.point) for one in group]
    return sum(len({each[part] for each in knobs}) > 1 for part in MODE_PARTS) > 1


def families_of(settings: Sequence[Setting], axis: str) -> tuple[Family, ...]:
    """All families along the axis with two values or more, the nearest to the reference first."""
    compared = [
        name for name in ("workload", "board", "kind") if len({getattr(one.point, name) for one in settings}) > 1
    ]
    groups = [group for group in _groups(settings, axis).values() if len(group) > 1]
    away = [_away(group[0], axis) for group in groups]
    named = list(dict.fromkeys(name for names in away for name in names))
    found = []
    for group, names in zip(groups, away, strict=True):
        shown = named if len(named) <= MOST_NAMED else names
        words = _words(group[0], [name for name in compared if name != axis], shown)
        found.append(Family(axis, ", ".join(words) or SAME, _ordered(group, axis), len(names)))
    return tuple(sorted(found, key=_rank))


def _away(setting: Setting, axis: str) -> tuple[str, ...]:
    """The knobs that are not at the reference."""
    knobs = {name: value for name, value in knobs_of(setting.point).items() if name not in _own(axis)}
    return tuple(name for name, value in knobs.items() if name not in COMPARED and value != setting.reference[name])


def _words(setting: Setting, compared: Sequence[str], knobs: Sequence[str]) -> list[str]:
    """What families are compared by, and where these knobs are; a power mode by its preset, where it has one."""
    at = knobs_of(setting.point)
    preset = value_name(setting, "mode")
    mode = [name for name in knobs if name in MODE_PARTS]
    modes = [preset] if mode and "/" not in preset else [value_phrase(name, at[name]) for name in mode]
    others = [value_phrase(name, at[name]) for name in knobs if name not in MODE_PARTS]
    return [*(value_word(name, at[name]) for name in compared), *modes, *others]


def _rank(family: Family) -> tuple[int, int, bool, str]:
    """The nearest first, of equally near ones those with more values, then those of the plan's own workload."""
    first = family.settings[0]
    usual = first.point.workload == first.reference["workload"]
    return family.distance, -len(family.settings), not usual, family.name


def similar(families: Sequence[Family]) -> tuple[tuple[Family, ...], ...]:
    """The families, apart by workload where their epochs are so unlike that one axis would hide some of them."""
    if len({family.settings[0].point.workload for family in families}) < 2 or families[0].axis == "workload":
        return (tuple(families),)
    longest = [max(one.stats.e2e_s.value for one in family.settings) for family in families]
    if max(longest) <= UNLIKE * min(longest):
        return (tuple(families),)
    apart: dict[str, list[Family]] = {}
    for family in families:
        apart.setdefault(family.settings[0].point.workload, []).append(family)
    return tuple(map(tuple, apart.values()))


def _own(axis: str) -> tuple[str, ...]:
    return MODE_PARTS if axis == "mode" else (axis,)


def _groups(settings: Sequence[Setting], axis: str) -> dict[Hashable, list[Setting]]:
    groups: dict[Hashable, list[Setting]] = {}
    for one in settings:
        same = tuple((name, value) for name, value in knobs_of(one.point).items() if name not in _own(axis))
        groups.setdefault(same, []).append(one)
    return groups


def _ordered(group: Sequence[Setting], axis: str) -> tuple[Setting, ...]:
    """Numbers rising; power modes from slow to fast; words as they are compared, else by the alphabet."""
    if axis in NUMERIC:
        return tuple(sorted(group, key=lambda one: float(along(one, axis))))
    if axis == "mode":
        return tuple(sorted(group, key=lambda one: -(one.value("e2e_s") or 0.0)))
    return tuple(sorted(group, key=lambda one: (along(one, axis) not in FIRST, str(along(one, axis)))))


def held(family: Family, settings: Sequence[Setting]) -> str:
    """What the knobs that are not compared are at in the family, in one line, among all ``settings``.

    What nobody turned away from its usual value is no setting that anybody chose, and is left out.
    """
    first = family.settings[0]
    skipped = {family.axis, *COMPARED, *(MODE_PARTS if family.axis == "mode" else ())}
    usual = knobs_of(Point("", ""))
    every = [knobs_of(one.point) for one in settings]
    silent = {name for name in QUIET if all(knobs[name] == usual[name] for knobs in every)}
    if family.axis != "workers" and not first.point.workers:
        silent.add("prefetch")
    known = {name: value for name, value in knobs_of(first.point).items() if value is not None}
    return ", ".join(value_phrase(name, value) for name, value in known.items() if name not in skipped | silent)


def short_names(settings: Sequence[Setting]) -> dict[str, str]:
    """Of every setting, by its key, the values of the knobs that differ among them; else workload and board."""
    every = [knobs_of(one.point) for one in settings]
    varied = [name for name in (every[0] if every else {}) if len({knobs[name] for knobs in every}) > 1]
    modes = [name for name in varied if name in MODE_PARTS]
    shown = [name for name in varied if name not in modes]
    return {one.key: _short(one, knobs, shown, bool(modes)) for one, knobs in zip(settings, every, strict=True)}


def _short(setting: Setting, knobs: Mapping[str, Any], shown: Sequence[str], with_mode: bool) -> str:
    mode = [value_name(setting, "mode")] if with_mode else []
    first = [value_word(name, knobs[name]) for name in shown if name in COMPARED]
    rest = [value_phrase(name, knobs[name]) for name in shown if name not in COMPARED]
    return ", ".join([*first, *mode, *rest]) or f"{setting.point.workload}, {setting.point.board}"
