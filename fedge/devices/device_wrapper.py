"""A device in front of another: everything is the other's, but for how work is metered."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fedge.protocols import Device
from fedge.types import DeviceSpec, PowerMode


class DeviceWrapper:
    """What a ``fedge.protocols.Device`` that stands in front of ``device`` hands on; ``measure`` is its own."""

    def __init__(self, device: Device) -> None:
        self._device = device

    @property
    def spec(self) -> DeviceSpec:
        return self._device.spec

    def idle_w(self, mode: PowerMode) -> float:
        return self._device.idle_w(mode)

    def use_mode(self, mode: PowerMode) -> AbstractContextManager[None]:
        return self._device.use_mode(mode)
