"""Micro-benchmarks on a real processor or an emulated board, and the fit of the five roofline constants to them.

Without a power meter the energies stay unknown.

Time: tau_f and tau_m with the least sum of weighted |log error|; such a sum is least where the model meets two of the
kernels, so that all pairs are tried. A roof is the performance of the best kernels: one that is faster weighs more than
one that is slower, which may only be a poor kernel. Energy: eps_f, eps_m and pi_0 by non-negative least squares on
relative errors, with slight regularisation, since FLOP, bytes and time are correlated.

Kernels of the roof on a real processor: streaming ones, and a large matrix times more and more columns.

A product of (rows, DEPTH) and (DEPTH, n) does 2 rows DEPTH n FLOP and moves 4 (rows DEPTH + DEPTH n + rows n) bytes,
nearly n/2 FLOP per byte as long as n is small. The large matrix is far larger than any cache, so that its bytes come
from memory. The number of threads is torch's own setting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedge.analysis.roofline.board_constants import compute_rooflines
from fedge.analysis.roofline.kernel_timing import BenchmarkKernel, KernelEnergyMeter, KernelPoint, KernelTimer
from fedge.analysis.roofline.layer_benchmark import LayerPoint, measure_layers
from fedge.analysis.roofline.roofline_analysis import build_basis, find_mode_row
from fedge.analysis.roofline.roofline_model import (
    ModeRooflines,
    Roofline,
)
from fedge.costs.layers.network_cost import BatchWork, NetworkCost
from fedge.devices.catalogue import find
from fedge.devices.local_board import read_processor_name
from fedge.devices.sensing.energy_counters import PackageEnergyCounter
from fedge.errors import BadInput, RunFailed
from fedge.physics.nonnegative_least_squares import solve_nonnegative
from fedge.types import Floats, Label, ProfileTable

if TYPE_CHECKING:
    import torch


ROOF_SHARE = 0.1
"""Quantile of the fit: about this share of the kernels may be faster than the roof; 0.5 would be their median."""
RIDGE = 1e-3
"""Weight of the constants' own squares relative to the errors', in units of their mean share: keeps them unique."""


@dataclass(frozen=True, slots=True)
class BenchmarkConditions:
    """Where and how something was measured: the processor, the day, torch's version and threads, and the precision."""

    machine: str
    date: str
    torch: str
    threads: int
    precision: str


@dataclass(frozen=True, slots=True)
class RooflineSweep:
    """A micro-benchmark of one device in one mode: its points and the constants; energies are None without a meter.

    An emulated board has no ``layers`` and no ``conditions``.
    """

    device: str
    mode: str
    points: tuple[KernelPoint, ...]
    tau_f: float
    tau_m: float
    eps_f: float | None
    eps_m: float | None
    pi_0_w: float | None
    reached: float
    """Median share of the roof that a kernel reaches."""
    energy_mape: float | None
    label: Label
    note: str
    """Source of the energy, or why it is unknown."""
    layers: tuple[LayerPoint, ...] = ()
    conditions: BenchmarkConditions | None = None

    @property
    def roofline(self) -> Roofline | None:
        """The five constants; None without a meter."""
        if self.eps_f is None or self.eps_m is None or self.pi_0_w is None:
            return None
        return Roofline(
            self.tau_f, tau_m=self.tau_m, eps_f=self.eps_f, eps_m=self.eps_m, pi_0_w=self.pi_0_w, label=self.label
        )


def fit_sweep(device: str, mode: str, points: Sequence[KernelPoint], label: Label, note: str) -> RooflineSweep:
    """Fit the constants to the points of one sweep.

    Raises:
        RunFailed: For fewer than three points.
    """
    if len(points) < 3:
        raise RunFailed(f"the micro-benchmark of {device} gave {len(points)} points; give it more --seconds")
    works = [point.work for point in points]
    seconds = np.array([point.seconds for point in points])
    tau_f, tau_m = (float(pace[0]) for pace in fit_paces(works, seconds[:, None], ROOF_SHARE))
    modelled = np.array([max(work.flop * tau_f, work.bytes * tau_m) for work in works])
    reached = float(np.median(modelled / seconds))
    eps_f = eps_m = pi_0_w = off = None
    joules = np.array([point.joules for point in points if point.joules is not None])
    if len(joules) == len(points):
        eps_f, eps_m, pi_0_w = fit_energies(works, seconds, joules).tolist()
        terms = np.array([(work.flop, work.bytes, s) for work, s in zip(works, seconds, strict=True)])
        off = float(np.mean(np.abs(terms @ [eps_f, eps_m, pi_0_w] / joules - 1.0)))
    return RooflineSweep(
        device,
        mode=mode,
        points=tuple(points),
        tau_f=tau_f,
        tau_m=tau_m,
        eps_f=eps_f,
        eps_m=eps_m,
        pi_0_w=pi_0_w,
        reached=reached,
        energy_mape=off,
        label=label,
        note=note,
    )


