"""The micro-benchmark on an emulated board: its calibrated rooflines price every kernel, with a board's own noise."""

from __future__ import annotations

import numpy as np

from fedge.roofline.bench import COLUMNS
from fedge.roofline.surface import Batch, Rooflines, energy_j, times
from fedge.roofline.sweep import Point

KERNEL_S = 0.05
"""A kernel is repeated until it takes about so long, so that launching it does not count; chosen by us."""
NOISE_TIME_SD = 0.008
NOISE_POWER_SD = 0.010
"""As of an emulated board at work."""
INTENSITIES = (1.0 / 12.0, 1.0 / 8.0, *(n / 2.0 for n in COLUMNS))
"""FLOP per byte, as of the kernels of ``bench``."""


def emulate(board: Rooflines, row: int, rng: np.random.Generator) -> list[Point]:
    """The sweep's points in the mode of ``row``; what a network needs beside its kernels is left out."""
    at = _bare(board, row)
    points = []
    for intensity in INTENSITIES:
        one = at.at(0)
        size = KERNEL_S / max(one.tau_m, intensity * one.tau_f)
        batch = Batch(intensity * size, size, 0.0, 0.0)
        seconds = times(at, batch).total_s
        watts = energy_j(at, batch, seconds) / seconds * np.exp(rng.normal(0.0, NOISE_POWER_SD))
        noisy_s = float(seconds[0] * np.exp(rng.normal(0.0, NOISE_TIME_SD)))
        points.append(Point(f"{intensity:.3g} FLOP/B", intensity * size, size, noisy_s, noisy_s * float(watts[0])))
    return points


def _bare(board: Rooflines, row: int) -> Rooflines:
    only = [row]
    return Rooflines(
        board.tau_f[only], board.tau_m[only], board.eps_f[only], board.eps_m[only], board.pi_0_w[only], board.label
    )
