"""How well the physical model follows measured tables, beside the models a user would otherwise reach for.

    FEDGE_PROFILES=folder/of/tables python benchmarks/calibration.py

Every ``<board>/train/*.csv`` under the folder is fitted on all its rows by: the physical model; ordinary least squares
of time and power on the four knobs (as in the characterisation paper, POMACS 6(3) art. 44); and least squares on the
inverse knobs for time, and on the knobs and their squares for power. "half held out" is the physical model fitted to
half of the rows and scored on the others.
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

from fedge.physics.model import power_w, step_s
from fedge.profiles.calibrate import calibrate, errors_of
from fedge.profiles.table import read_table
from fedge.types import Floats, Modes, ProfileTable


@dataclass(frozen=True, slots=True)
class Row:
    """One table's outcome: mean absolute errors in percent, time and power."""

    name: str
    rows: int
    physical: tuple[float, float]
    p95: tuple[float, float]
    held_out: tuple[float, float]
    knobs: tuple[float, float]
    inverse: tuple[float, float]
    seconds: float


def main() -> None:
    folder = os.environ.get("FEDGE_PROFILES")
    if not folder:
        sys.exit("FEDGE_PROFILES: got nothing; the folder of measured tables")
    paths = sorted(Path(folder).glob("*/train/*.csv"))
    if not paths:
        sys.exit(f"FEDGE_PROFILES: got {folder}; a folder that holds <board>/train/<workload>.csv")
    Console(width=140).print(_as_table([_row(read_table(path)) for path in paths]))


def _row(table: ProfileTable) -> Row:
    start = time.perf_counter()
    calibration = calibrate(table)
    took = time.perf_counter() - start
    x = table.modes.knobs / table.modes.knobs.max(axis=0)
    return Row(
        f"{table.device} {table.workload}",
        len(table.modes),
        (100 * calibration.time.mape, 100 * calibration.power.mape),
        (100 * calibration.time.p95_ape, 100 * calibration.power.p95_ape),
        _held_out(table),
        (_least_squares(x, table.step_s), _least_squares(x, table.power_w)),
        (_least_squares(1.0 / x, table.step_s), _least_squares(np.hstack([x, x**2]), table.power_w)),
        took,
    )


def _held_out(table: ProfileTable) -> tuple[float, float]:
    order = np.random.default_rng(0).permutation(len(table.modes))
    seen, kept = order[::2], order[1::2]
    half = ProfileTable(
        table.device, table.workload, table.batch_size, Modes(table.modes.knobs[seen]), table.step_s[seen],
        table.power_w[seen], table.sha256, table.path,
    )  # fmt: skip
    fitted, rest = calibrate(half, table.maxn).coefficients, Modes(table.modes.knobs[kept])
    return (
        100 * errors_of(step_s(fitted, table.maxn, rest), table.step_s[kept]).mape,
        100 * errors_of(power_w(fitted, table.maxn, rest), table.power_w[kept]).mape,
    )


def _least_squares(features: Floats, seen: Floats) -> float:
    """Mean absolute error in percent of an ordinary least-squares fit with a constant."""
    design = np.hstack([np.ones((len(features), 1)), features])
    weights, *_ = np.linalg.lstsq(design, seen, rcond=None)
    return 100 * float(np.mean(np.abs(design @ weights - seen) / seen))


def _as_table(rows: list[Row]) -> Table:
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


if __name__ == "__main__":
    main()
