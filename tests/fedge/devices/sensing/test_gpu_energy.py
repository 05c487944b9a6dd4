"""The energy of GPUs by NVML: against a stand-in for ``pynvml`` with its documented functions and units, on no card."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from fedge.devices.sensing.gpu_energy import GpuEnergyCounter


class NVMLError(Exception):
    """As the package's own."""


class FakeNvml(ModuleType):
    """Cards that have counted these millijoules; None for one that does not count (before Volta)."""

    NVMLError = NVMLError

    def __init__(self, counted_mj: list[int | None], driver: bool = True) -> None:
        super().__init__("pynvml")
        self.counted_mj, self._driver = counted_mj, driver

    def nvmlInit(self) -> None:  # noqa: N802 -- NVML's name, like the next ones
        if not self._driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.counted_mj)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        counted = self.counted_mj[handle]
        if counted is None:
            raise NVMLError("Not Supported")
        return counted


def open_counter(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> GpuEnergyCounter | None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return GpuEnergyCounter.try_open()


def test_the_joules_of_all_cards_since_the_counter_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([5_000_000, 70_000])
    counter = open_counter(monkeypatch, nvml)
    assert counter is not None

    nvml.counted_mj = [5_012_500, 71_000]

    assert counter.try_read_energy_j() == pytest.approx(13.5)


def test_a_card_that_is_lost_meanwhile_leaves_the_energy_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([1_000])
    counter = open_counter(monkeypatch, nvml)
    assert counter is not None

    nvml.counted_mj = [None]

    assert counter.try_read_energy_j() is None


@pytest.mark.parametrize("nvml", [FakeNvml([]), FakeNvml([100, None]), FakeNvml([100], driver=False)])
def test_without_cards_that_all_count_there_is_no_counter(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> None:
    assert open_counter(monkeypatch, nvml) is None


def test_without_the_package_there_is_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert GpuEnergyCounter.try_open() is None
