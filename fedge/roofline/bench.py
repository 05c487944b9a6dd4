"""Micro-benchmarks on a real processor: streaming kernels, and a large matrix times more and more columns.

A product of (rows, DEPTH) and (DEPTH, n) does 2 rows DEPTH n FLOP and moves 4 (rows DEPTH + DEPTH n + rows n) bytes,
nearly n/2 FLOP per byte as long as n is small. The large matrix is far larger than any cache, so that its bytes come
from memory. One thread or all: as torch is set.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fedge.errors import BadInput
from fedge.roofline.sweep import Point

if TYPE_CHECKING:
    import torch

ARRAY_MB = {"cpu": 128.0, "cuda": 512.0}
"""An operand's size; chosen by us, several times the largest cache."""
DEPTH = 512
COLUMNS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""n of the products: 0.5 to 85 FLOP per byte."""
FLOAT_BYTES = 4
FEWEST, MOST = 3, 50
"""Repeats of a kernel."""

Meter = Callable[[], float | None]
"""Joules since any start; None where nothing meters."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its name, what it holds, and how it is run once."""

    name: str
    flop: float
    bytes: float
    run: Callable[[], object]


def measure(
    where: str,
    seconds: float,
    now_s: Callable[[], float],
    meter: Meter,
    told: Callable[[str], None] | None = None,
    array_mb: float | None = None,
) -> list[Point]:
    """Run every kernel on ``where`` (``cpu`` or ``cuda``) for about its share of ``seconds``; medians of the repeats.

    Raises ``BadInput`` where torch sees no such device.
    """
    import torch

    if where == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device", "cuda", "a machine whose torch sees a CUDA device; cpu runs anywhere")
    settle = torch.cuda.synchronize if where == "cuda" else _nothing
    points = []
    share_s = seconds / (len(COLUMNS) + 2)
    with torch.inference_mode():
        for kernel in _kernels(torch.device(where), 1e6 * (array_mb or ARRAY_MB[where])):
            if told is not None:
                told(kernel.name)
            points.append(_timed(kernel, share_s, now_s, meter, settle))
    return points


def _timed(
    kernel: Kernel, share_s: float, now_s: Callable[[], float], meter: Meter, settle: Callable[[], object]
) -> Point:
    kernel.run()  # allocations, first touches and the library's own choice of a kernel
    settle()
    began_s, began_j = now_s(), meter()
    laps: list[float] = []
    while len(laps) < FEWEST or (len(laps) < MOST and now_s() - began_s < share_s):
        lap_s = now_s()
        kernel.run()
        settle()
        laps.append(now_s() - lap_s)
    ended_j = meter()
    joules = None if began_j is None or ended_j is None or ended_j <= began_j else (ended_j - began_j) / len(laps)
    return Point(kernel.name, kernel.flop, kernel.bytes, statistics.median(laps), joules)


def _kernels(device: torch.device, array_bytes: float) -> Iterator[Kernel]:
    """The sweep, one kernel after the other, so that only one's arrays are held."""
    import torch

    count = int(array_bytes / FLOAT_BYTES)
    yield from _streams(device, count)
    rows = max(DEPTH, count // DEPTH)
    a = torch.rand(rows, DEPTH, device=device)
    for n in COLUMNS:
        b, out = torch.rand(DEPTH, n, device=device), torch.empty(rows, n, device=device)
        moved = FLOAT_BYTES * float(rows * DEPTH + DEPTH * n + rows * n)
        yield Kernel(f"product {n}", 2.0 * rows * DEPTH * n, moved, partial(torch.mm, a, b, out=out))


def _streams(device: torch.device, count: int) -> Iterator[Kernel]:
    """Kernels that do next to nothing with what they read and write."""
    import torch

    x, y = torch.rand(count, device=device), torch.rand(count, device=device)
    z = torch.empty_like(x)
    yield Kernel("add", count, 3.0 * FLOAT_BYTES * count, lambda: torch.add(x, y, out=z))
    yield Kernel("scale", count, 2.0 * FLOAT_BYTES * count, lambda: torch.mul(x, 1.01, out=z))


def _nothing() -> None:
    """A processor's calls return when they are done."""
