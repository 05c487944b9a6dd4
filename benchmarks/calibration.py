"""Accuracy of the physical model on measured tables.

    FEDGE_PROFILES=folder/of/tables python benchmarks/calibration.py

The model is fitted to all rows of every ``<board>/train/*.csv`` under the folder. "half held out" is the model fitted
to half of the rows and scored on the others.

Every ``<board>/infer/*.csv`` is fitted at all its batch sizes together. "left out" is the result of interpolating
between the other sizes, or extrapolating by up to a factor 2, for a size that was not fitted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from figures import build_table, compute_mape, find_profiles, read_batch_sizes
from rich.console import Console

from fedge.costs.cost_priors import cost_at_batch_size
from fedge.costs.cost_profile import CostProfile
from fedge.costs.table_calibration import calibrate_tables_jointly, find_top_mode
from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s
from fedge.types import Modes, PowerMode, ProfileTable

TRAIN_HEADINGS = ("table", "rows", "physical", "95th pct.", "half held out", "fit s")
INFER_HEADINGS = ("table", "batch", "rows", "physical", "95th pct.", "rows off > 25 %", "size left out")
Errors = tuple[float, float]
"""Mean absolute errors of time and power, in percent."""


def main() -> None:
    """Print one table for training and one for inference."""
    console = Console(width=140)
    shown = build_table("Mean absolute error over all rows, percent, time / power", *TRAIN_HEADINGS)
    for path in find_profiles("train"):
        shown.add_row(*_calibrate_training(read_mode_table(path)))
    console.print(shown)
    shown = build_table("Inference: the same, all batch sizes of a table fitted together", *INFER_HEADINGS)
    for path in find_profiles("infer"):
        for cells in _calibrate_inference(path):
            shown.add_row(*cells)
    console.print(shown)


def _calibrate_training(table: ProfileTable) -> list[str]:
    """Return the cells under ``TRAIN_HEADINGS``."""
    begin_s = time.perf_counter()
    (profile,) = calibrate_tables_jointly([table])
    took_s = time.perf_counter() - begin_s
    errors = (*_fit_errors(profile), _held_out_errors(table))
    name = f"{table.device} {table.workload}"
    return [name, str(len(table.modes)), *map(_format_errors, errors), f"{took_s:.2f}"]


def _calibrate_inference(path: Path) -> list[list[str]]:
    """Return the cells under ``INFER_HEADINGS`` for every batch size."""
    tables = read_batch_sizes(path)
    return [
        [
            f"{fit.device} {fit.workload}",
            str(fit.batch_size),
            str(len(table.modes)),
            *map(_format_errors, _fit_errors(fit)),
            f"{fit.evidence.time_rows_off} / {fit.evidence.power_rows_off}" if fit.evidence else "",
            _format_errors(_left_out_errors(tables, left_out)),
        ]
        for left_out, (table, fit) in enumerate(zip(tables, calibrate_tables_jointly(tables), strict=True))
    ]


def _fit_errors(fit: CostProfile) -> tuple[Errors, Errors]:
    """Return the mean errors and their 95th percentiles on the fitted rows."""
    assert fit.evidence
    mean = (100 * (fit.time_mape or 0.0), 100 * (fit.power_mape or 0.0))
    return mean, (100 * fit.evidence.time_p95_ape, 100 * fit.evidence.power_p95_ape)


def _left_out_errors(tables: Sequence[ProfileTable], left_out: int) -> Errors | None:
    """Return errors of one batch size from the cost fitted to the others, None if they are too far away."""
    table, others = tables[left_out], [*tables[:left_out], *tables[left_out + 1 :]]
    if not others:
        return None
    try:
        cost = cost_at_batch_size(calibrate_tables_jointly(others), table.batch_size).coefficients
    except BadInput:
        return None
    return _prediction_errors(cost, find_top_mode(others), table)


def _held_out_errors(table: ProfileTable) -> Errors:
    """Return errors on a random half of the rows of the model fitted to the other half."""
    order = np.random.default_rng(0).permutation(len(table.modes))
    (profile,) = calibrate_tables_jointly([_select_rows(table, order[::2])], table.maxn)
    return _prediction_errors(profile.coefficients, table.maxn, _select_rows(table, order[1::2]))


def _select_rows(table: ProfileTable, rows: np.ndarray) -> ProfileTable:
    modes = Modes(table.modes.knobs[rows])
    return replace(table, modes=modes, step_s=table.step_s[rows], power_w=table.power_w[rows])


def _prediction_errors(cost: Coefficients, maxn: PowerMode, table: ProfileTable) -> Errors:
    return (
        compute_mape(compute_step_s(cost, maxn, table.modes), table.step_s),
        compute_mape(compute_power_w(cost, maxn, table.modes), table.power_w),
    )


def _format_errors(errors: Errors | None) -> str:
    return "-" if errors is None else f"{errors[0]:.1f} / {errors[1]:.1f}"


if __name__ == "__main__":
    main()
