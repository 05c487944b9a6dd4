"""The machine at hand as a board: its processor under torch and under ONNX Runtime, with rough figures to begin."""

from __future__ import annotations

import os

from fedge.placement.accelerators import Accelerator, Board, Speed
from fedge.placement.boards import FP32
from fedge.placement.execution.available import ORT_CPU, TORCH_CPU

HERE = "here"
CORE_FLOP_PER_S, BANDWIDTH, LAUNCH_S = 3e10, 1e10, 2e-5
"""Of one core, bytes per second of all, seconds per operator: guesses that measurements replace. Chosen by us."""
OVERLAP, CORNER = 0.9, 3.0
IDLE_W, CORE_W = 5.0, 5.0
"""Guesses to fit watts from; without measured watts they are not shown. Chosen by us."""


def here_board(cores: int | None = None) -> Board:
    """A board of so many cores, those of this machine by default."""
    count = cores or len(os.sched_getaffinity(0))
    speeds = (Speed(FP32, CORE_FLOP_PER_S, 1.0, LAUNCH_S),)
    places = tuple(
        Accelerator(name, "cpu", speeds, hindrance=1.0 / count, full_w=CORE_W) for name in (TORCH_CPU, ORT_CPU)
    )
    return Board(HERE, places, BANDWIDTH, CORNER, OVERLAP, IDLE_W, 0.0, source="guesses")
