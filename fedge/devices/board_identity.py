"""Identification of a real board in the catalogue, by its module number, its developer kit, or its model name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedge.errors import BoardError
from fedge.types import DeviceSpec

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
