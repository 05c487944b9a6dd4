"""Short names of knobs, their values and points on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedge.characterisation.point_knobs import kind_of_board
from fedge.characterisation.sweep_plan import DEFAULT_STORAGE, SweepPoint
from fedge.errors import BadInput
from fedge.types import PowerMode

KNOB_TITLES: Mapping[str, str] = {
    "board": "board",
    "workload": "workload",
    "kind": "training or inference",
    "mode": "power mode",
    "cores": "CPU cores",
    "cpu_mhz": "CPU clock",
    "gpu_mhz": "GPU clock",
    "mem_mhz": "memory clock",
    "batch_size": "batch size",
    "workers": "loader workers",
    "prefetch": "prefetch",
    "pinned": "pinned memory",
    "storage": "storage",
    "cache": "page cache",
    "runtime": "runtime",
    "dvfs": "DVFS",
}
AXIS_TITLES: Mapping[str, str] = {
    "cores": "CPU cores online",
    "cpu_mhz": "CPU clock (MHz)",
    "gpu_mhz": "GPU clock (MHz)",
    "mem_mhz": "memory clock (MHz)",
    "batch_size": "samples per batch",
    "workers": "loader workers (processes)",
    "prefetch": "prefetch (batches per worker)",
}
"""Titles of axes that differ from the knob's title."""
KIND_NAMES = {"train": "training", "infer": "inference"}
MODE_PARTS = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz")


def format_mode(mode: PowerMode) -> str:
    """Format a power mode as cores, CPU, GPU and memory MHz: "8c/2265.6/1377/2133"."""
    return str(mode).removesuffix(" MHz")


def get_axis_title(knob: str) -> str:
    """Return the title of a knob's axis with its unit."""
    return AXIS_TITLES.get(knob, KNOB_TITLES.get(knob, knob))


def format_knob_value(knob: str, value: Any) -> str:
    """Format a value whose knob is clear from the context: "4", "training", "on"."""
    if value is None:
        return "as found"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, PowerMode):
        return format_mode(value)
    if isinstance(value, list | tuple):
        return "/".join(format_knob_value("", one) for one in value)
    if isinstance(value, int | float):
        return f"{value:g}"
    return KIND_NAMES.get(str(value), str(value)) if knob == "kind" else str(value)


def describe_turn(knob: str, now: Any, then: Any) -> str:
    """Describe a change of a knob: "GPU clock 1377 → 905.25 MHz"."""
    unit = " MHz" if knob in {"cpu_mhz", "gpu_mhz", "mem_mhz"} else ""
    return f"{KNOB_TITLES.get(knob, knob)} {format_knob_value(knob, now)} → {format_knob_value(knob, then)}{unit}"


def format_knob_phrase(knob: str, value: Any) -> str:
    """Format a value among those of other knobs: "4 workers", "batch 16", "cache warm"."""
    word = format_knob_value(knob, value)
    phrases = {
        "workers": f"{word} worker{'s' * (value != 1)}",
        "batch_size": f"batch {word}",
        "prefetch": f"prefetch {word}",
        "cache": f"cache {word}",
        "pinned": f"pinned {word}",
        "dvfs": f"DVFS {word}",
        "cores": f"{word} cores",
        "cpu_mhz": f"CPU {word} MHz",
        "gpu_mhz": f"GPU {word} MHz",
        "mem_mhz": f"memory {word} MHz",
        "mode": f"mode {word}",
    }
    return phrases.get(knob, word)


def collect_knobs(point: SweepPoint) -> dict[str, Any]:
    """Return every knob but the repeat by name, with the power mode as its four parts."""
    mode = point.mode
    parts = dict.fromkeys(MODE_PARTS) if mode is None else {name: getattr(mode, name) for name in MODE_PARTS}
    plain = ("batch_size", "workers", "prefetch", "pinned", "storage", "cache", "runtime", "dvfs")
    return {
        "board": point.board,
        "workload": point.workload,
        "kind": point.kind,
        **parts,
        **{name: getattr(point, name) for name in plain},
    }


def format_setting(point: SweepPoint) -> str:
    """Format the whole setting in one line."""
    mode = [] if point.mode is None else [str(point.mode)]
    ahead, named = point.workers > 0, point.storage != DEFAULT_STORAGE
    plain = ("batch_size", "workers", *(("prefetch",) if ahead else ()), *(("storage",) if named else ()), "cache")
    switches = [KNOB_TITLES[name] for name in ("pinned", "dvfs") if getattr(point, name)]
    runtime = [] if point.runtime == "bare" else [point.runtime]
    words = [point.board, point.workload, KIND_NAMES[point.kind], *mode]
    words += [format_knob_phrase(name, getattr(point, name)) for name in plain]
    return ", ".join([*words, *switches, *runtime])


def preset_names(board: str) -> dict[PowerMode, str]:
    """Return the first name of each preset mode of a board; empty for a board that is not in the catalogue."""
    from fedge.devices.catalogue import find

    try:
        presets = find(kind_of_board(board)).presets
    except BadInput:
        return {}
    named: dict[PowerMode, str] = {}
    for name, mode in presets.items():
        named.setdefault(mode, name)
    return named


def is_same_mode(first: PowerMode, second: PowerMode) -> bool:
    """Return whether two modes are equal up to rounding of their clocks."""
    return all(math.isclose(getattr(first, part), getattr(second, part), rel_tol=1e-6) for part in MODE_PARTS)