def fit_paces(works: Sequence[BatchWork], seconds: Floats, roof: float = 0.5) -> tuple[Floats, Floats]:
    """Return tau_f and tau_m, each of shape (n,), fitted for each of n modes separately.

    Args:
        works: FLOP and bytes of each work.
        seconds: Measured seconds, shape (works, n).
        roof: About this share of the works is faster than the fit.
    """
    flop, size = (np.array([getattr(work, name) for work in works])[:, None] for name in ("flop", "bytes"))
    best = np.full(seconds.shape[1], np.inf)
    tau_f, tau_m = np.zeros_like(best), np.zeros_like(best)
    for one in range(len(works)):
        for two in range(len(works)):
            guess_f, guess_m = seconds[one] / flop[one], seconds[two] / size[two]
            over = np.log(np.maximum(flop * guess_f, size * guess_m) / seconds)
            error = np.where(over > 0.0, (1.0 - roof) * over, -roof * over).sum(axis=0)
            better = error < best
            best = np.where(better, error, best)
            tau_f, tau_m = np.where(better, guess_f, tau_f), np.where(better, guess_m, tau_m)
    return tau_f, tau_m


def fit_energies(works: Sequence[BatchWork], seconds: Floats, joules: Floats) -> Floats:
    """Return eps_f, eps_m and pi_0, all non-negative, from seconds and joules of shape (works,)."""
    terms = np.array([(work.flop, work.bytes, s) for work, s in zip(works, seconds, strict=True)])
    relative = terms / joules[:, None]
    scale = relative.mean(axis=0)
    ridge = np.sqrt(RIDGE) * np.eye(3)
    shares = solve_nonnegative(
        np.vstack([relative / scale, ridge]), np.concatenate([np.ones(len(joules)), np.zeros(3)])
    )
    found: Floats = shares / scale
    return found


def fit_per_mode(tables: Sequence[ProfileTable], networks: Mapping[str, NetworkCost]) -> ModeRooflines:
    """Return rooflines of the modes that all ``tables`` have, fitted row by row.

    Raises:
        BadInput: If the tables hold different modes.
    """
    first = tables[0]
    if any(not np.array_equal(table.modes.knobs, first.modes.knobs) for table in tables):
        raise BadInput("tables", "tables with other modes", "tables that all hold the same modes in the same order")
    works = [networks[table.workload].batch_work(table.batch_size) for table in tables]
    step_s = np.stack([table.step_s for table in tables])
    joules = step_s * np.stack([table.power_w for table in tables])
    tau_f, tau_m = fit_paces(works, step_s)
    energy = np.stack([fit_energies(works, seconds, spent) for seconds, spent in zip(step_s.T, joules.T, strict=True)])
    eps_f, eps_m, pi_0_w = energy.T
    return ModeRooflines(tau_f, tau_m=tau_m, eps_f=eps_f, eps_m=eps_m, pi_0_w=pi_0_w, label="calibrated")


ARRAY_MB = {"cpu": 128.0, "cuda": 512.0}
"""Size of an operand in MB: several times the largest cache of common processors and GPUs."""
PRODUCT_DEPTH = 512
PRODUCT_COLUMNS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Columns n of the products: 0.5 to 85 FLOP per byte."""
FLOAT_BYTES = 4
REAL_DEVICES = ("cpu", "cuda")
NO_METER_NOTES = {
    "cpu": "energy is not known: this machine shows no energy counter (RAPL) that this user may read",
    "cuda": "energy is not known: no counter of the GPU's energy is read here",
}
MAX_SECONDS = 3600.0
"""Longest real measurement."""

ROOF_SHARE_S = 0.3
"""Share of the time that is spent on the roof's kernels; the rest goes to the kinds of layers."""


