"""Order of measurement within a batch of modes: decreasing frequencies, the one that is hardest to raise outermost.

PowerTrain (FGCS 2024) profiles from high to low because lowering a frequency needs no reboot. The memory clock is
outermost: on Orin the kernel's own files cannot raise its cap, since a request is first rounded to the cap in force
(github.com/tiiuae/ghaf, pull request 2071; NVIDIA's power-hinting service can). It therefore only decreases within a
batch. The others can be raised at any time. Cores come second because switching one migrates processes, then the GPU
clock, and innermost, thus changed most often, the CPU clock. The order of these three is a default that no board of
ours was measured with.
"""

from __future__ import annotations

import numpy as np

from fedge.types import Modes

OUTERMOST_FIRST = (3, 0, 2, 1)
"""Columns of ``Modes.knobs``: memory, cores, GPU, CPU."""


def sort_high_to_low(modes: Modes) -> Modes:
    """Return the modes from high to low by memory clock, then cores, then GPU clock, then CPU clock."""
    order = np.lexsort([-modes.knobs[:, knob] for knob in reversed(OUTERMOST_FIRST)])
    return Modes(modes.knobs[order])
