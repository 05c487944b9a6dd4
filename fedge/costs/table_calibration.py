"""Calibrate the physical model to tables, and compute its errors over all rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedge.physics.batch_series import fit_series
from fedge.physics.model_fit import fit_table
from fedge.physics.robust_fit import robust_sd
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s
from fedge.types import Floats, Label, PowerMode, ProfileTable

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
