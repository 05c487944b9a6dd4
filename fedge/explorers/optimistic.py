"""Proposes the mode that could turn out to be the best, as long as trying it leaves time for the rest of the round.

Symbols: t, p step time and power with log-spreads s_t, s_p; i idle power; n steps left, k steps of the probe; L seconds
left. A mode could cost as little as e- = t exp(-s_t) (p exp(-s_p) - i) joules above idling per step (the lower
confidence bound of Bayesian optimisation). It is worth trying when e- is clearly below what the present choice is
expected to cost, and safe when k t + (n - k) min(t) <= L.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.types import Floats, PowerMode, Predictions

WORTHWHILE = 0.02
"""A mode is tried when it could save this share of the present choice's joules above idling."""
MARGIN = 1.0
"""Standard deviations by which a probe's time is overestimated."""
KNOWN_SD_LOG = 0.1
"""Up to this spread a time is known well enough to go without margin: the slowest board has no time for one."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is left of a round: minibatches, seconds until the deadline, and how long a probe lasts at least."""

    steps: float
    left_s: float
    probe_s: float


def probe_steps(step_s: Floats, room: Room) -> Floats:
    """How many minibatches a probe takes in each mode, shape (modes,)."""
    steps: Floats = np.maximum(1.0, np.ceil(room.probe_s / step_s))
    return steps


def propose(
    predictions: Predictions, idle_w: float, present: PowerMode, tried: Collection[PowerMode], room: Room
) -> PowerMode | None:
    """The mode to try next, None when none is both worthwhile and safe."""
    low_s = predictions.step_s * np.exp(-predictions.step_s_sd_log)
    at_best_j = low_s * (predictions.power_w * np.exp(-predictions.power_w_sd_log) - idle_w)
    now = _rows(predictions, [present])
    present_j = (predictions.step_s * (predictions.power_w - idle_w))[now]
    worthwhile = at_best_j < (1.0 - WORTHWHILE) * float(present_j.min(initial=np.inf))
    worthwhile &= room.steps * low_s <= room.left_s
    worthwhile &= ~_rows(predictions, tried)
    known = predictions.step_s_sd_log <= KNOWN_SD_LOG
    for safe in (_safe(predictions, room, MARGIN), known & _safe(predictions, room, 0.0)):
        candidates = np.flatnonzero(worthwhile & safe)
        if len(candidates):
            return predictions.modes[int(candidates[np.argmin(at_best_j[candidates])])]
    return None


def _safe(predictions: Predictions, room: Room, margin: float) -> NDArray[np.bool_]:
    step_s = predictions.step_s * np.exp(margin * predictions.step_s_sd_log)
    steps = probe_steps(predictions.step_s, room)
    safe: NDArray[np.bool_] = (steps <= room.steps) & (
        steps * step_s + (room.steps - steps) * step_s.min() <= room.left_s
    )
    return safe


def _rows(predictions: Predictions, modes: Collection[PowerMode]) -> NDArray[np.bool_]:
    """Marks the rows of ``modes``."""
    marked = np.zeros(len(predictions.modes), dtype=np.bool_)
    for mode in modes:
        knobs = np.array([mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz])
        marked |= (np.abs(predictions.modes.knobs - knobs) < 1e-6).all(axis=1)
    return marked
