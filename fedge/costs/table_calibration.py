"""Calibrates the physical model to measured tables, and says how far off it is over all of a table's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedge.physics.batch_series import fit_series
from fedge.physics.model_fit import fit_table
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s
from fedge.types import Floats, PowerMode, ProfileTable

OUTLIER_SHARE = 0.25
"""A row this share off the model tells more of its measurement than of the board; chosen by us."""


@dataclass(frozen=True, slots=True)
class FitErrors:
    """Of one quantity over all rows: mean and 95th percentile of |model - seen| / seen, and the residual's spread.

    ``residual_sd_log`` is the robust standard deviation (1.4826 MAD) of log seen - log model; ``rows_off`` counts the
    rows that lie more than ``OUTLIER_SHARE`` off.
    """

    mape: float
    p95_ape: float
    residual_sd_log: float
    rows_off: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TableCalibration:
    """Coefficients fitted to a table, their errors over all its rows, and which table it was."""

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


def calibrate_table(table: ProfileTable, maxn: PowerMode | None = None) -> TableCalibration:
    """Fit the physical model to ``table``; ``maxn`` is the board's top, by default the table's."""
    top = maxn or table.maxn
    return _build_calibration(table, top, fit_table(table.modes, top, table.step_s, table.power_w))


def calibrate_table_series(
    tables: Sequence[ProfileTable], maxn: PowerMode | None = None
) -> tuple[TableCalibration, ...]:
    """Fit the physical model to the tables of one workload at several batch sizes together, see ``physics.series``.

    ``tables`` are in ascending order of batch size; ``maxn`` is the board's top, by default that of all tables.
    """
    top = maxn or _largest_mode([table.maxn for table in tables])
    fitted = fit_series(tables, top)
    return tuple(
        _build_calibration(table, top, coefficients) for table, coefficients in zip(tables, fitted, strict=True)
    )


def _largest_mode(tops: Sequence[PowerMode]) -> PowerMode:
    """The largest value of every knob."""
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
    )


def compute_fit_errors(modelled: Floats, seen: Floats) -> FitErrors:
    """The errors of modelled values about seen ones, over all rows."""
    ape = np.abs(modelled - seen) / seen
    residual = np.log(seen) - np.log(modelled)
    mad = float(np.median(np.abs(residual - np.median(residual))))
    return FitErrors(float(ape.mean()), float(np.quantile(ape, 0.95)), 1.4826 * mad, int((ape > OUTLIER_SHARE).sum()))
