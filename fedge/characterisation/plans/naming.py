"""A point in words: the board, the workload, every knob."""

from __future__ import annotations

from fedge.characterisation.judging.setting import in_words
from fedge.characterisation.point import Point


def described(point: Point) -> str:
    """``nano-1, lenet5-mnist: training, batch 16, no workers, dropped cache``; a second repeat is "repeat 2"."""
    again = f", repeat {point.repeat + 1}" if point.repeat else ""
    return f"{point.board}, {point.workload}: {in_words(point)}{again}"
