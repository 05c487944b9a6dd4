"""Settled measurements against a fixed number of steps: error to the emulated truth, and seconds per mode.

    python benchmarks/profiling.py [MODES] [SEED]

Rules: `settled` (fedge profile's), `measure_fixed_steps` (40 steps, the first dropped, as for the published tables),
`wait 3 s` (three seconds of work first, then the same 40). Boards: `emulated` as in docs/explanation/emulation.md,
whose only transient is the warm-up; and `build_settling_bench`, the same truth with an assumed transient after every
change of mode: the first step takes 3 times as long, times fall to their level with a time constant of 1.5 s from 8 %
above it, power rises to its level within 1 s from 25 % below, one step in a hundred takes 15 to 50 % longer, 3 %
jitter with correlation 0.3 from one to the next. Both rules measure the same kinds of chunks on the same board.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from fedge.characterisation.mode_measurement import (
    ProfilingBench,
    build_emulated_bench,
    count_chunk_steps,
    measure_mode,
)
from fedge.characterisation.stability import StabilityRule
from fedge.clock import SimulatedClock
from fedge.predictors.explorers import load_explorer
from fedge.seeds import make_generator
from fedge.types import Measurement, PowerMode

BOARDS = ("agx-orin-64gb", "orin-nano", "nano")
WORKLOAD = "resnet18-imagenet"
FIXED_STEPS = 40
WAIT_S = 3.0
JITTER_SD, CORRELATION = 0.03, 0.3
RULES = ("settled", "fixed", "wait 3 s")


class SettlingBoard:
    """A device with another one's truth, whose step times and power take a while to settle after a change of mode."""

    def __init__(self, bench: ProfilingBench, seed: int) -> None:
        self.spec, self.clock = bench.device.spec, SimulatedClock()
        self.truth, self._seed = build_truth(bench), seed
        self._mode = bench.knowledge.maxn

    def idle_w(self, mode: PowerMode) -> float:
        return 0.0

    @contextmanager
    def use_mode(self, mode: PowerMode) -> Iterator[None]:
        found, self._mode = self._mode, mode
        self._rng = make_generator(self._seed, "settling", str(mode))
        self._since_s, self._before, self._first = 0.0, 0.0, True
        yield
        self._mode = found

    def measure(self, workload, steps, work, limit_s=None) -> Measurement:
        seconds = joules = 0.0
        done = 0
        while done < steps and (done == 0 or limit_s is None or seconds < limit_s):
            step_s, power_w = self._minibatch()
            seconds, joules, done = seconds + step_s, joules + step_s * power_w, done + 1
        self.clock.sleep_s(seconds)
        return Measurement(self._mode, done, seconds / done, joules / seconds)

    def _minibatch(self) -> tuple[float, float]:
        true_s, true_w = self.truth(self._mode)
        fresh = self._rng.standard_normal() * math.sqrt(1 - CORRELATION**2)
        self._before = CORRELATION * self._before + fresh
        step_s = true_s * (1 + 0.08 * math.exp(-self._since_s / 1.5)) * math.exp(JITTER_SD * self._before)
        step_s *= 3.0 if self._first else 1.0
        step_s *= self._rng.uniform(1.15, 1.5) if self._rng.random() < 0.01 else 1.0
        power_w = true_w * (1 - 0.25 * math.exp(-self._since_s)) * math.exp(JITTER_SD * self._rng.standard_normal())
        self._since_s, self._first = self._since_s + step_s, False
        return step_s, power_w


def build_truth(bench: ProfilingBench) -> Callable[[PowerMode], tuple[float, float]]:
    """Return seconds per step and watts of a mode, without noise."""
    surface = bench.device.surface

    def truth(mode: PowerMode) -> tuple[float, float]:
        row = surface.find_row(mode)
        return float(surface.step_s[row]), float(surface.power_w[row])

    return truth


def build_settling_bench(bench: ProfilingBench, seed: int) -> ProfilingBench:
    """Return the same bench with a board that takes a while to settle."""
    board = SettlingBoard(bench, seed)
    return replace(bench, device=board, clock=board.clock, idle_for=board.clock.sleep_s, temperature_c=lambda: None)


