"""Energy counters of GPUs and of the processor."""

import sys
import threading
from pathlib import Path

import pytest
from contracts.fake_nvml import FakeCard, FakeNvml, install

from fedge.devices.sensing.energy_counters import RAPL_FOLDER, GpuEnergyCounter, PackageEnergyCounter


def count_cards(*counted_mj: int) -> FakeNvml:
    return FakeNvml([FakeCard(counted) for counted in counted_mj])


def open_counter(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> GpuEnergyCounter | None:
    install(monkeypatch, nvml)
    return GpuEnergyCounter.try_open()


def test_the_joules_of_all_cards_since_the_counter_was_opened(monkeypatch):
    nvml = count_cards(5_000_000, 70_000)
    counter = open_counter(monkeypatch, nvml)

    for card, counted_mj in zip(nvml.cards, (5_012_500, 71_000), strict=True):
        card.counted_mj, card.seen_s = counted_mj, 0.0

    assert counter.try_read_energy_j() == pytest.approx(13.5)


def test_a_card_that_is_lost_meanwhile_leaves_the_energy_unknown(monkeypatch):
    nvml = count_cards(1_000)
    counter = open_counter(monkeypatch, nvml)

    nvml.cards[0].counted_mj = None

    assert counter.try_read_energy_j() is None


@pytest.mark.parametrize(
    "nvml", [FakeNvml([]), FakeNvml([FakeCard(), FakeCard(None)]), FakeNvml([FakeCard()], driver=False)]
)
def test_without_cards_that_all_count_there_is_no_counter(monkeypatch, nvml):
    assert open_counter(monkeypatch, nvml) is None


def test_without_the_package_there_is_no_counter(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert GpuEnergyCounter.try_open() is None


def package(root: Path, name: str, energy_uj: int, most_uj: int = 10_000_000, title: str = "package-0") -> Path:
    folder = root / RAPL_FOLDER / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{title}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{most_uj}\n")
    return folder


def test_joules_of_all_packages_are_added_and_parts_of_a_package_are_not(tmp_path):
    one, two = package(tmp_path, "intel-rapl:0", 5_000_000), package(tmp_path, "intel-rapl:1", 1_000_000)
    core = package(tmp_path, "intel-rapl:0:0", 0)
    counter = PackageEnergyCounter.try_open(str(tmp_path))
    (one / "energy_uj").write_text("6000000")
    (two / "energy_uj").write_text("3500000")
    (core / "energy_uj").write_text("900000")
    assert counter.read_energy_j() == 3.5


def test_the_zone_of_the_whole_machine_is_not_added_to_the_packages_in_it(tmp_path):
    one, whole = package(tmp_path, "intel-rapl:0", 0), package(tmp_path, "intel-rapl:1", 0, title="psys")
    counter = PackageEnergyCounter.try_open(str(tmp_path))
    (one / "energy_uj").write_text("1000000")
    (whole / "energy_uj").write_text("3000000")
    assert counter.read_energy_j() == 1.0


def test_a_counter_that_wraps_around_is_followed(tmp_path):
    folder = package(tmp_path, "intel-rapl:0", 9_000_000)
    counter = PackageEnergyCounter.try_open(str(tmp_path))
    (folder / "energy_uj").write_text("500000")
    assert counter.read_energy_j() == 1.5
    (folder / "energy_uj").write_text("600000")
    assert counter.try_read_energy_j() == 1.6


def test_a_counter_that_wraps_around_more_than_once_is_followed(tmp_path, monkeypatch):
    folder, read = package(tmp_path, "intel-rapl:0", 1_000_000), threading.Event()
    counter = PackageEnergyCounter.try_open(str(tmp_path))
    look = counter.try_read_energy_j
    monkeypatch.setattr(counter, "try_read_energy_j", lambda: (look(), read.set()))

    with counter.follow(1e-3):
        for microjoules in (8_000_000, 5_000_000, 2_000_000):  # 7 J more each, of a range of 10 J
            (folder / "new").write_text(str(microjoules))
            (folder / "new").replace(folder / "energy_uj")
            for _ in range(2):  # the first of two readings may have begun before
                read.clear()
                assert read.wait(10.0)

    assert counter.read_energy_j() == pytest.approx(21.0)


def test_a_machine_without_counters_has_none(tmp_path):
    assert PackageEnergyCounter.try_open(str(tmp_path)) is None
    (tmp_path / RAPL_FOLDER / "intel-rapl:0").mkdir(parents=True)
    assert PackageEnergyCounter.try_open(str(tmp_path)) is None


def test_a_counter_that_goes_away_is_not_read_as_zero(tmp_path):
    folder = package(tmp_path, "intel-rapl:0", 1)
    counter = PackageEnergyCounter.try_open(str(tmp_path))
    (folder / "energy_uj").unlink()
    assert counter.try_read_energy_j() is None
