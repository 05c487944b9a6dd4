"""A stand-in for ``pynvml`` with the documented functions, units and errors that fedge uses, and cards that draw power.

A card at work draws what it is allowed to, up to ``draw_w``. Its speed follows the cube root of the power above idling.
Names are NVML's own.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest

IDLE_W = 20.0


@dataclass
class FakeCard:
    """A card; limits and counts as NVML has them.

    Attributes:
        counted_mj: Millijoules counted; None for a card before Volta.
        limit_mw: Present power limit; None for a card without one.
    """

    counted_mj: float | None = 0.0
    limit_mw: int | None = 300_000
    range_mw: tuple[int, int] = (100_000, 350_000)
    draw_w: float = 260.0
    busy: bool = False
    written: list[int] = field(default_factory=list)
    seen_s: float = 0.0

    @property
    def power_w(self) -> float:
        return min(self.draw_w, (self.limit_mw or 0) / 1000) if self.busy else IDLE_W

    @property
    def slowdown(self) -> float:
        """How much longer a step takes than without a limit."""
        return ((self.draw_w - IDLE_W) / (min(self.draw_w, (self.limit_mw or 0) / 1000) - IDLE_W)) ** (1 / 3)


class FakeNvml(ModuleType):
    """The module, with its cards."""

    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_INVALID_ARGUMENT = 3, 4, 2
    NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_GPU_IS_LOST = 9, 15
    NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 0, 1, 2, 0

    class NVMLError(Exception):
        """As the package's own: its number is ``value``."""

        def __init__(self, value: int) -> None:
            super().__init__({3: "Not Supported", 4: "Insufficient Permissions", 9: "Driver Not Loaded"}.get(value))
            self.value = value

        def __str__(self) -> str:
            return str(self.args[0])

    def __init__(
        self,
        cards: list[FakeCard],
        *,
        driver: bool = True,
        root: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("pynvml")
        self.cards, self.root, self._driver, self._now_s = cards, root, driver, now_s

    def nvmlInit(self) -> None:  # noqa: N802 -- NVML's name, like the next ones
        if not self._driver:
            raise self.NVMLError(self.NVML_ERROR_DRIVER_NOT_LOADED)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:  # noqa: N802
        return self.cards[index]

    def nvmlDeviceGetName(self, _handle: FakeCard) -> str:  # noqa: N802
        return "NVIDIA Fake 300"

    def nvmlDeviceGetUUID(self, handle: FakeCard) -> str:  # noqa: N802
        return f"GPU-{self.cards.index(handle)}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeCard) -> int:  # noqa: N802
        if handle.counted_mj is None:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        self.count(handle)
        return int(handle.counted_mj)

    def nvmlDeviceGetPowerUsage(self, handle: FakeCard) -> int:  # noqa: N802
        return int(handle.power_w * 1000)

    def nvmlDeviceGetPowerManagementLimit(self, handle: FakeCard) -> int:  # noqa: N802
        if handle.limit_mw is None:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return handle.limit_mw

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: FakeCard) -> list[int]:  # noqa: N802
        return list(handle.range_mw)

    def nvmlDeviceSetPowerManagementLimit(self, handle: FakeCard, limit: int) -> None:  # noqa: N802
        if not self.root:
            raise self.NVMLError(self.NVML_ERROR_NO_PERMISSION)
        if not handle.range_mw[0] <= limit <= handle.range_mw[1]:
            raise self.NVMLError(self.NVML_ERROR_INVALID_ARGUMENT)
        self.count(handle)
        handle.limit_mw = limit
        handle.written.append(limit)

    def nvmlDeviceGetMaxClockInfo(self, _handle: FakeCard, kind: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 2100, self.NVML_CLOCK_MEM: 5001}[kind]

    def nvmlDeviceGetClockInfo(self, handle: FakeCard, kind: int) -> int:  # noqa: N802
        return self.nvmlDeviceGetMaxClockInfo(handle, kind)

    def nvmlDeviceGetTemperature(self, _handle: FakeCard, _sensor: int) -> int:  # noqa: N802
        return 61

    def nvmlDeviceGetUtilizationRates(self, handle: FakeCard) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=97 if handle.busy else 0, memory=40)

    def work(self, card: FakeCard, seconds: float) -> None:
        """Work as long as ``seconds`` of it take under the present limit; their energy is counted, seen or not."""
        self.count(card)
        card.busy = True
        time.sleep(seconds * card.slowdown)
        self.count(card)
        card.busy = False

    def count(self, card: FakeCard) -> None:
        """Add the energy since the last look."""
        now_s = self._now_s()
        if card.counted_mj is not None and card.seen_s:
            card.counted_mj += 1000 * card.power_w * (now_s - card.seen_s)
        card.seen_s = now_s


def install(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> FakeNvml:
    """Make ``nvml`` what ``import pynvml`` gives."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml
