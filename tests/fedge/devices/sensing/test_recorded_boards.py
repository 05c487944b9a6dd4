"""Every recorded board's sensors are read as they are documented, with a kernel's manners."""

from __future__ import annotations

from pathlib import Path

import pytest
from contracts import jetsons
from contracts.jetsons.kernel import KernelMachine, lost_sensor

from fedge.clock import SimulatedClock
from fedge.devices import catalogue
from fedge.devices.sensing.sysfs_sensor import SysfsSensor
from fedge.errors import SensorLost
from fedge.powerd.machine import Machine

pytestmark = pytest.mark.parametrize("name", jetsons.BOARDS)


def _wanted(name: str) -> str:
    return catalogue.find(jetsons.board(name).catalogue, where="test").total_power


def test_the_total_is_the_catalogues_and_its_rails_are_the_boards(tmp_path: Path, name: str) -> None:
    board = jetsons.board(name)
    sensor = SysfsSensor(Machine(str(jetsons.build(name, tmp_path))), SimulatedClock(), _wanted(name))

    sample = sensor.read()

    assert sensor.total_power == board.total == _wanted(name)
    assert tuple(sample.rails_w) == board.labels
    assert sample.total_w == pytest.approx(board.total_w, abs=0.002)


def test_without_a_formula_the_same_total_is_found(tmp_path: Path, name: str) -> None:
    sensor = SysfsSensor(Machine(str(jetsons.build(name, tmp_path))), SimulatedClock())

    assert sensor.total_power == _wanted(name)


def test_zones_that_are_asleep_and_fixed_ones_are_left_out(tmp_path: Path, name: str) -> None:
    machine = KernelMachine(str(jetsons.build(name, tmp_path)))
    zones = {zone.name: zone.milli_c / 1e3 for zone in jetsons.board(name).zones if not zone.again}

    sample = SysfsSensor(machine, SimulatedClock()).read()

    assert sample.temperatures_c == {zone: at_c for zone, at_c in zones.items() if not zone.startswith("PMIC")}
    assert sample.hottest_c is not None
    assert sample.hottest_c < 60


def test_clocks_load_and_counters_are_read(tmp_path: Path, name: str) -> None:
    board = jetsons.board(name)
    sample = SysfsSensor(Machine(str(jetsons.build(name, tmp_path))), SimulatedClock()).read()

    assert sample.gpu_load == pytest.approx(board.gpu.load_permille / 1000)
    assert sample.gpu_mhz in {hz / 1e6 for hz in board.gpu_hz}
    assert sample.cpu_mhz in {khz / 1e3 for khz in board.cpu_khz}
    assert sample.mem_mhz in {hz / 1e6 for hz in board.emc_hz}
    assert (sample.throttle_events is None) == board.jetpack4


def test_a_lost_power_monitor_is_a_loss_and_comes_back(tmp_path: Path, name: str) -> None:
    machine = KernelMachine(str(jetsons.build(name, tmp_path)))
    sensor = SysfsSensor(machine, SimulatedClock(), _wanted(name))
    before = sensor.read()

    machine.plant(lost_sensor("*/ina3221*/*_input"))
    with pytest.raises(SensorLost, match="cannot be read"):
        sensor.read()
    machine.plant()

    assert sensor.read() == before
