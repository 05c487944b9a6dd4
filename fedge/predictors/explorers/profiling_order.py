"""The order in which a batch of modes is measured: frequencies fall, the one that is hardest to raise outermost.

PowerTrain (FGCS 2024) profiles from high to low, because lowering a frequency needs no reboot. Of the four knobs the
memory clock is outermost: on Orin the kernel's own files cannot raise its cap, since a request is first rounded to the
cap in force (github.com/tiiuae/ghaf, pull request 2071; NVIDIA's power-hinting service can). So it only ever falls over
a batch. The others can be raised at any time. Cores come second, because switching one moves processes; then
the GPU's clock; innermost, and thus changed most often, the CPU's. The order of these three is chosen by us.
"""

from __future__ import annotations

import numpy as np

from fedge.types import Modes

OUTERMOST_FIRST = (3, 0, 2, 1)
"""Columns of ``Modes.knobs``: memory, cores, GPU, CPU."""


def sort_high_to_low(modes: Modes) -> Modes:
    """The same modes from high to low, memory outermost; within equal memory by cores, then GPU, then CPU clock."""
    order = np.lexsort([-modes.knobs[:, knob] for knob in reversed(OUTERMOST_FIRST)])
    return Modes(modes.knobs[order])
