"""Cost profiles fitted to measured tables, with their errors over all rows, and tables that a cost profile predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedge.costs.cost_profile import CalibrationEvidence, CostProfile, WorkloadKind
from fedge.modes import build_grid
from fedge.physics.batch_series import fit_series
from fedge.physics.model_fit import fit_table
from fedge.physics.robust_fit import robust_sd
from fedge.physics.time_power_model import Coefficients, compute_power_w, compute_step_s
from fedge.types import DeviceSpec, Floats, Label, Modes, PowerMode, ProfileTable, fitted_label

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


def calibrate_tables_jointly(
    tables: Sequence[ProfileTable], maxn: PowerMode | None = None, *, kind: WorkloadKind = "train", origin: str = ""
) -> tuple[CostProfile, ...]:
    """Fit the physical model to tables of one workload, ascending in batch size (``physics.batch_series``).

    Args:
        tables: The tables, at least one.
        maxn: The board's top mode; None for ``find_top_mode``.
        kind: Kind of the minibatches.
        origin: Author of the measurements; a table without a label counts as measured if it is given.

    Returns:
        One profile per table.
    """
    top = maxn or find_top_mode(tables)
    if len(tables) == 1:
        fitted = [fit_table(tables[0].modes, top, tables[0].step_s, tables[0].power_w)]
    else:
        fitted = list(fit_series(tables, top))
    return tuple(
        _build_profile(table, top, of, kind=kind, origin=origin) for table, of in zip(tables, fitted, strict=True)
    )


def find_top_mode(tables: Sequence[ProfileTable]) -> PowerMode:
    """Return the mode with the largest value of every knob over all tables."""
    tops = [table.maxn for table in tables]
    clocks = (max(getattr(top, name) for top in tops) for name in ("cpu_mhz", "gpu_mhz", "mem_mhz"))
    return PowerMode(max(top.cores for top in tops), *clocks)


def _build_profile(
    table: ProfileTable, top: PowerMode, coefficients: Coefficients, kind: WorkloadKind, origin: str
) -> CostProfile:
    time = compute_fit_errors(compute_step_s(coefficients, top, table.modes), table.step_s)
    power = compute_fit_errors(compute_power_w(coefficients, top, table.modes), table.power_w)
    label: Label = "measured" if table.label == "unknown" and origin else table.label
    name, rows = Path(table.path).name, len(table.modes)
    return CostProfile(
        table.device,
        workload=table.workload,
        batch_size=table.batch_size,
        coefficients=coefficients,
        label=fitted_label(label),
        source=f"fitted to {rows} rows of {name} ({label})",
        time_mape=time.mape,
        power_mape=power.mape,
        residual_time_sd_log=time.residual_sd_log,
        residual_power_sd_log=power.residual_sd_log,
        evidence=CalibrationEvidence(
            name,
            sha256=table.sha256,
            rows=rows,
            time_p95_ape=time.p95_ape,
            power_p95_ape=power.p95_ape,
            origin=origin,
            time_rows_off=time.rows_off,
            power_rows_off=power.rows_off,
            label=label,
        ),
        kind=kind,
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
        step_s=compute_step_s(profile.coefficients, spec.maxn, modes),
        power_w=compute_power_w(profile.coefficients, spec.maxn, modes),
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
