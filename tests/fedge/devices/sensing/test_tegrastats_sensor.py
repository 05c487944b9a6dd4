"""tegrastats as a sensor, with fake programs, and its lines as JetPack 3 to 7 print them."""

import math
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
from hypothesis import example, given
from hypothesis import strategies as st

from fedge.clock import RealClock, SimulatedClock
from fedge.devices.sensing import OpenSensor, open_sensor
from fedge.devices.sensing import sampler as arrival_module
from fedge.devices.sensing.tegrastats_sensor import TegrastatsSensor, parse_line, parse_rails_mw
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


def test_the_interval_is_passed_on_in_milliseconds(tmp_path):
    sensor = TegrastatsSensor(install(tmp_path, SHOWING), RealClock(), interval_ms=250)
    sensor.close()

    assert (tmp_path / "asked").read_text().split() == ["--interval", "250"]
    assert sensor.interval_s == 0.25


def test_closing_ends_the_program(tmp_path):
    sensor = TegrastatsSensor(install(tmp_path, SHOWING), RealClock())
    process = sensor._process
    assert process.poll() is None

    sensor.close()

    assert process.poll() is not None


def test_a_program_that_ended_is_a_loss_with_its_exit_code_and_is_started_anew(tmp_path):
    machine = install(tmp_path, 'cat "$FOLDER/line"; read wait < "$FOLDER/go"; exit 3')
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    sensor = TegrastatsSensor(machine, RealClock())
    first = sensor._process
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
def test_a_program_that_shows_no_power_is_refused(tmp_path, script, line, message):
    with pytest.raises(SensorLost, match=message):
        TegrastatsSensor(install(tmp_path, script, line), RealClock())


def test_a_machine_without_the_program_is_refused(tmp_path):
    with pytest.raises(SensorLost, match=r"no tegrastats in /usr/sbin, /usr/bin.*is this a Jetson"):
        open_sensor("tegrastats", Machine(str(tmp_path)), RealClock())


def test_a_line_that_is_too_old_is_a_loss():
    clock = SimulatedClock()
    arrival = arrival_module.LatestSample("tegrastats", clock, 0.1)
    arrival.put(SensorSample(0.0, 5.0))
    clock.sleep_s(1.9)
    assert arrival.wait_for_sample().total_w == 5.0

    clock.sleep_s(0.2)

    with pytest.raises(SensorLost, match=r"its last sample is 2\.1 s old; it hangs"):
        arrival.wait_for_sample()


def test_nothing_at_all_is_a_loss_after_the_limit():
    with pytest.raises(SensorLost, match=r"tegrastats: no sample within 0\.01 s"):
        arrival_module.LatestSample("tegrastats", SimulatedClock(), 0.1).wait_for_sample(0.01)


@pytest.mark.parametrize(("said", "load"), [("EMC_FREQ 2%@2133 ", 0.02), ("EMC_FREQ @2133 ", None), ("", None)])
def test_the_memorys_load_is_what_the_line_says(tmp_path, said, load):
    line = LINE.format(RAILS).replace("EMC_FREQ 2%@2133 ", said)
    sensor = TegrastatsSensor(install(tmp_path, SHOWING, line), RealClock())

    assert sensor.read().mem_load == load
    sensor.close()


def test_two_threads_start_one_program(tmp_path, monkeypatch):
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


