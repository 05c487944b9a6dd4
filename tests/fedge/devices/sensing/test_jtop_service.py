"""The real client of jetson-stats against its own service, which reads a recorded board's power chips.

Not run here: the service's temperatures, clocks and loads (they need a Jetson's files at their places), its systemd
unit and its group of users.
"""

import importlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracts import jtop_service
from contracts.power_sensor import HWMON, ORIN_NX, plant
from contracts.processes import wait_for

from fedge.clock import RealClock
from fedge.devices.sensing import open_sensor
from fedge.devices.sensing.auto_sensor import AutoSensor
from fedge.devices.sensing.jtop_sensor import JtopSensor
from fedge.powerd.machine import Machine

VERSIONS = (pytest.param("4.3.2", marks=pytest.mark.long), "7.2.2")
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="the jtop service runs as root only")


@pytest.fixture(scope="module", params=VERSIONS)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an unpacked jetson-stats with what it imports; its installer is not run."""
    folder = tmp_path_factory.mktemp("jtop")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    wanted = f"jetson-stats=={request.param}"
    source = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")  # its own setup tools need no download
    fetch = [*pip, "download", *source, "--dest", str(folder), wanted]
    if subprocess.run(fetch, capture_output=True, check=False).returncode:
        pytest.skip(f"{wanted} cannot be fetched: no package index")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    unpacked = next(path for path in folder.iterdir() if path.is_dir())
    needed = [*pip, "install", "--no-deps", "--target", str(unpacked), "distro", "smbus2"]
    subprocess.run(needed, capture_output=True, check=True)
    return unpacked


@pytest.fixture
def service(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run the service on a recorded Orin NX, let the client find it, and return the recorded tree."""
    tree, socket = tmp_path / "tree", tmp_path / "tree" / "run" / "jtop.sock"
    plant(tree, ORIN_NX)
    chip = (tree / HWMON).parent.parent
    (chip / "name").write_text("ina3221\n")
    devices = tree / "sys" / "bus" / "i2c" / "devices"
    devices.mkdir(parents=True)
    (devices / chip.name).symlink_to(chip)
    socket.parent.mkdir()
    words = [sys.executable, jtop_service.__file__, str(package), str(socket), str(tree)]
    with (tmp_path / "service.log").open("w") as log:
        running = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "jtop"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setattr(importlib.import_module("jtop.service"), "JTOP_PIPE", str(socket))
    try:
        wait_for(lambda: "service ready" in (tmp_path / "service.log").read_text() or socket.exists())
        yield tree
    finally:
        os.killpg(running.pid, 9)
        running.wait()
        for name in [name for name in sys.modules if name.partition(".")[0] == "jtop"]:
            del sys.modules[name]


def test_the_total_of_the_service_is_the_input_rail(service):
    sensor = JtopSensor(Machine(str(service)), RealClock(), "VDD_IN")

    sample = sensor.read()
    sensor.close()

    assert sensor.total_power == "VDD_IN"
    assert sample.total_w == pytest.approx(6.0)
    assert sample.rails_w == pytest.approx({"VDD_IN": 6.0, "VDD_CPU_GPU_CV": 1.5, "VDD_SOC": 1.25})


def test_a_change_of_the_board_arrives_within_two_intervals(service):
    sensor = JtopSensor(Machine(str(service)), RealClock(), "VDD_IN")
    before = sensor.read()
    (service / HWMON / "curr1_input").write_text("2400")

    wait_for(lambda: sensor.read().total_w > before.total_w)
    sensor.close()


def test_auto_takes_the_service_if_it_agrees_with_the_files(service):
    sensor = open_sensor("auto", Machine(str(service)), RealClock(), "VDD_IN")
    sensor.close()

    assert isinstance(sensor, AutoSensor)
    assert sensor.name == "jtop", sensor.reason
    assert "agrees with the kernel's files" in sensor.notes[0]
    assert sensor.interval_s == 0.5


def test_auto_takes_the_files_if_the_service_says_otherwise(service):
    plant(other := service / "other", ORIN_NX)
    (other / HWMON / "curr1_input").write_text("2000")
    (other / "run").mkdir()
    (other / "run" / "jtop.sock").symlink_to(service / "run" / "jtop.sock")

    sensor = open_sensor("auto", Machine(str(other)), RealClock(), "VDD_IN")
    sample = sensor.read()
    sensor.close()

    assert isinstance(sensor, AutoSensor)
    assert (sensor.name, sample.total_w) == ("sysfs", pytest.approx(10.0))
    assert "differs by 40%" in sensor.reason


def test_auto_takes_the_files_where_no_service_is(tmp_path):
    plant(tmp_path, ORIN_NX)

    sensor = open_sensor("auto", Machine(str(tmp_path)), RealClock(), "VDD_IN")
    sensor.close()

    assert isinstance(sensor, AutoSensor)
    assert (sensor.name, sensor.interval_s) == ("sysfs", 0.0)
    assert "no jtop service" in sensor.notes[0]
