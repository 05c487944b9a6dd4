"""Micro-benchmarks on a real processor: streaming kernels, and a large matrix times more and more columns.

A product of (rows, DEPTH) and (DEPTH, n) does 2 rows DEPTH n FLOP and moves 4 (rows DEPTH + DEPTH n + rows n) bytes,
nearly n/2 FLOP per byte as long as n is small. The large matrix is far larger than any cache, so that its bytes come
from memory. The number of threads is torch's own setting.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.pagoda_fit import KernelPoint, RooflineSweep, fit_sweep
from fedge.analysis.roofline.roofline_analysis import build_basis, find_mode_row
from fedge.analysis.roofline.roofline_model import ModeRooflines, RooflineBatch, batch_energy_j, compute_batch_times
from fedge.devices.catalogue import find
from fedge.devices.sensing.energy_counters import PackageEnergyCounter
from fedge.errors import BadInput

if TYPE_CHECKING:
    import torch


ARRAY_MB = {"cpu": 128.0, "cuda": 512.0}
"""Size of an operand in MB: several times the largest cache of common processors and GPUs."""
PRODUCT_DEPTH = 512
PRODUCT_COLUMNS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Columns n of the products: 0.5 to 85 FLOP per byte."""
FLOAT_BYTES = 4
FEWEST, MOST = 3, 50
"""Least and largest number of repeats of a kernel."""

REAL_DEVICES = ("cpu", "cuda")
NO_METER_NOTES = {
    "cpu": "energy is not known: this machine shows no energy counter (RAPL) that this user may read",
    "cuda": "energy is not known: no counter of the GPU's energy is read here",
}
MAX_SECONDS = 3600.0
"""Longest real measurement."""

KernelEnergyMeter = Callable[[], float | None]
"""Return joules since an arbitrary start, or None without a meter."""


@dataclass(frozen=True, slots=True)
class BenchmarkKernel:
    """One kernel: its name, FLOP, bytes, and the function that runs it once."""

    name: str
    flop: float
    bytes: float
    run: Callable[[], object]


def measure_roofline(device: str, seconds: float, mode: str | None = None, seed: int = 0) -> RooflineSweep:
    """Measure this machine, or emulate a board, and fit the roofline's constants.

    Args:
        device: ``cpu``, ``cuda`` or the name of a board to emulate.
        seconds: Approximate duration of a real measurement.
        mode: Power mode of an emulated board; MAXN by default.
        seed: Seed of an emulated board's noise.

    Raises:
        BadInput: If an argument is invalid, or torch sees no such device.
    """
    if not 0.0 < seconds <= MAX_SECONDS:
        raise BadInput("--seconds", f"{seconds:g}", f"more than 0 and at most {MAX_SECONDS:g}")
    if device not in REAL_DEVICES:
        return _emulate_sweep(device, mode, seed)
    if mode is not None:
        raise BadInput("--mode", mode, "an emulated board; a real machine is measured as it is set")
    counter = PackageEnergyCounter.try_open() if device == "cpu" else None
    meter = counter.try_read_energy_j if counter else lambda: None
    points = run_microbenchmark(device, seconds, time.perf_counter, meter)
    note = "energy of the processor's packages by RAPL" if counter else NO_METER_NOTES[device]
    return fit_sweep(device, mode="as it is set", points=points, label="measured", note=note)


def _emulate_sweep(device: str, mode: str | None, seed: int) -> RooflineSweep:
    spec = find(device)
    basis = build_basis(spec, None)
    row = basis.maxn_row if mode is None else find_mode_row(basis, mode)
    lines = compute_rooflines(basis.constants, basis.modes)
    points = emulate_microbenchmark(lines, row, np.random.default_rng(seed))
    note = f"an emulated {spec.name}: nothing was measured; priced by {basis.constants.source}"
    return fit_sweep(spec.name, mode=str(basis.modes[row]), points=points, label=lines.label, note=note)


def run_microbenchmark(
    where: str,
    seconds: float,
    now_s: Callable[[], float],
    meter: KernelEnergyMeter,
    array_mb: float | None = None,
) -> list[KernelPoint]:
    """Run every kernel and return the medians of the repeats.

    Args:
        where: ``cpu`` or ``cuda``.
        seconds: Total duration, shared evenly by the kernels.
        now_s: The clock, in seconds.
        meter: Reads the energy in joules.
        array_mb: Size of an operand in MB; by default ``ARRAY_MB`` of the device.

    Raises:
        BadInput: If torch sees no such device.
    """
    import torch

    if where == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device", "cuda", "a machine whose torch sees a CUDA device; cpu runs anywhere")
    settle = torch.cuda.synchronize if where == "cuda" else _skip_synchronisation
    share_s = seconds / (len(PRODUCT_COLUMNS) + 2)
    with torch.inference_mode():
        return [
            _time_kernel(kernel, share_s=share_s, now_s=now_s, meter=meter, settle=settle)
            for kernel in _generate_kernels(torch.device(where), 1e6 * (array_mb or ARRAY_MB[where]))
        ]


