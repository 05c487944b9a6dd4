"""tegrastats as a sensor: a stand-in program below a root prints lines of the known form; made-up values."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contracts.power_sensor import PowerSensorContract, Rig
from contracts.processes import wait_for

from fedge.clock import RealClock, SimulatedClock
from fedge.devices.sensing import OpenSensor, open_sensor
from fedge.devices.sensing import latest_sample as arrival_module
from fedge.devices.sensing.tegrastats_sensor import TegrastatsSensor
from fedge.errors import SensorLost
from fedge.powerd.machine import Machine
from fedge.types import SensorSample

LINE = (
    "03-04-2024 10:00:01 RAM 2000/15656MB (lfb 54x4MB) SWAP 0/7828MB (cached 0MB) CPU [3%@729,0%@1984,off,off] "
    "EMC_FREQ 2%@2133 GR3D_FREQ 34%@[612,305] PMIC@100C cv0@-256C cpu@47.5C gpu@46C {}"
)
RAILS = "VDD_IN 6000mW/5900mW VDD_CPU_GPU_CV 1500mW/1500mW VDD_SOC 1250mW/1250mW NC 0mW/0mW"
SHOWING = 'while :; do cat "$FOLDER/line" 2>/dev/null; sleep 0.02; done'


def install(root: Path, script: str, line: str = LINE.format(RAILS)) -> Machine:
    """A program of the root that prints what lies in ``line``."""
    program = root / "usr/bin/tegrastats"
    program.parent.mkdir(parents=True, exist_ok=True)
    (root / "line").write_text(f"{line}\n", encoding="ascii")
    program.write_text(
        f'#!/bin/sh\nFOLDER={shlex.quote(str(root))}\necho "$@" > "$FOLDER/asked"\n{script}\n', encoding="ascii"
    )
    program.chmod(0o755)
    return Machine(str(root))


def show(root: Path, line: str) -> None:
    (root / "next").write_text(f"{line}\n", encoding="ascii")
    (root / "next").replace(root / "line")


class TegrastatsRig(Rig):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = install(root, SHOWING)
        self.sensor = self.again(None)

    def again(self, total_power: str | None) -> OpenSensor:
        return TegrastatsSensor(self.machine, RealClock(), total_power)

    def lose(self) -> None:
        show(self.root, LINE.format("VDD_SOC 1250mW/1250mW"))

    def mend(self) -> None:
        show(self.root, LINE.format(RAILS))


class TestTegrastatsSensor(PowerSensorContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[Rig]:
        rig = TegrastatsRig(tmp_path)
        yield rig
        rig.sensor.close()


def test_the_interval_is_passed_on_in_milliseconds(tmp_path: Path) -> None:
    sensor = TegrastatsSensor(install(tmp_path, SHOWING), RealClock(), interval_ms=250)
    sensor.close()

    assert (tmp_path / "asked").read_text().split() == ["--interval", "250"]
    assert sensor.interval_s == 0.25


def test_closing_ends_the_program(tmp_path: Path) -> None:
    sensor = TegrastatsSensor(install(tmp_path, SHOWING), RealClock())
    process = sensor._process
    assert process is not None
    assert process.poll() is None

    sensor.close()

    assert process.poll() is not None


def test_a_program_that_ended_is_a_loss_with_its_exit_code_and_is_started_anew(tmp_path: Path) -> None:
    machine = install(tmp_path, 'cat "$FOLDER/line"; read wait < "$FOLDER/go"; exit 3')
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    sensor = TegrastatsSensor(machine, RealClock())
    first = sensor._process
    assert first is not None
    fifo.write_text("\n")
    first.wait(10.0)

    faults = []

    def came_back() -> bool:
        try:
            sensor.read()
        except SensorLost as lost:
            faults.append(str(lost))
        return sensor._process is not first

    wait_for(came_back)
    assert sensor.read().total_w == pytest.approx(6.0)
    assert all("exit code 3" in fault for fault in faults)
    sensor.close()


@pytest.mark.parametrize(
    ("script", "line", "message"),
    [
        (SHOWING, LINE.format(""), "its lines hold no power; newer releases print it to root only"),
        (SHOWING, "no such device", "its lines hold no power"),
        ("exit 1", "", "it ended with exit code 1; try .*tegrastats --interval 100 by hand"),
    ],
)
def test_a_program_that_shows_no_power_is_refused(tmp_path: Path, script: str, line: str, message: str) -> None:
    with pytest.raises(SensorLost, match=message):
        TegrastatsSensor(install(tmp_path, script, line), RealClock())


def test_a_machine_without_the_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SensorLost, match=r"no tegrastats in /usr/sbin, /usr/bin.*is this a Jetson"):
        open_sensor("tegrastats", Machine(str(tmp_path)), RealClock())


def test_a_line_that_is_too_old_is_a_loss() -> None:
    clock = SimulatedClock()
    arrival = arrival_module.LatestSample("tegrastats", clock, 0.1)
    arrival.put(SensorSample(0.0, 5.0))
    clock.sleep_s(1.9)
    assert arrival.wait_for_sample().total_w == 5.0

    clock.sleep_s(0.2)

    with pytest.raises(SensorLost, match=r"its last sample is 2\.1 s old; it hangs"):
        arrival.wait_for_sample()


def test_nothing_at_all_is_a_loss_after_the_limit() -> None:
    with pytest.raises(SensorLost, match=r"tegrastats: no sample within 0\.01 s"):
        arrival_module.LatestSample("tegrastats", SimulatedClock(), 0.1).wait_for_sample(0.01)


@pytest.mark.parametrize(("said", "load"), [("EMC_FREQ 2%@2133 ", 0.02), ("EMC_FREQ @2133 ", None), ("", None)])
def test_the_memorys_load_is_what_the_line_says(tmp_path: Path, said: str, load: float | None) -> None:
    line = LINE.format(RAILS).replace("EMC_FREQ 2%@2133 ", said)
    sensor = TegrastatsSensor(install(tmp_path, SHOWING, line), RealClock())

    assert sensor.read().mem_load == load
    sensor.close()


def test_two_threads_start_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = TegrastatsSensor(install(tmp_path, SHOWING), RealClock())
    sensor.close()
    real, started, both = subprocess.Popen, [], threading.Event()

    def popen(*arguments: Any, **more: Any) -> Any:
        started.append(real(*arguments, **more))
        if len(started) > 1:
            both.set()
        both.wait(0.3)  # as long as another thread needs to come in, where it may
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    threads = [threading.Thread(target=sensor.read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    sensor.close()
    for process in started:
        process.kill()

    assert len(started) == 1
