"""Cost of sampling a board's sensors in percent of one core, and the error of the energy by rate.

A sampler runs in this process against the recorded files of an AGX Orin at 1, 10 and 20 Hz while the main thread
sleeps. The cost is the process's CPU time, user and system; its CPU time while it only sleeps is printed first. On a
board, the reads go to drivers: an INA3221 and the thermal sensors answer over a bus, which takes time and some system
CPU that files do not.

Printed last: the error of the energy that each rate integrates, for power that jumps between two levels as a GPU does
between batches and waiting (random levels, shares, and periods of 20 ms to 1 s; generated, as recorded files do not
change). It is the worst case: a power monitor that averages between readings errs less.

    OMP_NUM_THREADS=1 python benchmarks/sampler_cost.py [SECONDS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedge.clock import RealClock
from fedge.devices.sensing import OpenSensor
from fedge.devices.sensing.energy_integral import integrate_energy
from fedge.devices.sensing.sampler import Sampler
from fedge.devices.sensing.sysfs_sensor import SysfsSensor
from fedge.powerd.machine import Machine
from fedge.types import SensorSample

SECONDS = 20.0
BOARD = "agx-orin-jp6"
RATES_HZ = (1, 10, 20)
ERROR_RATES_HZ, WINDOWS_S, TRIALS = (5, 10, 20), (0.5, 1.0, 10.0), 400
LIMIT_PERCENT = 1.0


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
        print(f"{'Hz':>4} {'sysfs, % of a core':>20} {'samples':>8}")
        worst = 0.0
        for hz in RATES_HZ:
            files, count = measure_sampling(sensor, hz, seconds)
            print(f"{hz:>4} {files:>20.3f} {count:>8}")
            worst = files if hz == 10 else worst
        sensor.close()
    print(f"at 10 Hz: {worst:.3f} %, {'below' if worst < LIMIT_PERCENT else 'NOT below'} {LIMIT_PERCENT:g} % of a core")
    print_energy_errors()


if __name__ == "__main__":
    main()
