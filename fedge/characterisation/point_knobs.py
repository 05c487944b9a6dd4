"""The knobs of a point one by one: their values, what two points have in common, and their descriptions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from fedge.characterisation.sweep_plan import DEFAULT_STORAGE, KNOBS, SweepPoint
from fedge.types import PowerMode

KnobValue = str | int | float | bool

CLOCK_KNOBS = ("cpu_mhz", "gpu_mhz", "mem_mhz")
"""Knobs whose values differ from board to board."""
MODE_KNOBS = ("cores", *CLOCK_KNOBS)
ORDERED_KNOBS = (*MODE_KNOBS, "batch_size", "workers", "prefetch")
UNORDERED_KNOBS = ("kind", "pinned", "storage", "cache", "runtime", "dvfs")
REFERENCE_VALUES = {"cache": "dropped", "kind": "train", "runtime": "bare"}
"""The value of an unordered knob that others are compared with; without one, the alphabetically first."""
KNOB_TITLES = {
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
_BLANK_VALUES: dict[str, Any] = {"batch_size": 0, "workers": 0, "prefetch": 0, "pinned": False, "dvfs": False}
CLOCK_FORMATS = {
    "cores": "{:g} cores",
    "cpu_mhz": "CPU {:g} MHz",
    "gpu_mhz": "GPU {:g} MHz",
    "mem_mhz": "memory {:g} MHz",
}


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


def format_knob_value(knob: str, value: KnobValue) -> str:
    """Format a value whose knob is clear from the context: "4", "1377", "training", "on"."""
    if knob == "kind":
        return "training" if value == "train" else "inference"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


@lru_cache(maxsize=65536)
def without_knob(point: SweepPoint, knob: str) -> SweepPoint:
    """Return the point with this knob blanked, which is equal for all points that differ in this knob alone."""
    if knob in MODE_KNOBS:
        return replace(point, mode=replace(point.mode or PowerMode(0, 0, 0, 0), **{knob: 0}))
    return replace(point, **{knob: _BLANK_VALUES.get(knob, "")})


def describe_setting(point: SweepPoint) -> str:
    """Describe the whole setting: "training, batch 16, 1 worker, dropped cache"."""
    return f"{'training' if point.kind == 'train' else 'inference'}, {describe_other_knobs(point, '')}"


def describe_other_knobs(point: SweepPoint, knob: str) -> str:
    """Describe all of a setting but one knob: "batch 16, 1 worker, warm cache"."""
    words = _describe_each_knob(point)
    if knob in MODE_KNOBS and point.mode is not None:
        words["mode"] = ", ".join(
            CLOCK_FORMATS[one].format(getattr(point.mode, one)) for one in MODE_KNOBS if one != knob
        )
    return ", ".join(words[one] for one in KNOBS if one in words and one != knob and words[one])


def describe_differences(point: SweepPoint, among: Sequence[SweepPoint]) -> str:
    """Describe a setting by the knobs that are not the same in all settings of a group.

    Args:
        point: The setting.
        among: The group. If its power modes differ in one knob alone, the mode is named by that knob.

    Returns:
        The description; empty if nothing differs.
    """
    every = [_describe_each_knob(one) for one in among]
    own = {**_describe_each_knob(point), "prefetch": f"prefetch {point.prefetch}" if point.workers else ""}
    for name, off in (("pinned", "pageable memory"), ("dvfs", "DVFS off"), ("runtime", "bare")):
        own[name] = own[name] or off
    own["storage"] = point.storage
    parts = [one for one in MODE_KNOBS if len({getattr(each.mode, one) for each in among if each.mode is not None}) > 1]
    if len(parts) == 1 and point.mode is not None:
        own["mode"] = CLOCK_FORMATS[parts[0]].format(getattr(point.mode, parts[0]))
    differ = [name for name in KNOBS if name in own and len({words[name] for words in every}) > 1]
    return ", ".join(own[name] for name in differ if own[name])


def _describe_each_knob(point: SweepPoint) -> dict[str, str]:
    """Describe each knob; empty where it has its usual value."""
    return {
        "mode": "" if point.mode is None else f"mode {point.mode}",
        "batch_size": f"batch {point.batch_size}",
        "workers": "1 worker" if point.workers == 1 else f"{point.workers or 'no'} workers",
        "prefetch": f"prefetch {point.prefetch}" if point.workers and point.prefetch != 2 else "",
        "pinned": "pinned memory" if point.pinned else "",
        "storage": point.storage if point.storage != DEFAULT_STORAGE else "",
        "cache": f"{point.cache} cache",
        "runtime": point.runtime if point.runtime != "bare" else "",
        "dvfs": "DVFS on" if point.dvfs else "",
    }


def describe_point(point: SweepPoint) -> str:
    """Describe a point: "nano-1, lenet5-mnist: training, batch 16, no workers, dropped cache, repeat 2"."""
    again = f", repeat {point.repeat + 1}" if point.repeat else ""
    return f"{point.board}, {point.workload}: {describe_setting(point)}{again}"
