"""Minibatches timed from outside, some at a time: how many come next, and what all of them say of one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CHUNK_S = 0.5
"""So long a stretch of minibatches is timed as one; chosen by us, two samples of a slow power sensor."""
UNKNOWN_SE_LOG = 0.05
"""Standard error of a step time of which there is one stretch only; chosen by us."""
MIN_SE_LOG = 0.001
"""No timing is trusted to be better than this, however even its stretches; chosen by us."""


@dataclass(frozen=True, slots=True)
class TimedChunk:
    """``steps`` minibatches that took ``seconds``."""

    steps: int
    seconds: float

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Seconds of a usual minibatch, its standard error (log units), and what the first one took beyond that."""

    step_s: float
    se_log: float
    warm_up_s: float


def count_next_steps(done: Sequence[TimedChunk], steps: int, limit_s: float | None) -> int:
    """How many minibatches to do next, 0 when the work or the time is over; the first one is timed alone.

    With ``limit_s`` only as many as fit in what is left of it, going by the latest stretch, but at least one in all.
    """
    left = steps - sum(chunk.steps for chunk in done)
    if not done or left <= 0:
        return min(1, max(0, left))
    step_s = done[-1].step_s
    count = max(1, int(CHUNK_S / step_s)) if step_s > 0 else left
    if limit_s is not None:
        room_s = limit_s - sum(chunk.seconds for chunk in done)
        count = min(count, int(room_s / step_s) if step_s > 0 else left)
    return max(0, min(count, left))


def estimate_step_timing(chunks: Sequence[TimedChunk], cold: bool = True) -> StepTiming:
    """What the stretches say; their total is ``steps * step_s + warm_up_s``.

    The first stretch is one minibatch. ``cold``: it is the first one in its mode, and what it took beyond the others is
    warm-up. Else it is one like the others: leaving it out whenever it happens to be slow would make them too fast.
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
    """Standard error of the weighted mean step time, from how the stretches scatter."""
    if len(chunks) < 2:
        return UNKNOWN_SE_LOG
    weights = np.array([chunk.steps for chunk in chunks], dtype=np.float64)
    times = np.array([chunk.step_s for chunk in chunks])
    mean = float(np.average(times, weights=weights))
    variance = float(np.average((times - mean) ** 2, weights=weights)) * len(chunks) / (len(chunks) - 1)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    return max(MIN_SE_LOG, math.sqrt(variance / effective) / mean)
