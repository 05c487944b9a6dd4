"""Timing of steps in chunks: the size of the next chunk, and step time with its standard error. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CHUNK_S = 0.5
"""Seconds of a chunk of steps that is timed as one; a default of two samples of a slow power sensor."""
UNKNOWN_SE_LOG = 0.05
"""Standard error (log units) assumed for a step time from a single chunk; a default that gives such a measurement
little weight.
"""
MIN_SE_LOG = 0.001
"""Lower bound of the standard error (log units), since equal chunks do not exclude an error common to all. A
default.
"""


@dataclass(frozen=True, slots=True)
class TimedChunk:
    """A number of steps and the seconds that they took together."""

    steps: int
    seconds: float

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Estimate of the step time.

    Attributes:
        step_s: Seconds per step, without warm-up.
        se_log: Standard error of ``step_s`` in log units.
        warm_up_s: Extra seconds of the first step.
    """

    step_s: float
    se_log: float
    warm_up_s: float


def count_next_steps(last: TimedChunk | None, left: int, room_s: float | None) -> int:
    """Return the number of steps of the next chunk; the first step is timed alone, and run whatever the limit.

    Args:
        last: The previous chunk; None at the beginning.
        left: The steps still to do.
        room_s: Seconds until the time limit, if there is one.

    Returns:
        0 if the steps are done or the time is up.
    """
    if last is None or left <= 0:
        return min(1, max(0, left))
    step_s = last.step_s
    count = max(1, int(CHUNK_S / step_s)) if step_s > 0 else left
    if room_s is not None:
        count = min(count, int(room_s / step_s) if step_s > 0 else left)
    return max(0, min(count, left))


def estimate_step_timing(chunks: Sequence[TimedChunk], cold: bool = True) -> StepTiming:
    """Estimate the step time; ``steps * step_s + warm_up_s`` equals the total time.

    Args:
        chunks: The chunks; at least one, and the first has one step.
        cold: True if the first step is the first in its mode, so that its extra time is warm-up. Otherwise it is an
            ordinary step: excluding it whenever it is slow would bias the estimate.
    """
    first, rest = chunks[0], chunks[1:]
    if not rest:
        return StepTiming(first.step_s, UNKNOWN_SE_LOG, 0.0)
    usual_s = _mean_step_s(rest)
    if cold and first.step_s > usual_s:
        return StepTiming(usual_s, _se_log(rest), first.seconds - usual_s)
    return StepTiming(_mean_step_s(chunks), _se_log(chunks), 0.0)


def _mean_step_s(chunks: Sequence[TimedChunk]) -> float:
    return sum(chunk.seconds for chunk in chunks) / sum(chunk.steps for chunk in chunks)


def _se_log(chunks: Sequence[TimedChunk]) -> float:
    """Return the standard error of the weighted mean step time, in log units, from the scatter of the chunks."""
    if len(chunks) < 2:
        return UNKNOWN_SE_LOG
    weights = np.array([chunk.steps for chunk in chunks], dtype=np.float64)
    times = np.array([chunk.step_s for chunk in chunks])
    mean = float(np.average(times, weights=weights))
    variance = float(np.average((times - mean) ** 2, weights=weights)) * len(chunks) / (len(chunks) - 1)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    return max(MIN_SE_LOG, math.sqrt(variance / effective) / mean)
