"""Cost of sampling a board's sensors in percent of one core, compared with parsing tegrastats from a pipe.

A sampler runs in this process against the recorded files of an AGX Orin at 1, 10 and 20 Hz while the main thread
sleeps; then the same with a stand-in for tegrastats, whose own cost is not counted. The cost is the process's CPU time,
user and system; its CPU time while it only sleeps is printed first. On a board, the reads go to drivers: an INA3221 and
the thermal sensors answer over a bus, which takes time and some system CPU that files do not.

Printed last: the error of the energy that each rate integrates, for power that jumps between two levels as a GPU does
between batches and waiting (random levels, shares, and periods of 20 ms to 1 s; generated, as recorded files do not
change). It is the worst case: a power monitor that averages between readings errs less.

    OMP_NUM_THREADS=1 python benchmarks/sampler_cost.py [SECONDS]
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedge.clock import RealClock
from fedge.devices.sensing import OpenSensor
from fedge.devices.sensing.energy_integral import integrate_energy
from fedge.devices.sensing.sampler import Sampler
from fedge.devices.sensing.sysfs_sensor import SysfsSensor
from fedge.devices.sensing.tegrastats_sensor import TegrastatsSensor
from fedge.powerd.machine import Machine
from fedge.types import SensorSample

SECONDS = 20.0
BOARD = "agx-orin-jp6"
RATES_HZ = (1, 10, 20)
ERROR_RATES_HZ, WINDOWS_S, TRIALS = (5, 10, 20), (0.5, 1.0, 10.0), 400
LIMIT_PERCENT = 1.0
TIMED_READINGS = 2000
KEPT_SAMPLES = 5000
TEGRASTATS_LINE = (
    "03-04-2024 10:00:01 RAM 4722/62800MB (lfb 5x4MB) SWAP 0/31400MB (cached 0MB) CPU [0%@729,1%@729,0%@729,2%@729,"
    "0%@1728,0%@1728,0%@1728,0%@1728,off,off,off,off] EMC_FREQ 1%@3199 GR3D_FREQ 41%@[612,612] NVENC off NVDEC off "
    "VIC off OFA off NVDLA0 off NVDLA1 off PVA0_FREQ off APE 174 cpu@48.093C soc2@45.437C soc0@46.343C gpu@44.875C "
    "tj@48.093C soc1@46.562C VDD_GPU_SOC 2400mW/2400mW VDD_CPU_CV 400mW/400mW VIN_SYS_5V0 3000mW/3000mW NC 0mW/0mW "
    "VDDQ_VDD2_1V8AO 600mW/600mW NC 0mW/0mW"
)


def build_recorded_board(folder: str) -> Machine:
    """Build the recorded board below ``folder``."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from contracts import jetsons

    return Machine(str(jetsons.build(BOARD, folder)))


def measure_cpu_percent(seconds: float) -> float:
    """Return the percentage of one core that this process uses in the next ``seconds``."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return 100 * (time.process_time() - cpu_s) / (time.perf_counter() - wall_s)


def measure_sampling(sensor: OpenSensor, hz: float, seconds: float) -> tuple[float, int]:
    """Return the percentage of one core, and the number of samples."""
    clock = RealClock()
    with Sampler(sensor, clock, hz) as sampler:
        time.sleep(0.5)
        start_s = clock.now_s()
        used = measure_cpu_percent(seconds)
        return used, sampler.energy_between(start_s, clock.now_s()).samples


def build_tegrastats_machine(root: Path, hz: int) -> Machine:
    """Return a machine whose tegrastats prints ``TEGRASTATS_LINE`` at ``hz``."""
    program = root / "usr/bin/tegrastats"
    program.parent.mkdir(parents=True, exist_ok=True)
    loop = f"while True: print({TEGRASTATS_LINE!r}, flush=True); time.sleep({1 / hz})"
    source = f"import time\n{loop}"
    program.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(source)}\n")
    program.chmod(0o755)
    return Machine(str(root))


def measure_bytes_per_sample(sensor: OpenSensor) -> float:
    """Return the bytes of memory per stored sample."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = [sensor.read() for _ in range(KEPT_SAMPLES)]
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / len(kept)


def measure_reading_us(sensor: OpenSensor) -> float:
    """Return the CPU microseconds of one reading."""
    cpu_s = time.process_time()
    for _ in range(TIMED_READINGS):
        sensor.read()
    return (time.process_time() - cpu_s) / TIMED_READINGS * 1e6


def print_energy_errors() -> None:
    """Print mean absolute and mean error of the energy of windows, by sampling rate."""
    rng = np.random.default_rng(1)
    print(f"{'window':>8}" + "".join(f"{f'{hz} Hz':>20}" for hz in ERROR_RATES_HZ))
    for window_s in WINDOWS_S:
        found = np.array([measure_energy_errors(rng, window_s) for _ in range(TRIALS)])
        columns = zip(np.abs(found).mean(axis=0), found.mean(axis=0), strict=True)
        print(f"{window_s:>6g} s" + "".join(f"{f'{size:.2%} ({bias:+.2%})':>20}" for size, bias in columns))


def measure_energy_errors(rng: np.random.Generator, window_s: float) -> list[float]:
    """Return the relative error of one window's energy at each of ``ERROR_RATES_HZ``."""
    period_s, share, high_w = 10 ** rng.uniform(-1.7, 0), rng.uniform(0.3, 0.9), rng.uniform(8, 25)
    low_w, start_s = high_w * rng.uniform(0.4, 0.9), rng.uniform(1, 2)

    def power_w(at_s: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where((at_s / period_s) % 1 < share, high_w, low_w)

    true_j = float(power_w(np.arange(start_s, start_s + window_s, 1e-4)).mean()) * window_s
    errors = list[float]()
    for hz in ERROR_RATES_HZ:
        times_s = np.arange(0, start_s + window_s + 1, 1 / hz)
        samples = [SensorSample(at, float(watts)) for at, watts in zip(times_s, power_w(times_s), strict=True)]
        window = {"start_s": start_s, "end_s": start_s + window_s, "period_s": 1 / hz}
        errors.append(integrate_energy(samples, **window, total_power="generated").energy_j / true_j - 1)
    return errors


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    print(f"{BOARD}, {seconds:g} s each; the process alone uses {measure_cpu_percent(seconds):.3f} % of a core")
    with tempfile.TemporaryDirectory() as folder:
        sensor = SysfsSensor(build_recorded_board(folder), RealClock())
        print(
            f"one look at the files: {measure_reading_us(sensor):.0f} us of CPU; a kept sample: "
            f"{measure_bytes_per_sample(sensor):.0f} B"
        )
        print(f"{'Hz':>4} {'sysfs, % of a core':>20} {'samples':>8} {'tegrastats, %':>15} {'samples':>8}")
        worst = 0.0
        for hz in RATES_HZ:
            files, count = measure_sampling(sensor, hz, seconds)
            lines = TegrastatsSensor(
                build_tegrastats_machine(Path(folder) / "t", hz), RealClock(), interval_ms=1000 // hz
            )
            parsed, parsed_count = measure_sampling(lines, hz, seconds)
            lines.close()
            print(f"{hz:>4} {files:>20.3f} {count:>8} {parsed:>15.3f} {parsed_count:>8}")
            worst = files if hz == 10 else worst
        sensor.close()
    print(f"at 10 Hz: {worst:.3f} %, {'below' if worst < LIMIT_PERCENT else 'NOT below'} {LIMIT_PERCENT:g} % of a core")
    print_energy_errors()


if __name__ == "__main__":
    main()
