"""A device that works no longer than it may, and remembers what it measured, also when the round is broken off."""

from __future__ import annotations

from collections.abc import Callable

from fedge.devices.front import InFront
from fedge.interfaces import Device
from fedge.types import Measurement, Workload


class Noting(InFront):
    """A ``fedge.interfaces.Device`` in front of another; ``measured`` are all its measurements so far.

    ``left_s`` tells how many seconds may still be worked; None: as many as it takes.
    """

    def __init__(self, device: Device, left_s: Callable[[], float | None] = lambda: None) -> None:
        super().__init__(device)
        self._left_s = left_s
        self.measured: list[Measurement] = []

    def measure(
        self, workload: Workload, steps: int, work: Callable[[int], object], limit_s: float | None = None
    ) -> Measurement:
        limits_s = [limit for limit in (limit_s, self._left_s()) if limit is not None]
        self.measured.append(self._device.measure(workload, steps, work, min(limits_s, default=None)))
        return self.measured[-1]