def measure_fixed_steps(bench: ProfilingBench, mode: PowerMode, wait_s: float) -> tuple[float, float, float]:
    """Return median seconds per step and mean watts of 40 steps after the first, and the seconds of the measurement."""
    begin_s = bench.clock.now_s()
    with bench.device.use_mode(mode):
        step_s = bench.device.measure(bench.workload, 1, bench.work).step_s
        while bench.clock.now_s() - begin_s < wait_s:
            step_s = bench.device.measure(bench.workload, count_chunk_steps(step_s, StabilityRule()), bench.work).step_s
        seen: list[Measurement] = []
        while (left := FIXED_STEPS - 1 - sum(one.steps for one in seen)) > 0:
            seen.append(
                bench.device.measure(bench.workload, min(left, count_chunk_steps(step_s, StabilityRule())), bench.work)
            )
            step_s = seen[-1].step_s
    times = np.repeat([one.step_s for one in seen], [one.steps for one in seen])
    power_w = sum(one.work_j for one in seen) / sum(one.work_s for one in seen)
    return float(np.median(times)), power_w, bench.clock.now_s() - begin_s


def measure_by_rule(
    bench: ProfilingBench, mode: PowerMode, rule: str
) -> tuple[float, float, float, float, float, bool]:
    """Return seconds per step, watts, seconds spent, the two standard errors, and whether it settled."""
    if rule == "settled":
        seen = measure_mode(bench, mode, StabilityRule())
        verdict = seen.verdict
        errors = (verdict.time_se_log, verdict.power_se_log)
        return verdict.step_s, verdict.power_w, seen.seconds, *errors, verdict.settled
    step_s, power_w, spent_s = measure_fixed_steps(bench, mode, WAIT_S if rule.startswith("wait") else 0.0)
    return step_s, power_w, spent_s, math.nan, math.nan, True


def format_row(bench: ProfilingBench, modes: list[PowerMode], rule: str) -> str:
    """Return one line: errors in percent (mean, 95th percentile), seconds per mode, calibration of standard errors."""
    truth = build_truth(bench) if not isinstance(bench.device, SettlingBoard) else bench.device.truth
    seen = np.array([measure_by_rule(bench, mode, rule) for mode in modes], dtype=float)
    true = np.array([truth(mode) for mode in modes])
    errors = np.abs(np.log(seen[:, :2] / true))
    honest = [100 * np.mean(errors[:, i] <= 2 * seen[:, 3 + i]) if rule == "settled" else math.nan for i in (0, 1)]
    figures = (*(100 * errors.mean(axis=0)), *(100 * np.percentile(errors, 95, axis=0)))
    se = f"; within 2 SE: time {honest[0]:3.0f} %, power {honest[1]:3.0f} %" if rule == "settled" else ""
    return (
        f"{rule:9} time {figures[0]:5.2f} % (95th {figures[2]:5.2f}),"
        f" power {figures[1]:5.2f} % (95th {figures[3]:5.2f}),"
        f" {seen[:, 2].mean():6.1f} s a mode, slowest {seen[:, 2].max():6.1f}{se};"
        f" not settled {int((seen[:, 5] == 0).sum())}"
    )


def main() -> None:
    """Print a line per board and rule."""
    count, seed = (int(given) for given in (*sys.argv[1:], *("50", "0")[len(sys.argv) - 1 :]))
    for name in BOARDS:
        plain = build_emulated_bench(name, WORKLOAD, seed=seed)
        modes = list(load_explorer("random", plain.candidates, plain.knowledge).ask(count))
        for kind in ("emulated", "settling"):
            for rule in RULES:
                fresh = build_emulated_bench(name, WORKLOAD, seed=seed)
                bench = fresh if kind == "emulated" else build_settling_bench(fresh, seed)
                print(f"{name:13} {kind:9} {format_row(bench, modes, rule)}", flush=True)


if __name__ == "__main__":
    main()
