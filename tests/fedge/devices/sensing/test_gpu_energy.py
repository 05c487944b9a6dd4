"""The energy of GPUs by NVML: against a stand-in for ``pynvml`` with its documented functions and units, on no card."""

from __future__ import annotations

import sys

import pytest
from contracts.fake_nvml import FakeCard, FakeNvml, install

from fedge.devices.sensing.gpu_energy import GpuEnergyCounter


def count_cards(*counted_mj: int) -> FakeNvml:
    return FakeNvml([FakeCard(counted) for counted in counted_mj])


def open_counter(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> GpuEnergyCounter | None:
    install(monkeypatch, nvml)
    return GpuEnergyCounter.try_open()


def test_the_joules_of_all_cards_since_the_counter_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = count_cards(5_000_000, 70_000)
    counter = open_counter(monkeypatch, nvml)
    assert counter is not None

    for card, counted_mj in zip(nvml.cards, (5_012_500, 71_000), strict=True):
        card.counted_mj, card.seen_s = counted_mj, 0.0

    assert counter.try_read_energy_j() == pytest.approx(13.5)


def test_a_card_that_is_lost_meanwhile_leaves_the_energy_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = count_cards(1_000)
    counter = open_counter(monkeypatch, nvml)
    assert counter is not None

    nvml.cards[0].counted_mj = None

    assert counter.try_read_energy_j() is None


@pytest.mark.parametrize(
    "nvml", [FakeNvml([]), FakeNvml([FakeCard(), FakeCard(None)]), FakeNvml([FakeCard()], driver=False)]
)
def test_without_cards_that_all_count_there_is_no_counter(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> None:
    assert open_counter(monkeypatch, nvml) is None


def test_without_the_package_there_is_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert GpuEnergyCounter.try_open() is None
