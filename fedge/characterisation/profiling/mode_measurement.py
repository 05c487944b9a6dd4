"""Measures one mode: chunk after chunk until it has settled, once more after cooling when it throttled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedge.characterisation.profiling.profiling_bench import ProfilingBench
from fedge.characterisation.profiling.stability import MeasuredChunk, StabilityRule, StabilityVerdict, judge_stability
from fedge.types import Measurement, PowerMode

MAX_CHUNK_STEPS = 10_000
"""Minibatches in a chunk at most; chosen by us."""
COOLER_BY_C = 15.0
"""A board that throttled rests until it is so much cooler than its peak; chosen by us."""
REST_S = 10.0
MAX_REST_S = 300.0
"""It rests in parts of ``REST_S`` up to ``MAX_REST_S``; chosen by us."""
BLIND_REST_S = 60.0
"""How long a board without a temperature sensor rests; chosen by us."""
HOT_C = 80.0
"""A board that throttled below it did so for its current, not for heat: it rests ``REST_S`` once; chosen by us."""

VerdictCallback = Callable[[StabilityVerdict], None]


@dataclass(frozen=True, slots=True)
class SettledMode:
    """One mode, measured: its steady values, how they were reached, and what that cost, rests and retries included."""

    mode: PowerMode
    verdict: StabilityVerdict
    throttled: bool
    peak_c: float | None
    attempts: int
    seconds: float
    joules: float
    end_c: float | None
    """The temperature when it was done."""

    @property
    def note(self) -> str:
        """What a reader of the table should know of this row; empty when nothing."""
        parts = [] if self.verdict.settled else [f"not settled: {self.verdict.why}"]
        if self.throttled:
            parts.append("throttled" + (", again after cooling" if self.attempts > 1 else ""))
        elif self.attempts > 1:
            parts.append("measured again after it had throttled")
        return "; ".join(parts)

    def as_measurement(self) -> Measurement:
        """The row for a table or a predictor."""
        verdict = self.verdict
        return Measurement(
            self.mode,
            steps=verdict.steps,
            step_s=verdict.step_s,
            power_w=verdict.power_w,
            peak_c=self.peak_c,
            throttled=self.throttled,
            time_se_log=verdict.time_se_log,
            power_se_log=verdict.power_se_log,
        )


@dataclass(frozen=True, slots=True)
class _Attempt:
    verdict: StabilityVerdict
    throttled: bool
    peak_c: float | None
    joules: float


def measure_mode(
    bench: ProfilingBench, mode: PowerMode, rule: StabilityRule, told: VerdictCallback = lambda _: None
) -> SettledMode:
    """The mode's steady time and power. Raises what the board raises; the mode found before is set again anyway.

    A board that throttles is left at once, rests, and is measured once more; the second time whatever it does counts.
    """
    begin_s = bench.clock.now_s()
    first = _run_attempt(bench, mode, rule, told, stop_when_throttled=True)
    attempts, last, joules = 1, first, first.joules
    if first.throttled:
        joules += _cool_down(bench, first.peak_c)
        last = _run_attempt(bench, mode, rule, told, stop_when_throttled=False)
        attempts, joules = 2, joules + last.joules
    verdict = replace(last.verdict, settled=False, why="it throttled") if last.throttled else last.verdict
    seconds = round(bench.clock.now_s() - begin_s, 3)
    return SettledMode(
        mode,
        verdict=verdict,
        throttled=last.throttled,
        peak_c=last.peak_c,
        attempts=attempts,
        seconds=seconds,
        joules=round(joules, 3),
        end_c=bench.temperature_c(),
    )


def _run_attempt(
    bench: ProfilingBench, mode: PowerMode, rule: StabilityRule, told: VerdictCallback, *, stop_when_throttled: bool
) -> _Attempt:
    chunks: list[MeasuredChunk] = []
    peaks: list[float] = []
    spent_s = joules = 0.0
    throttled = False
    steps = 1
    bench.prepare()
    with bench.device.use_mode(mode):
        while True:
            left_s = rule.limit_s - spent_s
            seen = bench.device.measure(bench.workload, steps, bench.work, left_s)
            chunks.append(MeasuredChunk(seen.steps, seen.step_s, seen.power_w, seen.work_s))
            spent_s, joules = spent_s + seen.work_s, joules + seen.work_j
            throttled = throttled or seen.throttled
            peaks += [] if seen.peak_c is None else [seen.peak_c]
            verdict = judge_stability(chunks, rule)
            told(verdict)
            if verdict.settled or spent_s >= rule.limit_s or (throttled and stop_when_throttled):
                return _Attempt(verdict, throttled, max(peaks, default=None), joules)
            steps = count_chunk_steps(seen.step_s, rule)


def count_chunk_steps(step_s: float, rule: StabilityRule) -> int:
    """How many minibatches of ``step_s`` seconds make a chunk."""
    return min(max(1, round(rule.chunk_s / step_s)), MAX_CHUNK_STEPS)


def _cool_down(bench: ProfilingBench, peak_c: float | None) -> float:
    """Let the board rest until it is cool enough, within the limit; returns the joules it drew meanwhile."""
    idle_w = bench.device.idle_w(bench.knowledge.maxn)
    if peak_c is None or bench.temperature_c() is None:
        bench.idle_for(BLIND_REST_S)
        return BLIND_REST_S * idle_w
    bench.idle_for(REST_S)
    rested_s = REST_S
    while peak_c >= HOT_C and rested_s < MAX_REST_S and (bench.temperature_c() or 0.0) > peak_c - COOLER_BY_C:
        bench.idle_for(REST_S)
        rested_s += REST_S
    return rested_s * idle_w
