"""Calibrate the physical model to tables, and compute its errors over all rows of a table.

Tables of a board that a cost profile predicts, and the grid of modes that they are predicted for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedge.costs.cost_profile import CostProfile
from fedge.modes import build_grid
from fedge.physics import time_power_model
from fedge.physics.batch_series import fit_series
from fedge.physics.model_fit import fit_table
from fedge.physics.robust_fit import robust_sd
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s
from fedge.types import DeviceSpec, Floats, Label, Modes, PowerMode, ProfileTable

OUTLIER_SHARE = 0.25
"""Relative error beyond which a row counts as an outlier of its measurement. Default for reporting only; no fit depends
on it."""


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Errors of one quantity over all rows of a table.

    Attributes:
        mape: Mean of |model - measured| / measured (0.1 is 10 %).
        p95_ape: 95th percentile of the same.
        residual_sd_log: Robust standard deviation (1.4826 MAD) of log measured - log model.
        rows_off: Number of rows that are more than ``OUTLIER_SHARE`` off.
    """

    mape: float
    p95_ape: float
    residual_sd_log: float
    rows_off: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TableCalibration:
    """Coefficients fitted to a table, with their errors.

    Attributes:
        coefficients: The fitted log-parameters.
        maxn: The board's top mode, to which the coefficients refer.
    """

    device: str
    workload: str
    batch_size: int
    coefficients: Coefficients
    maxn: PowerMode
    time: FitErrors
    power: FitErrors
    rows: int
    table: str
    sha256: str
    label: Label
    """Label of the table."""


def calibrate_table(table: ProfileTable, maxn: PowerMode | None = None) -> TableCalibration:
    """Fit the physical model to a table; the top mode is the table's unless given."""
    top = maxn or table.maxn
    return _build_calibration(table, top, fit_table(table.modes, top, table.step_s, table.power_w))


def calibrate_table_series(
    tables: Sequence[ProfileTable], maxn: PowerMode | None = None
) -> tuple[TableCalibration, ...]:
    """Fit the physical model jointly to tables of one workload, ascending in batch size (``physics.batch_series``).

    Returns one calibration per table. Without ``maxn``, the top mode has the largest value of every knob over all
    tables.
    """
    top = maxn or _largest_mode([table.maxn for table in tables])
    fitted = fit_series(tables, top)
    return tuple(
        _build_calibration(table, top, coefficients) for table, coefficients in zip(tables, fitted, strict=True)
    )


def _largest_mode(tops: Sequence[PowerMode]) -> PowerMode:
    cores, clocks = max(top.cores for top in tops), [(top.cpu_mhz, top.gpu_mhz, top.mem_mhz) for top in tops]
    return PowerMode(cores, *(max(column) for column in zip(*clocks, strict=True)))


def _build_calibration(table: ProfileTable, top: PowerMode, coefficients: Coefficients) -> TableCalibration:
    return TableCalibration(
        table.device,
        workload=table.workload,
        batch_size=table.batch_size,
        coefficients=coefficients,
        maxn=top,
        time=compute_fit_errors(compute_step_s(coefficients, top, table.modes), table.step_s),
        power=compute_fit_errors(compute_power_w(coefficients, top, table.modes), table.power_w),
        rows=len(table.modes),
        table=Path(table.path).name,
        sha256=table.sha256,
        label=table.label,
    )


def compute_fit_errors(modelled: Floats, seen: Floats) -> FitErrors:
    """Return the errors of modelled values over all rows, both of shape (n,) and above 0."""
    ape = np.abs(modelled - seen) / seen
    residual = np.log(seen) - np.log(modelled)
    sd = robust_sd(residual - np.median(residual))
    return FitErrors(float(ape.mean()), float(np.quantile(ape, 0.95)), sd, int((ape > OUTLIER_SHARE).sum()))


FULCRUM_GRID = (
    (4.0, 8.0, 12.0),
    (422.4, 729.6, 1036.8, 1344.0, 1651.2, 1958.4, 2201.6),
    (114.75, 318.75, 522.75, 726.75, 930.75, 1134.75, 1300.5),
    (665.6, 2133.0, 3199.0),
)
"""The 441 modes of AGX Orin among which Fulcrum (arXiv 2509.20205) chooses: cores, CPU, GPU and memory MHz."""
MAX_KNOB_VALUES = (4, 7, 7, 3)
"""Number of values per knob (cores, CPU, GPU, memory clock) in the planning grid, evenly spaced.

A default of about the size of Fulcrum's grid; a finer grid takes longer to plan.
"""


def build_planning_modes(spec: DeviceSpec) -> Modes:
    """Return the modes considered for planning: Fulcrum's grid for its board, otherwise a thinned grid."""
    knobs = (tuple(map(float, spec.cores)), spec.cpu_mhz, spec.gpu_mhz, spec.mem_mhz)
    if all(set(wanted) <= set(known) for wanted, known in zip(FULCRUM_GRID, knobs, strict=True)):
        chosen: list[tuple[float, ...]] = list(FULCRUM_GRID)
    else:
        chosen = [_thin_values(values, most) for values, most in zip(knobs, MAX_KNOB_VALUES, strict=True)]
    cores, *clocks = chosen
    return build_grid(spec, tuple(map(int, cores)), *clocks)


def predict_table(spec: DeviceSpec, modes: Modes, profile: CostProfile) -> ProfileTable:
    """Predict step time and power of the modes with a cost profile, as a table."""
    return ProfileTable(
        spec.name,
        workload=profile.workload,
        batch_size=profile.batch_size,
        modes=modes,
        step_s=time_power_model.compute_step_s(profile.coefficients, spec.maxn, modes),
        power_w=time_power_model.compute_power_w(profile.coefficients, spec.maxn, modes),
        sha256=profile.evidence.sha256 if profile.evidence else "",
        path=profile.source,
        label=profile.label,
    )


def _thin_values(values: Sequence[float], most: int) -> tuple[float, ...]:
    ordered = sorted(values)
    if len(ordered) <= most:
        return tuple(ordered)
    # Counted from the top, because the lowest value of a knob is hardly ever useful.
    chosen = np.linspace(len(ordered) - 1, 0, most + 1).round().astype(int)[:-1]
    return tuple(ordered[i] for i in sorted(chosen))
