"""The boards of a plan: their names, and the knobs that each has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedge.types import DeviceSpec

if TYPE_CHECKING:
    from fedge.devices.here import Place

HERE, EMULATED = "here", "emulated:"


def device_of(board: str) -> str | None:
    """The catalogue's name of an emulated board such as ``agx-xavier-1``; None for this machine."""
    return None if board == HERE else board.rpartition("-")[0]


def spec_of(board: str) -> DeviceSpec | None:
    """The board's knobs and presets; None where no mode can be set. Raises ``BoardError`` for a daemon out of reach."""
    device = device_of(board)
    if device is not None:
        from fedge.devices import catalogue

        return catalogue.find(device, "board")
    from fedge.devices import here

    place = here.Place()
    return _spec_here(place) if Path(place.power_socket).exists() else None


def _spec_here(place: Place) -> DeviceSpec:
    """Of a board whose power daemon answers."""
    from fedge.devices import here
    from fedge.devices.own_spec import own_spec

    described = here.describe(place)
    catalogued = here.spec_of(place, here.identity_in(described), described)
    return own_spec(catalogued, described, catalogued.total_power)
