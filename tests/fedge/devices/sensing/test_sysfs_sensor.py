"""The board's own sensors are read below a recorded root, whatever is missing or moves; made-up values."""

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts.power_sensor import HWMON, IIO, NANO, ORIN_NX, PowerSensorContract, Rig, plant

from fedge.clock import RealClock, SimulatedClock
from fedge.devices.sensing import OpenSensor, open_sensor
from fedge.devices.sensing.sysfs_sensor import SysfsSensor
from fedge.errors import SensorLost, UnknownName
from fedge.powerd.machine import Machine

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to count open files in")


class BoardRig(Rig):
    def __init__(self, root: Path) -> None:
        self.root = plant(root, ORIN_NX)
        self.sensor = self.again(None)

    def again(self, total_power: str | None) -> OpenSensor:
        return SysfsSensor(Machine(str(self.root)), RealClock(), total_power)

    def lose(self) -> None:
        (self.root / HWMON / "curr1_input").unlink()

    def mend(self) -> None:
        plant(self.root, {f"{HWMON}/curr1_input": "1200"})


class TestBoardSensor(PowerSensorContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[Rig]:
        rig = BoardRig(tmp_path)
        yield rig
        rig.sensor.close()


class Kernel(Machine):
    """A machine that answers some files with an error number, as drivers do."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.faults: dict[str, int] = {}

    def read(self, path: str) -> str:
        if number := self.faults.get(path):
            raise OSError(number, os.strerror(number), path)
        return super().read(path)


def _open_files(root: Path) -> list[tuple[str, str]]:
    """List the descriptors of files in a folder; other tests' are closed at any time, when they are collected."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append((link.name, str(link.readlink())))
    return sorted((number, target) for number, target in found if target.startswith(str(root)))


def _sensor(root: Path, tree: dict[str, str], total_power: str | None = None) -> SysfsSensor:
    return SysfsSensor(Machine(str(plant(root, tree))), SimulatedClock(3.0), total_power)


def test_a_nano_of_jetpack_4_has_its_power_from_iio(tmp_path):
    sensor = _sensor(tmp_path, dict(NANO))

    sample = sensor.read()

    assert sensor.total_power == "POM_5V_IN"
    assert sample.rails_w == {"POM_5V_IN": 2.15, "POM_5V_GPU": 0.2, "POM_5V_CPU": 0.528}
    assert (sample.at_s, sample.total_w, sample.gpu_load, sample.gpu_mhz, sample.cpu_mhz) == (3.0, 2.15, 0, 76.8, 1479)


def test_iio_without_a_power_file_multiplies(tmp_path):
    tree = {path: text for path, text in NANO.items() if "in_power0" not in path}
    tree |= {f"{IIO}/in_voltage0_input": "5000", f"{IIO}/in_current0_input": "430"}

    assert _sensor(tmp_path, tree).read().rails_w["POM_5V_IN"] == 2.15


@pytest.mark.parametrize(
    ("labels", "total"),
    [
        (("VDD_IN", "VIN", "POM_5V_IN"), "VIN"),
        (("VDD_IN", "GPU", "POM_5V_IN"), "POM_5V_IN"),
        (("GPU", "VDD_IN"), "VDD_IN"),
        (("GPU", "CPU"), "GPU + CPU"),
    ],
)
def test_the_input_rail_that_is_there_is_the_total(tmp_path, labels, total):
    tree = {}
    for channel, name in enumerate(labels):
        tree |= {f"{IIO}/rail_name_{channel}": name, f"{IIO}/in_power{channel}_input": "1000"}

    assert _sensor(tmp_path, tree).total_power == total


def test_a_chip_is_found_by_its_name_where_its_driver_is_not_listed(tmp_path):
    tree = {path.replace(HWMON, "sys/class/hwmon/hwmon9"): text for path, text in ORIN_NX.items()}

    assert _sensor(tmp_path, tree).read().total_w == pytest.approx(6.0)


def test_a_chip_that_comes_back_under_another_number_is_found_again(tmp_path):
    sensor = _sensor(tmp_path, dict(ORIN_NX))
    assert sensor.read().total_w == pytest.approx(6.0)

    shutil.move(tmp_path / HWMON, tmp_path / HWMON.replace("hwmon4", "hwmon1"))
    (tmp_path / HWMON.replace("hwmon4", "hwmon1") / "curr1_input").write_text("1400")

    assert sensor.read().total_w == pytest.approx(7.0)


def test_new_values_are_seen_in_files_that_stay_open(tmp_path):
    sensor = _sensor(tmp_path, dict(ORIN_NX))
    seen = []
    for ma in (1200, 900, 14_000):
        plant(tmp_path, {f"{HWMON}/curr1_input": str(ma)})
        seen.append(sensor.read().total_w)

    assert seen == pytest.approx([6.0, 4.5, 70.0])


@needs_proc
def test_a_look_opens_no_file_again(tmp_path):
    sensor = _sensor(tmp_path, dict(ORIN_NX))
    sensor.read()
    before = _open_files(tmp_path)
    for _ in range(50):
        sensor.read()

    assert _open_files(tmp_path) == before
    sensor.close()
    assert len(_open_files(tmp_path)) < len(before)


@needs_proc
def test_a_long_loss_leaks_no_file(tmp_path):
    sensor = _sensor(tmp_path, dict(ORIN_NX))
    (tmp_path / HWMON / "curr1_input").unlink()
    counts = set()
    for _ in range(30):
        with pytest.raises(SensorLost, match="its channel is gone"):
            sensor.read()
        counts.add(len(_open_files(tmp_path)))

    assert len(counts) == 1


@pytest.mark.parametrize(
    ("gone", "field"),
    [
        ("sys/class/thermal/thermal_zone1/temp", "temperatures_c"),
        ("sys/class/devfreq/17000000.ga10b/device/load", "gpu_load"),
        ("sys/class/devfreq/17000000.ga10b/cur_freq", "gpu_mhz"),
        ("sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq", "cpu_mhz"),
        ("sys/kernel/debug/bpmp/debug/clk/emc/rate", "mem_mhz"),
        ("sys/class/hwmon/hwmon2/oc3_event_cnt", "throttle_events"),
        (f"{HWMON}/curr2_input", "rails_w"),
    ],
)
@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENODEV, errno.EACCES])
def test_the_loss_of_any_other_sensor_only_leaves_it_out(tmp_path, gone, field, number):
    machine = Kernel(plant(tmp_path, ORIN_NX))
    sensor = SysfsSensor(machine, SimulatedClock(), temperatures_every_s=0.0)
    before = sensor.read()
    machine.faults[f"/{gone}"] = number

    after = sensor.read()

    fields = ("temperatures_c", "gpu_load", "gpu_mhz", "cpu_mhz", "mem_mhz", "throttle_events", "rails_w")
    assert after.total_w == before.total_w
    assert [name for name in fields if getattr(after, name) != getattr(before, name)] == [field]
    machine.faults.clear()
    assert sensor.read() == before


