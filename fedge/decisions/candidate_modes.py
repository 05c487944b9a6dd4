"""The modes among which a board chooses: those that keep it reachable, thinned where they are very many."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedge.modes import find_mode_index
from fedge.types import Modes, PowerMode

FLOOR_CORES = 2
FLOOR_CPU_MHZ = 400.0
"""The floor that keeps a board's own heartbeats alive while it trains."""
MAX_CANDIDATES = 5_000
"""Modes among which a board chooses."""


def mask_above_floor(modes: Modes) -> NDArray[np.bool_]:
    """Marks the modes that keep the board reachable; all of them when none does."""
    keep: NDArray[np.bool_] = (modes.knobs[:, 0] >= FLOOR_CORES) & (modes.knobs[:, 1] >= FLOOR_CPU_MHZ)
    return keep if keep.any() else np.ones(len(modes), dtype=np.bool_)


def mask_candidates_and_presets(modes: Modes, presets: Iterable[PowerMode]) -> NDArray[np.bool_]:
    """Marks ``mask_candidates`` modes, and the ``presets`` that are among ``modes``, wherever they lie."""
    keep = mask_candidates(modes)
    keep[[row for mode in presets if (row := find_mode_index(modes, mode)) is not None]] = True
    return keep


def mask_candidates(modes: Modes, limit: int = MAX_CANDIDATES) -> NDArray[np.bool_]:
    """Marks the modes above the floor, with every second value of the longest knob left out until ``limit`` are left.

    Neighbouring clocks differ by a few percent: predicting them all costs time on the board and finds nothing better.
    Both ends of a knob always stay, also where that is more than ``limit``.
    """
    keep = mask_above_floor(modes)
    while keep.sum() > limit:
        values = [np.unique(modes.knobs[keep, knob]) for knob in range(4)]
        longest = int(np.argmax([len(v) for v in values]))
        if len(values[longest]) <= 2:
            break  # nothing but ends is left
        stay = values[longest][::-1][::2]
        keep &= np.isin(modes.knobs[:, longest], [*stay, values[longest][0]])
    return keep
