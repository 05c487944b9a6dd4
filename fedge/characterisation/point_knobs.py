"""The knobs of a point one by one: their values, what two points have in common, and their descriptions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fedge.characterisation.sweep_plan import DEFAULT_PREFETCH, DEFAULT_STORAGE, KNOBS, SweepPoint
from fedge.types import PowerMode

KnobValue = str | int | float | bool

CLOCK_KNOBS = ("cpu_mhz", "gpu_mhz", "mem_mhz")
"""Knobs whose values differ from board to board."""
MODE_KNOBS = ("cores", *CLOCK_KNOBS)
ORDERED_KNOBS = (*MODE_KNOBS, "batch_size", "workers", "prefetch")
UNORDERED_KNOBS = ("kind", "pinned", "storage", "cache", "runtime", "dvfs")
REFERENCE_VALUES = {"cache": "dropped", "kind": "train", "runtime": "bare"}
"""The value of an unordered knob that others are compared with; without one, the alphabetically first."""
KIND_NAMES = {"train": "training", "infer": "inference"}
KNOB_TITLES = {
    "board": "board",
    "workload": "workload",
    "mode": "power mode",
    "cores": "CPU cores",
    "cpu_mhz": "CPU clock",
    "gpu_mhz": "GPU clock",
    "mem_mhz": "memory clock",
    "batch_size": "batch size",
    "workers": "loader workers",
    "prefetch": "prefetch",
    "kind": "work",
    "pinned": "pinned memory",
    "storage": "storage",
    "cache": "page cache",
    "runtime": "runtime",
    "dvfs": "DVFS",
}
CLOCK_FORMATS = {
    "cores": "{:g} cores",
    "cpu_mhz": "CPU {:g} MHz",
    "gpu_mhz": "GPU {:g} MHz",
    "mem_mhz": "memory {:g} MHz",
}
_FORMATS = {"mode": "mode {} MHz", "batch_size": "batch {}", "prefetch": "prefetch {}", "cache": "{} cache"}
_BLANK_VALUES: dict[str, Any] = {"batch_size": 0, "workers": 0, "prefetch": 0, "pinned": False, "dvfs": False}
_SETTING_KNOBS = KNOBS[:1] + KNOBS[3:]
"""The knobs that describe a setting of one workload and kind."""
_USUAL_VALUES = {
    "mode": None,
    "prefetch": DEFAULT_PREFETCH,
    "pinned": False,
    "storage": DEFAULT_STORAGE,
    "runtime": "bare",
    "dvfs": False,
}
"""Values that go without saying."""


@lru_cache(maxsize=1024)
def kind_of_board(board: str) -> str:
    """Return the kind of a board by its name: ``agx-xavier`` for ``agx-xavier-2``."""
    return re.sub(r"-\d+$", "", board)


def get_knob_value(point: SweepPoint, knob: str) -> KnobValue | None:
    """Return the value of a knob, or None for a knob of the mode if the mode is not known."""
    if knob in MODE_KNOBS:
        return None if point.mode is None else getattr(point.mode, knob)
    value: KnobValue = getattr(point, knob)
    return value


def format_mode(mode: PowerMode) -> str:
    """Format a mode as plans have it: "4/1190.4/675.75/1331.2"."""
    return f"{mode.cores}/{mode.cpu_mhz:g}/{mode.gpu_mhz:g}/{mode.mem_mhz:g}"


def format_knob_value(knob: str, value: KnobValue | PowerMode | None) -> str:
    """Format a value whose knob is clear from the context: "4", "1377", "training", "on"; "as found" for no mode."""
    if value is None or isinstance(value, PowerMode):
        return "as found" if value is None else str(value).removesuffix(" MHz")
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else KIND_NAMES.get(str(value), str(value))


def describe_knob(knob: str, value: Any) -> str:
    """Describe a value among those of other knobs: "4 workers", "batch 16", "warm cache", "GPU 1377 MHz"."""
    if knob == "workers":
        return "1 worker" if value == 1 else f"{value or 'no'} workers"
    if knob == "pinned":
        return "pinned memory" if value else "pageable memory"
    if knob in CLOCK_FORMATS:
        return CLOCK_FORMATS[knob].format(value)
    word = format_knob_value(knob, value)
    return f"DVFS {word}" if knob == "dvfs" else _FORMATS.get(knob, "{}").format(word)


@lru_cache(maxsize=65536)
def without_knob(point: SweepPoint, knob: str) -> SweepPoint:
    """Return the point with this knob blanked, which is equal for all points that differ in this knob alone."""
    if knob in MODE_KNOBS:
        return replace(point, mode=replace(point.mode or PowerMode(0, 0, 0, 0), **{knob: 0}))
    return replace(point, **{knob: _BLANK_VALUES.get(knob, "")})


def describe_setting(point: SweepPoint) -> str:
    """Describe the whole setting: "training, batch 16, 1 worker, dropped cache"."""
    return f"{KIND_NAMES[point.kind]}, {describe_other_knobs(point, '')}"


def describe_other_knobs(point: SweepPoint, knob: str) -> str:
    """Describe all of a setting but one knob: "batch 16, 1 worker, warm cache"."""
    words = _describe_unusual_knobs(point)
    if knob in MODE_KNOBS and point.mode is not None:
        words["mode"] = ", ".join(describe_knob(one, getattr(point.mode, one)) for one in MODE_KNOBS if one != knob)
    return ", ".join(word for name, word in words.items() if name != knob and word)


def describe_differences(point: SweepPoint, among: Sequence[SweepPoint]) -> str:
    """Describe a setting by the knobs that are not the same in all settings of a group.

    Args:
        point: The setting.
        among: The group. If its power modes differ in one knob alone, the mode is named by that knob.

    Returns:
        The description; empty if nothing differs.
    """
    every = [_describe_unusual_knobs(one) for one in among]
    own = {name: describe_knob(name, getattr(point, name)) for name in _SETTING_KNOBS}
    own["prefetch"] = own["prefetch"] if point.workers else ""
    parts = [one for one in MODE_KNOBS if len({getattr(each.mode, one) for each in among if each.mode is not None}) > 1]
    if point.mode is None or len(parts) == 1:
        own["mode"] = "" if point.mode is None else describe_knob(parts[0], getattr(point.mode, parts[0]))
    differ = [name for name in own if len({words[name] for words in every}) > 1]
    return ", ".join(own[name] for name in differ if own[name])


def _describe_unusual_knobs(point: SweepPoint) -> dict[str, str]:
    """Describe each knob; empty where it has its usual value, or no effect."""
    values = {name: getattr(point, name) for name in _SETTING_KNOBS}
    hidden = {name for name, value in values.items() if name in _USUAL_VALUES and value == _USUAL_VALUES[name]}
    hidden |= set() if point.workers else {"prefetch"}
    return {name: "" if name in hidden else describe_knob(name, value) for name, value in values.items()}


def describe_point(point: SweepPoint) -> str:
    """Describe a point: "nano-1, lenet5-mnist: training, batch 16, no workers, dropped cache, repeat 2"."""
    again = f", repeat {point.repeat + 1}" if point.repeat else ""
    return f"{point.board}, {point.workload}: {describe_setting(point)}{again}"
