"""Fit the five roofline constants to kernels of many intensities; without a power meter the energies stay unknown.

Time: tau_f and tau_m with the least sum of weighted |log error|; such a sum is least where the model meets two of the
kernels, so that all pairs are tried. A roof is the performance of the best kernels: one that is faster weighs more than
one that is slower, which may only be a poor kernel. Energy: eps_f, eps_m and pi_0 by non-negative least squares on
relative errors, with slight regularisation, since FLOP, bytes and time are correlated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.analysis.roofline.roofline_model import ModeRooflines, Roofline
from fedge.costs.layers.network_cost import BatchWork, NetworkCost
from fedge.errors import BadInput, RunFailed
from fedge.physics.nonnegative_least_squares import solve_nonnegative
from fedge.types import Floats, Label, ProfileTable

ROOF_SHARE = 0.1
"""Quantile of the fit: about this share of the kernels may be faster than the roof; 0.5 would be their median."""
RIDGE = 1e-3
"""Weight of the constants' own squares relative to the errors', in units of their mean share: keeps them unique."""


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
class RooflineSweep:
    """A micro-benchmark of one device in one mode: its points and the constants; energies are None without a meter."""

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
    metered = [point.joules for point in points if point.joules is not None]
    reached = float(np.median(modelled / seconds))
    timed = RooflineSweep(
        device,
        mode=mode,
        points=tuple(points),
        tau_f=tau_f,
        tau_m=tau_m,
        eps_f=None,
        eps_m=None,
        pi_0_w=None,
        reached=reached,
        energy_mape=None,
        label=label,
        note=note,
    )
    if len(metered) < len(points):
        return timed
    joules = np.array(metered)
    eps_f, eps_m, pi_0_w = fit_energies(works, seconds, joules).tolist()
    terms = np.array([(work.flop, work.bytes, s) for work, s in zip(works, seconds, strict=True)])
    off = float(np.mean(np.abs(terms @ [eps_f, eps_m, pi_0_w] / joules - 1.0)))
    return replace(timed, eps_f=eps_f, eps_m=eps_m, pi_0_w=pi_0_w, energy_mape=off)


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
