"""The candidate modes of a board: modes that keep it reachable, thinned where a board has very many."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedge.modes import find_mode_index
from fedge.types import Modes, PowerMode

FLOOR_CORES = 2
FLOOR_CPU_MHZ = 400.0
"""Default floor, with two cores: below it a board that trains may miss its own heartbeats."""
MAX_CANDIDATES = 5_000
"""Default upper bound on a board's candidate modes: more of them cost prediction time and add little choice."""


def mask_above_floor(modes: Modes) -> NDArray[np.bool_]:
    """Mask the modes with at least ``FLOOR_CORES`` cores and ``FLOOR_CPU_MHZ``, or all modes if there is none.

    Returns:
        Booleans of shape (modes,).
    """
    keep: NDArray[np.bool_] = (modes.knobs[:, 0] >= FLOOR_CORES) & (modes.knobs[:, 1] >= FLOOR_CPU_MHZ)
    return keep if keep.any() else np.ones(len(modes), dtype=np.bool_)


def mask_candidates_and_presets(modes: Modes, presets: Iterable[PowerMode]) -> NDArray[np.bool_]:
    """Mask the modes of ``mask_candidates`` and those of ``presets`` that are in the table, also below the floor."""
    keep = mask_candidates(modes)
    keep[[row for mode in presets if (row := find_mode_index(modes, mode)) is not None]] = True
    return keep


def mask_candidates(modes: Modes, limit: int = MAX_CANDIDATES) -> NDArray[np.bool_]:
    """Mask the modes above the floor, thinning the knob with most values by half until ``limit`` modes are left.

    Neighbouring clocks differ by a few percent: predicting them all costs time on the board and finds nothing better.
    The lowest and the highest value of a knob always stay, even if more than ``limit`` modes are then left.

    Args:
        modes: All modes of the board.
        limit: Number of modes to keep at most.

    Returns:
        Booleans of shape (modes,).
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
