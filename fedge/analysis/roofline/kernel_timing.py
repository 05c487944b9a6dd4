"""Timing of kernels on a real processor: warm-up, repeats, synchronisation with a GPU, and a meter around them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from fedge.costs.layers.network_cost import BatchWork

FEWEST, MOST = 3, 50
"""Least and largest number of repeats of a kernel."""
KernelEnergyMeter = Callable[[], float | None]
"""Return joules since an arbitrary start, or None without a meter."""


@dataclass(frozen=True, slots=True)
class BenchmarkKernel:
    """One kernel: its name, FLOP, bytes, and the function that runs it once."""

    name: str
    flop: float
    bytes: float
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class KernelPoint:
    """One measured kernel: its name, FLOP, bytes, seconds, and joules if there is a meter."""

    kernel: str
    flop: float
    bytes: float
    seconds: float
    joules: float | None = None

    @property
    def work(self) -> BatchWork:
        return BatchWork(self.flop, self.bytes)


@dataclass(frozen=True, slots=True)
class KernelTimer:
    """A clock in seconds, a meter in joules, and what waits until the device has done what it was given."""

    now_s: Callable[[], float]
    meter: KernelEnergyMeter
    settle: Callable[[], object]

    def time(self, kernel: BenchmarkKernel, share_s: float) -> KernelPoint:
        """Repeat a kernel for about ``share_s`` seconds and return the median."""
        kernel.run()  # allocations, first touches and the library's own choice of a kernel
        self.settle()
        began_s, began_j = self.now_s(), self.meter()
        laps: list[float] = []
        while len(laps) < FEWEST or (len(laps) < MOST and self.now_s() - began_s < share_s):
            lap_s = self.now_s()
            kernel.run()
            self.settle()
            laps.append(self.now_s() - lap_s)
        ended_j = self.meter()
        joules = None if began_j is None or ended_j is None or ended_j <= began_j else (ended_j - began_j) / len(laps)
        return KernelPoint(kernel.name, kernel.flop, kernel.bytes, seconds=statistics.median(laps), joules=joules)