def test_zones_that_are_asleep_at_the_start_are_read_when_they_wake(tmp_path):
    machine = Kernel(plant(tmp_path, ORIN_NX))
    machine.faults["/sys/class/thermal/thermal_zone1/temp"] = errno.EAGAIN
    sensor = SysfsSensor(machine, SimulatedClock(), temperatures_every_s=0.0)

    assert sensor.read().temperatures_c == {"cpu-thermal": 47.5}
    machine.faults.clear()
    assert sensor.read().temperatures_c == {"cpu-thermal": 47.5, "gpu-thermal": 46.0}


def test_temperatures_are_read_once_a_second_and_power_at_every_look(tmp_path):
    clock, seen = SimulatedClock(), []
    sensor = SysfsSensor(Machine(str(plant(tmp_path, ORIN_NX))), clock)
    for i in range(22):
        tree = {"sys/class/thermal/thermal_zone0/temp": str(50_000 + 1000 * i), f"{HWMON}/curr1_input": str(1000 + i)}
        plant(tmp_path, tree)
        seen.append(sensor.read())
        clock.sleep_s(0.1001)

    assert {sample.hottest_c for sample in seen} == {50.0, 60.0, 70.0}
    assert len({sample.total_w for sample in seen}) == 22


def test_a_cluster_whose_cores_went_off_and_on_is_read_again(tmp_path):
    sensor = _sensor(tmp_path, dict(ORIN_NX))
    policy = tmp_path / "sys/devices/system/cpu/cpufreq/policy4"
    seen = [sensor.read().cpu_mhz]
    shutil.rmtree(policy)
    seen.append(sensor.read().cpu_mhz)
    plant(tmp_path, {"sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq": "1344000"})
    seen.append(sensor.read().cpu_mhz)

    assert seen == [1984, 729.6, 1344]