def _time_kernel(
    kernel: BenchmarkKernel,
    share_s: float,
    now_s: Callable[[], float],
    meter: KernelEnergyMeter,
    settle: Callable[[], object],
) -> KernelPoint:
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
    return KernelPoint(
        kernel.name, flop=kernel.flop, bytes=kernel.bytes, seconds=statistics.median(laps), joules=joules
    )


def _generate_kernels(device: torch.device, array_bytes: float) -> Iterator[BenchmarkKernel]:
    """Yield the kernels one after the other, so that only one's arrays are held."""
    import torch

    count = int(array_bytes / FLOAT_BYTES)
    yield from _generate_streaming_kernels(device, count)
    rows = max(PRODUCT_DEPTH, count // PRODUCT_DEPTH)
    a = torch.rand(rows, PRODUCT_DEPTH, device=device)
    for n in PRODUCT_COLUMNS:
        b, out = torch.rand(PRODUCT_DEPTH, n, device=device), torch.empty(rows, n, device=device)
        moved = FLOAT_BYTES * float(rows * PRODUCT_DEPTH + PRODUCT_DEPTH * n + rows * n)
        yield BenchmarkKernel(f"product {n}", 2.0 * rows * PRODUCT_DEPTH * n, moved, partial(torch.mm, a, b, out=out))


def _generate_streaming_kernels(device: torch.device, count: int) -> Iterator[BenchmarkKernel]:
    """Yield kernels that do next to nothing with the data that they read and write."""
    import torch

    x, y = torch.rand(count, device=device), torch.rand(count, device=device)
    z = torch.empty_like(x)
    yield BenchmarkKernel("add", count, 3.0 * FLOAT_BYTES * count, lambda: torch.add(x, y, out=z))
    yield BenchmarkKernel("scale", count, 2.0 * FLOAT_BYTES * count, lambda: torch.mul(x, 1.01, out=z))


def _skip_synchronisation() -> None:
    """Do nothing: CPU calls return when they are done."""


TARGET_KERNEL_S = 0.05
"""Emulated duration of a kernel in seconds, long enough for its launch not to matter."""
EMULATED_TIME_NOISE_SD = 0.008
EMULATED_POWER_NOISE_SD = 0.010
"""Noise in log units, the same as that of an emulated board at work."""
KERNEL_INTENSITIES = (1.0 / 12.0, 1.0 / 8.0, *(n / 2.0 for n in PRODUCT_COLUMNS))
"""FLOP per byte of the emulated kernels, the same as of the real ones."""


def emulate_microbenchmark(board: ModeRooflines, row: int, rng: np.random.Generator) -> list[KernelPoint]:
    """Return the sweep's points in the mode of ``row``, without a network's overheads besides its kernels."""
    tau_f, tau_m, eps_f, eps_m, pi_0_w = (
        getattr(board, name)[[row]] for name in ("tau_f", "tau_m", "eps_f", "eps_m", "pi_0_w")
    )
    at = ModeRooflines(tau_f, tau_m=tau_m, eps_f=eps_f, eps_m=eps_m, pi_0_w=pi_0_w, label=board.label)
    points = []
    for intensity in KERNEL_INTENSITIES:
        one = at.mode_roofline(0)
        size = TARGET_KERNEL_S / max(one.tau_m, intensity * one.tau_f)
        batch = RooflineBatch(intensity * size, size, 0.0, 0.0)
        seconds = compute_batch_times(at, batch).total_s
        watts = batch_energy_j(at, batch, seconds) / seconds * np.exp(rng.normal(0.0, EMULATED_POWER_NOISE_SD))
        noisy_s = float(seconds[0] * np.exp(rng.normal(0.0, EMULATED_TIME_NOISE_SD)))
        points.append(
            KernelPoint(
                f"{intensity:.3g} FLOP/B",
                flop=intensity * size,
                bytes=size,
                seconds=noisy_s,
                joules=noisy_s * float(watts[0]),
            )
        )
    return points
