"""The ``DeviceSpec`` of a real board: the catalogue's, with the clock tables and presets that the board exposes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedge import modes
from fedge.types import DeviceSpec, PowerMode

READ_ON_BOARD = "measured: read on the board"
KNOBS = ("cores", "cpu_mhz", "gpu_mhz", "mem_mhz")
HZ_PER_MHZ = 1e6
KHZ_PER_MHZ = 1e3


def mode_from_wire(wire: Mapping[str, int], spec: DeviceSpec) -> PowerMode:
    """Convert a mode from the power daemon's units; a missing knob gets its maximum."""
    return PowerMode(
        int(wire.get("cores", max(spec.cores))),
        wire["cpu_khz"] / KHZ_PER_MHZ if "cpu_khz" in wire else max(spec.cpu_mhz),
        wire["gpu_hz"] / HZ_PER_MHZ if "gpu_hz" in wire else max(spec.gpu_mhz),
        wire["emc_hz"] / HZ_PER_MHZ if "emc_hz" in wire else max(spec.mem_mhz),
    )


def mode_to_wire(mode: PowerMode, knobs: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Convert a mode to the power daemon's units.

    A knob without allowed values in ``knobs`` is left out.
    """
    wished = {
        "cores": mode.cores,
        "cpu_khz": round(mode.cpu_mhz * KHZ_PER_MHZ),
        "gpu_hz": round(mode.gpu_mhz * HZ_PER_MHZ),
        "emc_hz": round(mode.mem_mhz * HZ_PER_MHZ),
    }
    return {knob: value for knob, value in wished.items() if knobs.get(knob)}


def build_board_spec(catalogued: DeviceSpec, described: Mapping[str, Any], total_power: str) -> DeviceSpec:
    """Build the spec of a real board.

    A knob that the board does not expose keeps the catalogue's maximum as its only value, because it cannot be changed.
    ``described`` is the power daemon's reply to ``describe``.
    """
    allowed = described["allowed"]
    tables = {
        "cores": tuple(int(count) for count in allowed["cores"]),
        "cpu_mhz": tuple(khz / KHZ_PER_MHZ for khz in allowed["cpu_khz"]),
        "gpu_mhz": tuple(hz / HZ_PER_MHZ for hz in allowed["gpu_hz"]),
        "mem_mhz": tuple(hz / HZ_PER_MHZ for hz in allowed["emc_hz"]),
    }
    read = [knob for knob in KNOBS if tables[knob]]
    kept: dict[str, Any] = {knob: tables[knob] or getattr(catalogued, knob)[-1:] for knob in KNOBS}
    sources = dict(catalogued.sources) | dict.fromkeys([*read, "presets", "total_power"], READ_ON_BOARD)
    sources |= {
        knob: f"{catalogued.sources[knob]}; the board exposes no such knob" for knob in KNOBS if not tables[knob]
    }
    spec = dataclasses.replace(catalogued, **kept, total_power=total_power, sources=MappingProxyType(sources))
    return dataclasses.replace(spec, **_build_presets(spec, described["presets"]))


def _build_presets(spec: DeviceSpec, described: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the board's presets that need no reboot, snapped to its clock tables, and MAXN."""
    usable = [preset for preset in described if not preset["needs_reboot"]]
    presets = {preset["name"]: modes.snap_to_spec(spec, mode_from_wire(preset["mode"], spec)) for preset in usable}
    default = next((preset["name"] for preset in usable if preset["default"]), "MAXN")
    return {"presets": MappingProxyType(presets | {"MAXN": spec.maxn}), "default_preset": default}
