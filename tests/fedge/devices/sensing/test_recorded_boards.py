"""Every recorded board's sensors are read as they are documented, with a kernel's manners."""

import pytest
from contracts import jetsons
from contracts.jetsons.kernel import KernelMachine, lost_sensor

from fedge.clock import SimulatedClock
from fedge.devices import catalogue
from fedge.devices.sensing.sysfs_sensor import SysfsSensor
from fedge.errors import SensorLost

pytestmark = pytest.mark.parametrize("name", jetsons.BOARDS)


def _wanted(name: str) -> str:
    return catalogue.find(jetsons.board(name).catalogue, where="test").total_power


def test_the_sensors_read_what_is_on_record(tmp_path, name):
    board, machine = jetsons.board(name), KernelMachine(str(jetsons.build(name, tmp_path)))
    zones = {zone.name: zone.milli_c / 1e3 for zone in board.zones if not zone.again}
    sensor = SysfsSensor(machine, SimulatedClock(), _wanted(name))

    sample = sensor.read()

    assert sensor.total_power == board.total == _wanted(name)
    assert SysfsSensor(machine, SimulatedClock()).total_power == board.total, "found without a formula"
    assert tuple(sample.rails_w) == board.labels
    assert sample.total_w == pytest.approx(board.total_w, abs=0.002)
    assert sample.temperatures_c == {zone: at_c for zone, at_c in zones.items() if not zone.startswith("PMIC")}
    assert sample.hottest_c == max(sample.temperatures_c.values()) < 60
    assert sample.gpu_load == pytest.approx(board.gpu.load_permille / 1000)
    assert sample.gpu_mhz in {hz / 1e6 for hz in board.gpu_hz}
    assert sample.cpu_mhz in {khz / 1e3 for khz in board.cpu_khz}
    assert sample.mem_mhz in {hz / 1e6 for hz in board.emc_hz}
    assert (sample.throttle_events is None) == board.jetpack4


def test_a_lost_power_monitor_is_a_loss_and_comes_back(tmp_path, name):
    machine = KernelMachine(str(jetsons.build(name, tmp_path)))
    sensor = SysfsSensor(machine, SimulatedClock(), _wanted(name))
    before = sensor.read()

    machine.plant(lost_sensor("*/ina3221*/*_input"))
    with pytest.raises(SensorLost, match="cannot be read"):
        sensor.read()
    machine.plant()

    assert sensor.read() == before
