"""What every power sensor does, whatever it reads; a test class inherits it and gives a ``rig`` around its sensor.

``ORIN_NX`` and ``NANO`` are small recorded trees, path -> text, that ``plant`` makes below a folder; made-up values.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import pytest
from contracts.processes import wait_for

from fedge.devices.sensing import OpenSensor
from fedge.errors import SensorLost

HWMON = "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon4"
ORIN_NX: Mapping[str, str] = {
    f"{HWMON}/name": "ina3221",
    f"{HWMON}/in1_label": "VDD_IN",
    f"{HWMON}/in1_input": "5000",
    f"{HWMON}/curr1_input": "1200",
    f"{HWMON}/in2_label": "VDD_CPU_GPU_CV",
    f"{HWMON}/in2_input": "5000",
    f"{HWMON}/curr2_input": "300",
    f"{HWMON}/in3_label": "VDD_SOC",
    f"{HWMON}/in3_input": "5000",
    f"{HWMON}/curr3_input": "250",
    f"{HWMON}/in7_label": "sum of shunt voltages",
    f"{HWMON}/in7_input": "2",
    f"{HWMON}/curr7_input": "1",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "sys/class/thermal/thermal_zone0/temp": "47500",
    "sys/class/thermal/thermal_zone1/type": "gpu-thermal",
    "sys/class/thermal/thermal_zone1/temp": "46000",
    "sys/class/thermal/thermal_zone2/type": "cv0-thermal",
    "sys/class/thermal/thermal_zone2/temp": "-256000",
    "sys/class/devfreq/17000000.ga10b/device/of_node/name": "ga10b\0",
    "sys/class/devfreq/17000000.ga10b/device/load": "345",
    "sys/class/devfreq/17000000.ga10b/cur_freq": "612000000",
    "sys/class/devfreq/15340000.vic/device/of_node/name": "vic\0",
    "sys/class/devfreq/15340000.vic/cur_freq": "115200000",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "729600",
    "sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq": "1984000",
    "sys/kernel/debug/bpmp/debug/clk/emc/rate": "2133000000",
    "sys/class/hwmon/hwmon2/name": "soctherm_oc",
    "sys/class/hwmon/hwmon2/oc1_event_cnt": "0",
    "sys/class/hwmon/hwmon2/oc2_event_cnt": "3",
    "sys/class/hwmon/hwmon2/oc3_event_cnt": "4",
    "sys/class/hwmon/hwmon2/oc1_throt_en": "1",
}
IIO = "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
NANO: Mapping[str, str] = {
    f"{IIO}/name": "ina3221x",
    f"{IIO}/rail_name_0": "POM_5V_IN",
    f"{IIO}/in_power0_input": "2150",
    f"{IIO}/rail_name_1": "POM_5V_GPU",
    f"{IIO}/in_power1_input": "200",
    f"{IIO}/rail_name_2": "POM_5V_CPU",
    f"{IIO}/in_power2_input": "528",
    "sys/devices/virtual/thermal/thermal_zone0/type": "unused",
    "sys/class/thermal/thermal_zone0/type": "CPU-therm",
    "sys/class/thermal/thermal_zone0/temp": "37500",
    "sys/class/thermal/thermal_zone1/type": "PMIC-Die",
    "sys/class/thermal/thermal_zone1/temp": "100000",
    "sys/class/devfreq/57000000.gpu/device/of_node/name": "gpu",
    "sys/class/devfreq/57000000.gpu/device/load": "0",
    "sys/class/devfreq/57000000.gpu/cur_freq": "76800000",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1479000",
}


def plant(root: Path, tree: Mapping[str, str]) -> Path:
    """Make the tree below ``root``."""
    for path, text in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n", encoding="ascii")
    return root


class Rig(ABC):
    """A sensor and the hands on what it reads: the rails are those of ``ORIN_NX``, 6 W at VDD_IN."""

    sensor: OpenSensor

    @abstractmethod
    def lose(self) -> None:
        """Make VDD_IN unreadable."""

    @abstractmethod
    def mend(self) -> None:
        """Make it readable again, at 6 W."""

    @abstractmethod
    def again(self, total_power: str | None) -> OpenSensor:
        """One more sensor, asked for this formula."""

    def lost(self) -> bool:
        try:
            self.sensor.read()
        except SensorLost:
            return True
        return False


class PowerSensorContract:
    """A test class's ``rig`` fixture gives a fresh sensor."""

    def test_the_total_is_the_sum_of_its_rails(self, rig):
        sample = rig.sensor.read()

        assert rig.sensor.total_power == "VDD_IN"
        assert sample.total_w == pytest.approx(6.0)
        assert sample.rails_w == pytest.approx({"VDD_IN": 6.0, "VDD_CPU_GPU_CV": 1.5, "VDD_SOC": 1.25})

    def test_a_formula_is_used_when_all_its_rails_are_there(self, rig):
        sensor = rig.again("VDD_CPU_GPU_CV + VDD_SOC")

        assert sensor.total_power == "VDD_CPU_GPU_CV + VDD_SOC"
        assert sensor.read().total_w == pytest.approx(2.75)
        sensor.close()

    def test_a_formula_of_another_board_gives_way_to_the_input_rail(self, rig):
        sensor = rig.again("VDD_GPU_SOC + VDD_SOC")

        assert sensor.total_power == "VDD_IN"
        sensor.close()

    def test_temperatures_are_those_of_sensors_that_are_on(self, rig):
        sample = rig.sensor.read()

        assert sorted(sample.temperatures_c.values()) == [46.0, 47.5]
        assert sample.hottest_c == 47.5

    def test_loads_and_clocks_have_their_units(self, rig):
        sample = rig.sensor.read()

        assert sample.gpu_load == pytest.approx(0.345, abs=0.006)
        assert (sample.gpu_mhz, sample.cpu_mhz, sample.mem_mhz) == (612, 1984, 2133)

    def test_its_times_never_go_back(self, rig):
        times = [rig.sensor.read().at_s for _ in range(20)]

        assert times == sorted(times)

    def test_a_total_that_cannot_be_read_is_a_loss_that_says_what_is_missing_and_it_comes_back(self, rig):
        rig.lose()
        wait_for(rig.lost)
        with pytest.raises(SensorLost, match="VDD_IN") as lost:
            rig.sensor.read()
        assert "\n" not in str(lost.value)

        rig.mend()
        wait_for(lambda: not rig.lost())
        assert rig.sensor.read().total_w == pytest.approx(6.0)

    def test_it_can_be_closed_twice(self, rig):
        rig.sensor.close()
        rig.sensor.close()