def test_the_error_of_a_lost_rail_names_its_cause(tmp_path):
    machine = Kernel(plant(tmp_path, ORIN_NX))
    sensor = SysfsSensor(machine, SimulatedClock(), temperatures_every_s=0.0)
    machine.faults[f"/{HWMON}/in1_input"] = errno.EIO

    with pytest.raises(SensorLost, match=r"the total VDD_IN cannot be read \(VDD_IN: .*Input/output error.*dmesg"):
        sensor.read()


def test_a_machine_without_a_power_monitor_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(SensorLost, match=r"no power rail found: looked for INA3221 .* check that this is a Jetson"):
        _sensor(tmp_path, {})


def test_what_a_board_does_not_show_is_noted(tmp_path):
    sensor = _sensor(tmp_path, dict(NANO), "VDD_IN")

    assert sensor.notes == (
        "its rails are POM_5V_IN, POM_5V_GPU, POM_5V_CPU: the total is POM_5V_IN, not VDD_IN",
        "no memory clock: it lies in /sys/kernel/debug, which only root can read",
        "no over-current counters (hwmon soctherm_oc): throttling is not seen",
    )


def test_throttle_counters_are_added_up(tmp_path):
    assert _sensor(tmp_path, dict(ORIN_NX)).read().throttle_events == 7


def test_a_sensor_is_found_by_its_name(tmp_path):
    machine = Machine(str(plant(tmp_path, ORIN_NX)))

    assert isinstance(open_sensor("sysfs", machine, SimulatedClock()), SysfsSensor)
    with pytest.raises(UnknownName, match="known: auto, jtop, nvml, sysfs, tegrastats"):
        open_sensor("ina", machine, SimulatedClock())


def test_two_threads_never_look_at_once(tmp_path):
    sensor, inside, most = _sensor(tmp_path, dict(ORIN_NX)), [0], [0]
    look = sensor._rails["VDD_IN"]
    both = threading.Event()

    def watched() -> float:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        if inside[0] > 1:
            both.set()
        both.wait(0.3)  # as long as another thread needs to come in, where it may
        inside[0] -= 1
        return look()

    sensor._rails["VDD_IN"] = watched
    threads = [threading.Thread(target=sensor.read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)

    assert most == [1]


def test_closing_waits_for_the_look_of_another_thread(tmp_path):
    sensor = _sensor(tmp_path, dict(ORIN_NX))
    look, looking, closed = sensor._rails["VDD_IN"], threading.Event(), threading.Event()

    def slow() -> float:
        looking.set()
        closed.wait(0.3)  # as long as the closing needs to come in, where it may
        return look()

    sensor._rails["VDD_IN"] = slow
    thread = threading.Thread(target=sensor.read)
    thread.start()
    assert looking.wait(10.0)
    sensor.close()
    closed.set()
    thread.join(10.0)

    assert [held for files in (sensor._files, sensor._rail_files) for held in files._held if held._file] == []