NANO = (
    "RAM 1500/3956MB (lfb 12x4MB) SWAP 10/1978MB (cached 0MB) IRAM 0/252kB(lfb 252kB) CPU [12%@1479,4%@1428,off,off] "
    "EMC_FREQ 8%@1600 GR3D_FREQ 37%@921 APE 25 PLL@39C CPU@41.5C PMIC@100C GPU@38C AO@45.5C thermal@40.25C "
    "POM_5V_IN 4940/2500 POM_5V_GPU 10/20 POM_5V_CPU 400/410"
)
XAVIER = (
    "RAM 1903/31919MB (lfb 6000x4MB) SWAP 0/15959MB (cached 0MB) CPU [1%@1190,2%@1190,off,off,off,off,off,off] "
    "EMC_FREQ 0% GR3D_FREQ 0% AO@32.5C GPU@32C Tboard@32C Tdiode@34.75C AUX@31.5C CPU@33.5C thermal@32.9C PMIC@100C "
    "GPU 50/10 CPU 200/210 SOC 300/310 CV 0/0 VDDRQ 100/110 SYS5V 400/410"
)
ORIN = (
    "03-04-2023 10:00:01 RAM 4722/30536MB (lfb 5x4MB) SWAP 0/15268MB (cached 0MB) CPU [0%@729,off,off,off] "
    "EMC_FREQ 1%@2133 GR3D_FREQ 0%@[305,306] VIC_FREQ 115 APE 174 CV0@-256C CPU@47.6C Tboard@36C tj@47.656C "
    "VDD_GPU_SOC 2400mW/2400mW VDD_CPU_CV 400mW/400mW VIN_SYS_5V0 3000mW/3000mW NC 0mW/0mW "
    "VDDQ_VDD2_1V8AO 600mW/600mW NC 0mW/0mW"
)
ORIN_NANO = (
    "03-04-2024 10:00:01 RAM 2000/7620MB (lfb 54x4MB) SWAP 0/3810MB (cached 0MB) CPU [3%@1728,0%@1728,off,off] "
    "EMC_FREQ @2133 GR3D_FREQ 84%@[713] NVENC off NVDEC off OFA off APE 200 cpu@47.2C soc2@46C gpu@46.3C tj@47.9C "
    "VDD_IN 5060mW/5060mW VDD_CPU_GPU_CV 500mW/500mW VDD_SOC 1400mW/1400mW"
)
THOR = (
    "03-04-2026 10:00:01 RAM 3000/125000MB (lfb 9x4MB) CPU [0%,5%,off]@2601 EMC_FREQ @4266 GR3D_FREQ @[1574,1574,off] "
    "cpu@49.75C/49.75C tj@51.2C/51.2C VDD_GPU 6000mW/6100mW/6200mW VIN 28000mW/14000mW/28000mW"
)
TX2_OLD = "RAM 2136/7846MB (lfb 1157x4MB) cpu [0%@345,off,off,7%@345] EMC 3%@1600 APE 150 GR3D 12%@114 VDD_IN 1913/1913"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NANO, {"cpu_mhz": 1479, "mem_load": 0.08, "mem_mhz": 1600, "gpu_load": 0.37, "gpu_mhz": 921}),
        (NANO, {"rails_w": {"POM_5V_IN": 4.94, "POM_5V_GPU": 0.01, "POM_5V_CPU": 0.4}}),
        (NANO, {"temperatures_c": {"PLL": 39, "CPU": 41.5, "PMIC": 100, "GPU": 38, "AO": 45.5, "thermal": 40.25}}),
        (XAVIER, {"mem_load": 0, "mem_mhz": None, "gpu_load": 0, "gpu_mhz": None}),
        (XAVIER, {"rails_w": {"GPU": 0.05, "CPU": 0.2, "SOC": 0.3, "CV": 0, "VDDRQ": 0.1, "SYS5V": 0.4}}),
        (ORIN, {"gpu_load": 0, "gpu_mhz": 306}),
        (ORIN, {"temperatures_c": {"CV0": -256, "CPU": 47.6, "Tboard": 36, "tj": 47.656}}),
        (ORIN, {"rails_w": {"VDD_GPU_SOC": 2.4, "VDD_CPU_CV": 0.4, "VIN_SYS_5V0": 3.0, "VDDQ_VDD2_1V8AO": 0.6}}),
        (ORIN_NANO, {"mem_load": None, "mem_mhz": 2133, "gpu_load": 0.84, "gpu_mhz": 713}),
        (ORIN_NANO, {"rails_w": {"VDD_IN": 5.06, "VDD_CPU_GPU_CV": 0.5, "VDD_SOC": 1.4}}),
        (THOR, {"cpu_mhz": 2601, "gpu_load": None, "gpu_mhz": 1574}),
        (THOR, {"temperatures_c": {"cpu": 49.75, "tj": 51.2}, "rails_w": {"VDD_GPU": 6, "VIN": 28}}),
        (TX2_OLD, {"cpu_mhz": 345, "mem_load": 0.03, "mem_mhz": 1600, "gpu_load": 0.12, "gpu_mhz": 114}),
        (TX2_OLD, {"rails_w": {"VDD_IN": 1.913}}),
    ],
)
def test_the_lines_of_every_board_are_read_whole(text, expected):
    line = parse_line(text)

    assert {name: getattr(line, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "load", "mhz"),
    [
        ("GR3D_FREQ 0%@[305,305]", 0, 305),
        ("GR3D 0%@114", 0, 114),
        ("GR3D_FREQ 99%", 0.99, None),
        ("GR3D_FREQ 45%@318", 0.45, 318),
        ("GR3D_FREQ @[314,off,315]", None, 315),
        ("GR3D_FREQ @[off,off]", None, None),
        ("GR3D_FREQ off", None, None),
        ("GR3D2_FREQ 5%@3", None, None),
        ("", None, None),
    ],
)
def test_the_gpu_is_read_in_all_its_forms(text, load, mhz):
    line = parse_line(f"RAM 1/2MB {text} APE 150")

    assert (line.gpu_load, line.gpu_mhz) == (load, mhz)


def test_a_rail_is_no_memory_and_nothing_that_is_not_connected():
    assert parse_rails_mw("RAM 1/2MB IRAM 0/252kB(lfb 252kB) NC 0mW/0mW VDD_IN 4940/4941") == {"VDD_IN": 4940}


@given(st.text(alphabet=st.sampled_from(" @[]%,/mWCoff0123456789.-RAMGPU3D_FREQEMC\n")) | st.text())
@example("CPU [")
@example("GR3D_FREQ %@[]")
@example("RAM ١/٢MB CPU@١C")
def test_any_text_is_read_without_an_error(text):
    line = parse_line(text)

    assert all(math.isfinite(value) for value in (*line.temperatures_c.values(), *line.rails_w.values()))


@given(st.sampled_from([NANO, XAVIER, ORIN, ORIN_NANO, THOR]), st.integers(0, 400), st.integers(0, 100), st.text())
def test_a_damaged_line_is_read_as_far_as_it_goes(line, start, cut, put):
    damaged = parse_line(f"{line[:start]}{put}{line[start + cut :]}")

    assert all(math.isfinite(watts) and watts >= 0 for watts in damaged.rails_w.values())
    assert all(math.isfinite(at_c) for at_c in damaged.temperatures_c.values())


@given(st.dictionaries(st.from_regex(r"[A-Z][A-Z0-9_]{1,12}", fullmatch=True), st.integers(0, 200_000), max_size=8))
def test_rails_come_back_as_they_were_printed(rails_mw):
    rails_mw = {name: mw for name, mw in rails_mw.items() if name != "NC"}
    for form in ("{0} {1}/{1}", "{0} {1}mW/{1}mW", "{0} {1}mW/{1}mW/{1}mW"):
        text = " ".join(form.format(name, mw) for name, mw in rails_mw.items())

        assert parse_line(f"RAM 1/2MB {text}").rails_w == {name: mw / 1e3 for name, mw in rails_mw.items()}
