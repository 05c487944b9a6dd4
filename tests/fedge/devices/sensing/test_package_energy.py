"""Energy counters of a processor's packages: their sum, wrapped around, and none where none can be read."""

from __future__ import annotations

from pathlib import Path

from fedge.devices.sensing.package_energy import RAPL_FOLDER, PackageEnergyCounter


def package(root: Path, name: str, energy_uj: int, most_uj: int = 10_000_000) -> Path:
    folder = root / RAPL_FOLDER / name
    folder.mkdir(parents=True)
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{most_uj}\n")
    return folder


def test_joules_of_all_packages_are_added_and_parts_of_a_package_are_not(tmp_path: Path) -> None:
    one, two = package(tmp_path, "intel-rapl:0", 5_000_000), package(tmp_path, "intel-rapl:1", 1_000_000)
    core = package(tmp_path, "intel-rapl:0:0", 0)
    counter = PackageEnergyCounter.try_open(str(tmp_path))
    assert counter is not None
    (one / "energy_uj").write_text("6000000")
    (two / "energy_uj").write_text("3500000")
    (core / "energy_uj").write_text("900000")
    assert counter.read_energy_j() == 3.5


def test_a_counter_that_wraps_around_is_followed(tmp_path: Path) -> None:
    folder = package(tmp_path, "intel-rapl:0", 9_000_000)
    counter = PackageEnergyCounter.try_open(str(tmp_path))
    assert counter is not None
    (folder / "energy_uj").write_text("500000")
    assert counter.read_energy_j() == 1.5
    (folder / "energy_uj").write_text("600000")
    assert counter.try_read_energy_j() == 1.6


def test_a_machine_without_counters_has_none(tmp_path: Path) -> None:
    assert PackageEnergyCounter.try_open(str(tmp_path)) is None
    (tmp_path / RAPL_FOLDER / "intel-rapl:0").mkdir(parents=True)
    assert PackageEnergyCounter.try_open(str(tmp_path)) is None


def test_a_counter_that_goes_away_is_not_read_as_zero(tmp_path: Path) -> None:
    folder = package(tmp_path, "intel-rapl:0", 1)
    counter = PackageEnergyCounter.try_open(str(tmp_path))
    assert counter is not None
    (folder / "energy_uj").unlink()
    assert counter.try_read_energy_j() is None
