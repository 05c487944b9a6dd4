"""Base class of devices that wrap another one and change how work is measured."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fedge.protocols import Device
from fedge.types import DeviceSpec, PowerMode


class DeviceWrapper:
    """Forwards all of ``fedge.protocols.Device`` to ``device``, except ``measure``, which subclasses implement."""

    def __init__(self, device: Device) -> None:
        self._device = device

    @property
    def spec(self) -> DeviceSpec:
        return self._device.spec

    def idle_w(self, mode: PowerMode) -> float:
        return self._device.idle_w(mode)

    def use_mode(self, mode: PowerMode) -> AbstractContextManager[None]:
        return self._device.use_mode(mode)
