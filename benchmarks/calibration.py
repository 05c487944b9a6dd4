"""Accuracy of the physical model on measured tables, compared with common regression models.

    FEDGE_PROFILES=folder/of/tables python benchmarks/calibration.py

Every ``<board>/train/*.csv`` under the folder is fitted on all its rows by: the physical model; ordinary least squares
of time and power on the four knobs (as in the characterisation paper, POMACS 6(3) art. 44); and least squares on the
inverse knobs for time, and on the knobs and their squares for power. "half held out" is the physical model fitted to
half of the rows and scored on the others.

Every ``<board>/infer/*.csv`` is fitted at all its batch sizes together. "left out" is the result of interpolating
between the other sizes, or extrapolating by up to a factor 2, for a size that was not fitted.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedge.costs.cost_profile import CostProfile
from fedge.costs.inference_cost import cost_at_batch_size
from fedge.costs.table_calibration import TableCalibration, calibrate_table, calibrate_table_series, compute_fit_errors
from fedge.devices.tables.mode_table import list_batch_sizes, read_mode_table
from fedge.errors import BadInput
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.types import Floats, Modes, ProfileTable


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """One table's mean absolute errors of time and power, in percent."""

    name: str
    rows: int
    physical: tuple[float, float]
    p95: tuple[float, float]
    held_out: tuple[float, float]
    knobs: tuple[float, float]
    inverse: tuple[float, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class InferenceCalibrationRow:
    """Errors of one batch size of an inference table in percent, and the number of rows off by more than a quarter."""

    name: str
    batch_size: int
    rows: int
    together: tuple[float, float]
    p95: tuple[float, float]
    rows_off: tuple[int, int]
    left_out: tuple[float, float] | None


def main() -> None:
    folder = os.environ.get("FEDGE_PROFILES")
    if not folder:
        sys.exit("FEDGE_PROFILES: got nothing; the folder of measured tables")
    paths = sorted(Path(folder).glob("*/train/*.csv"))
    if not paths:
        sys.exit(f"FEDGE_PROFILES: got {folder}; a folder that holds <board>/train/<workload>.csv")
    console = Console(width=140)
    console.print(_to_table([_calibrate_table(read_mode_table(path)) for path in paths]))
    inferred = sorted(Path(folder).glob("*/infer/*.csv"))
    if inferred:
        console.print(_to_inference_table([row for path in inferred for row in _calibrate_inference(path)]))


def _calibrate_table(table: ProfileTable) -> CalibrationRow:
    start = time.perf_counter()
    calibration = calibrate_table(table)
    took = time.perf_counter() - start
    x = table.modes.knobs / table.modes.knobs.max(axis=0)
    return CalibrationRow(
        f"{table.device} {table.workload}",
        rows=len(table.modes),
        physical=(100 * calibration.time.mape, 100 * calibration.power.mape),
        p95=(100 * calibration.time.p95_ape, 100 * calibration.power.p95_ape),
        held_out=_compute_held_out_errors(table),
        knobs=(_least_squares(x, table.step_s), _least_squares(x, table.power_w)),
        inverse=(_least_squares(1.0 / x, table.step_s), _least_squares(np.hstack([x, x**2]), table.power_w)),
        seconds=took,
    )


def _calibrate_inference(path: Path) -> list[InferenceCalibrationRow]:
    tables = [read_mode_table(path, batch_size=size) for size in list_batch_sizes(path)]
    return [
        InferenceCalibrationRow(
            f"{done.device} {done.workload}",
            batch_size=done.batch_size,
            rows=done.rows,
            together=(100 * done.time.mape, 100 * done.power.mape),
            p95=(100 * done.time.p95_ape, 100 * done.power.p95_ape),
            rows_off=(done.time.rows_off, done.power.rows_off),
            left_out=_compute_left_out_errors(tables, left),
        )
        for left, done in enumerate(calibrate_table_series(tables))
    ]


def _compute_left_out_errors(tables: list[ProfileTable], left: int) -> tuple[float, float] | None:
    """Return errors of ``tables[left]`` from the cost fitted to the other sizes, None if they are too far away."""
    table, others = tables[left], tables[:left] + tables[left + 1 :]
    if not others:
        return None
    fits = calibrate_table_series(others)
    profiles = [_build_profile(done) for done in fits]
    try:
        cost = cost_at_batch_size(profiles, table.batch_size).coefficients
    except BadInput:
        return None
    top = fits[0].maxn
    return (
        100 * compute_fit_errors(compute_step_s(cost, top, table.modes), table.step_s).mape,
        100 * compute_fit_errors(compute_power_w(cost, top, table.modes), table.power_w).mape,
    )


def _build_profile(done: TableCalibration) -> CostProfile:
    return CostProfile(
        done.device,
        workload=done.workload,
        batch_size=done.batch_size,
        coefficients=done.coefficients,
        label="calibrated",
        source=done.table,
        time_mape=done.time.mape,
        power_mape=done.power.mape,
        residual_time_sd_log=done.time.residual_sd_log,
        residual_power_sd_log=done.power.residual_sd_log,
        kind="infer",
    )


def _compute_held_out_errors(table: ProfileTable) -> tuple[float, float]:
    order = np.random.default_rng(0).permutation(len(table.modes))
    seen, kept = order[::2], order[1::2]
    half = ProfileTable(
        table.device,
        workload=table.workload,
        batch_size=table.batch_size,
        modes=Modes(table.modes.knobs[seen]),
        step_s=table.step_s[seen],
        power_w=table.power_w[seen],
        sha256=table.sha256,
        path=table.path,
    )
    fitted, rest = calibrate_table(half, table.maxn).coefficients, Modes(table.modes.knobs[kept])
    return (
        100 * compute_fit_errors(compute_step_s(fitted, table.maxn, rest), table.step_s[kept]).mape,
        100 * compute_fit_errors(compute_power_w(fitted, table.maxn, rest), table.power_w[kept]).mape,
    )


def _least_squares(features: Floats, seen: Floats) -> float:
    """Return the mean absolute error in percent of an ordinary least-squares fit with a constant."""
    design = np.hstack([np.ones((len(features), 1)), features])
    weights, *_ = np.linalg.lstsq(design, seen, rcond=None)
    return 100 * float(np.mean(np.abs(design @ weights - seen) / seen))


def _to_table(rows: list[CalibrationRow]) -> Table:
    table = Table(title="Mean absolute error over all rows, percent, time / power")
    table.add_column("table")
    headings = ("rows", "physical", "95th pct.", "half held out", "OLS on knobs", "OLS on inverse, squared", "fit s")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        pairs = (row.physical, row.p95, row.held_out, row.knobs, row.inverse)
        cells = (f"{t:.1f} / {p:.1f}" for t, p in pairs)
        table.add_row(row.name, str(row.rows), *cells, f"{row.seconds:.2f}")
    return table


def _to_inference_table(rows: list[InferenceCalibrationRow]) -> Table:
    table = Table(title="Inference: the same, all batch sizes of a table fitted together")
    table.add_column("table")
    for heading in ("batch", "rows", "physical", "95th pct.", "rows off > 25 %", "size left out"):
        table.add_column(heading, justify="right")
    for row in rows:
        pairs = (row.together, row.p95)
        cells = (f"{t:.1f} / {p:.1f}" for t, p in pairs)
        off = f"{row.rows_off[0]} / {row.rows_off[1]}"
        left_out = "-" if row.left_out is None else f"{row.left_out[0]:.1f} / {row.left_out[1]:.1f}"
        table.add_row(row.name, str(row.batch_size), str(row.rows), *cells, off, left_out)
    return table


if __name__ == "__main__":
    main()