def measure_roofline(device: str, seconds: float, mode: str | None = None, seed: int = 0) -> RooflineSweep:
    """Measure this machine, or emulate a board, and fit the roofline's constants.

    ``device`` is ``cpu``, ``cuda`` or the name of a board to emulate, in a power ``mode`` (MAXN by default) and with
    the noise of a ``seed``. A real measurement takes about ``seconds``.

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
    timer = open_timer(device, time.perf_counter, meter)
    points = run_microbenchmark(timer, device, ROOF_SHARE_S * seconds)
    layers = measure_layers(timer, device, (1.0 - ROOF_SHARE_S) * seconds)
    note = "energy of the processor's packages by RAPL" if counter else NO_METER_NOTES[device]
    sweep = fit_sweep(device, mode="as it is set", points=points, label="measured", note=note)
    return replace(sweep, layers=layers, conditions=_describe_conditions(device))


def _describe_conditions(where: str) -> BenchmarkConditions:
    import torch

    on_gpu = where == "cuda"
    tf32 = on_gpu and torch.backends.cudnn.allow_tf32
    return BenchmarkConditions(
        torch.cuda.get_device_name() if on_gpu else f"{read_processor_name(Path('/'))}, {os.cpu_count()} cores",
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        precision="float32, convolutions in TF32" if tf32 else "float32",
    )


def _emulate_sweep(device: str, mode: str | None, seed: int) -> RooflineSweep:
    spec = find(device)
    basis = build_basis(spec, None)
    row = basis.maxn_row if mode is None else find_mode_row(basis, mode)
    lines = compute_rooflines(basis.constants, basis.modes)
    points = emulate_microbenchmark(lines, row, np.random.default_rng(seed))
    note = f"an emulated {spec.name}: nothing was measured; priced by {basis.constants.source}"
    return fit_sweep(spec.name, mode=str(basis.modes[row]), points=points, label=lines.label, note=note)


def open_timer(where: str, now_s: Callable[[], float], meter: KernelEnergyMeter) -> KernelTimer:
    """Return a timer of ``cpu`` or ``cuda``.

    Raises:
        BadInput: If torch sees no such device.
    """
    import torch

    if where == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device", "cuda", "a machine whose torch sees a CUDA device; cpu runs anywhere")
    settle = torch.cuda.synchronize if where == "cuda" else lambda: None  # CPU calls return when they are done
    return KernelTimer(now_s, meter, settle)


def run_microbenchmark(
    timer: KernelTimer, where: str, seconds: float, array_mb: float | None = None
) -> list[KernelPoint]:
    """Run every kernel of the roof on ``cpu`` or ``cuda``; they share the ``seconds`` evenly."""
    import torch

    share_s = seconds / (len(PRODUCT_COLUMNS) + 2)
    with torch.inference_mode():
        return [
            timer.time(kernel, share_s)
            for kernel in _generate_kernels(torch.device(where), 1e6 * (array_mb or ARRAY_MB[where]))
        ]


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


TARGET_KERNEL_S = 0.05
"""Emulated duration of a kernel in seconds, long enough for its launch not to matter."""
EMULATED_TIME_NOISE_SD = 0.008
EMULATED_POWER_NOISE_SD = 0.010
"""Noise in log units, the same as that of an emulated board at work."""
KERNEL_INTENSITIES = (1.0 / 12.0, 1.0 / 8.0, *(n / 2.0 for n in PRODUCT_COLUMNS))
"""FLOP per byte of the emulated kernels, the same as of the real ones."""


def emulate_microbenchmark(board: ModeRooflines, row: int, rng: np.random.Generator) -> list[KernelPoint]:
    """Return the sweep's points in the mode of ``row``, without a network's overheads besides its kernels."""
    at, points = board.mode_roofline(row), []
    for intensity in KERNEL_INTENSITIES:
        size = TARGET_KERNEL_S / max(at.tau_m, intensity * at.tau_f)
        work = BatchWork(intensity * size, size)
        seconds = at.time_s(work)
        watts = at.energy_j(work) / seconds * float(np.exp(rng.normal(0.0, EMULATED_POWER_NOISE_SD)))
        noisy_s = seconds * float(np.exp(rng.normal(0.0, EMULATED_TIME_NOISE_SD)))
        name, joules = f"{intensity:.3g} FLOP/B", noisy_s * watts
        points.append(KernelPoint(name, work.flop, work.bytes, seconds=noisy_s, joules=joules))
    return points
