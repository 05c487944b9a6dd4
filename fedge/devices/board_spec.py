"""Which board a machine is, and its ``DeviceSpec``: the catalogue's with the board's own clock tables and presets."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fedge.errors import BoardError
from fedge.modes import snap_to_spec
from fedge.types import DeviceSpec, PowerMode

READ_ON_BOARD = "measured: read on the board"
HZ_PER_MHZ = 1e6
KHZ_PER_MHZ = 1e3
KNOBS: Mapping[str, tuple[str, str, float]] = {
    "cores": ("cores", "cores", 1.0),
    "cpu_mhz": ("cpu_khz", "CPU MHz", KHZ_PER_MHZ),
    "gpu_mhz": ("gpu_hz", "GPU MHz", HZ_PER_MHZ),
    "mem_mhz": ("emc_hz", "memory MHz", HZ_PER_MHZ),
}
"""Knobs of a mode -> key in the daemon's protocol, display name, and number of protocol units per displayed unit."""


def mode_from_wire(wire: Mapping[str, int], spec: DeviceSpec) -> PowerMode:
    """Convert a mode from the power daemon's units; a missing knob gets its maximum."""
    cores, *clocks_mhz = (
        wire[key] / unit if key in wire else max(getattr(spec, knob)) for knob, (key, _, unit) in KNOBS.items()
    )
    return PowerMode(int(cores), *clocks_mhz)


def mode_to_wire(mode: PowerMode, knobs: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Convert a mode to the power daemon's units.

    A knob without allowed values in ``knobs`` is left out.
    """
    wished = zip(KNOBS.values(), mode.knobs, strict=True)
    return {key: round(value * unit) for (key, _, unit), value in wished if knobs.get(key)}


def build_board_spec(catalogued: DeviceSpec, described: Mapping[str, Any], total_power: str) -> DeviceSpec:
    """Build the spec of a real board.

    A knob that the board does not expose keeps the catalogue's maximum as its only value, because it cannot be changed.
    ``described`` is the power daemon's reply to ``describe``.
    """
    allowed = described["allowed"]
    tables: dict[str, tuple[float, ...]] = {
        knob: tuple(value / unit for value in allowed[key]) for knob, (key, _, unit) in KNOBS.items()
    } | {"cores": tuple(int(count) for count in allowed["cores"])}
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
    presets = {preset["name"]: snap_to_spec(spec, mode_from_wire(preset["mode"], spec)) for preset in usable}
    default = next((preset["name"] for preset in usable if preset["default"]), "MAXN")
    return {"presets": MappingProxyType(presets | {"MAXN": spec.maxn}), "default_preset": default}


KIT_MODULES: Mapping[str, str] = {
    "P3450": "P3448-0000",
    "P2771": "P3310-1000",
    "P2972": "P2888-0004",
    "P3509": "P3668-0000",
}
"""Developer kits whose device tree only names the carrier board -> the module on it."""
_MODULE = re.compile(r"p(\d{4})(?:-(\d{4}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BoardIdentity:
    """Identity that a board reports.

    Attributes:
        compatible: The device tree's ``compatible`` names.
        l4t: L4T release, like ``"35.4.1"``; empty if unknown.
    """

    model: str
    compatible: tuple[str, ...]
    l4t: str

    @property
    def modules(self) -> tuple[str, ...]:
        """Module and kit numbers in the device tree, such as ``P3701-0005``, in order."""
        found = [match for name in self.compatible for match in _MODULE.finditer(name)]
        return tuple(dict.fromkeys("P" + "-".join(filter(None, match.groups())) for match in found))


def match_board_spec(identity: BoardIdentity, gpu_mhz: Sequence[float], specs: Mapping[str, DeviceSpec]) -> DeviceSpec:
    """Find a real board in the catalogue.

    Some boards share a module number (Orin Nano before and after its Super clocks); then the one with the nearest
    maximum GPU clock is returned.

    Raises:
        BoardError: The catalogue does not contain the board.
    """
    candidates = _match_by_module(identity.modules, specs.values()) or _match_by_title(identity.model, specs.values())
    if not candidates:
        known = ", ".join(specs)
        raise BoardError(
            f"the catalogue does not know this board: got {identity.model!r} ({', '.join(identity.compatible)}); "
            f"known: {known}; write a file for it (docs/how-to/devices.md) and name it as the board's device"
        )
    if not gpu_mhz:
        return candidates[0]
    return min(candidates, key=lambda spec: abs(max(spec.gpu_mhz) - max(gpu_mhz)))


def _match_by_module(modules: Iterable[str], specs: Iterable[DeviceSpec]) -> list[DeviceSpec]:
    """Return the boards with one of the modules; the part number after the dash is compared only if it is known."""
    named = [KIT_MODULES.get(module.split("-")[0], module) for module in modules]
    return [spec for spec in specs if any(module in spec.sources["modules"] for module in named)]


def _match_by_title(model: str, specs: Iterable[DeviceSpec]) -> list[DeviceSpec]:
    """Return the boards whose title's words, sizes aside, all occur in the model name; only those with most words."""
    said = set(model.casefold().split())
    words = {spec.name: {w for w in spec.title.casefold().split() if not w.endswith("gb")} for spec in specs}
    fitting = [spec for spec in specs if words[spec.name] <= said]
    most = max((len(words[spec.name]) for spec in fitting), default=0)
    return [spec for spec in fitting if len(words[spec.name]) == most]
