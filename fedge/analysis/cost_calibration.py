"""Calibration of the physical model to measured tables, written as cost profiles.

A training table yields one profile, an inference table one per batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.costs.cost_profile import CalibrationEvidence, CostProfile, WorkloadKind, profile_file_name, write_profile
from fedge.costs.table_calibration import TableCalibration, calibrate_table, calibrate_table_series
from fedge.devices.catalogue import load_catalogue
from fedge.devices.tables.mode_table import list_batch_sizes, parse_workload_kind, read_mode_table
from fedge.errors import BadInput
from fedge.types import PowerMode, ProfileTable

CANONICAL_BOARDS = {"agx-orin": "agx-orin-64gb"}
"""Catalogue names of folders with measured tables that are named differently."""
FEWEST_MODES = 20
"""Fewest modes for a fit: about the number of coefficients of the physical model."""


@dataclass(frozen=True, slots=True)
class CalibrationOutcome:
    """Result of fitting one table, or one batch size of it.

    Attributes:
        table: Path of the table.
        rows: Number of rows fitted.
        duplicates: Number of rows that repeat a mode.
        time_mape: Mean absolute relative error of time over all rows, as a share.
        time_p95_ape: 95th percentile of that error.
        power_mape: Mean absolute relative error of power over all rows, as a share.
        power_p95_ape: 95th percentile of that error.
        written: Path of the profile, or None if none was written.
    """

    table: str
    device: str
    workload: str
    batch_size: int
    rows: int
    duplicates: int
    time_mape: float
    time_p95_ape: float
    power_mape: float
    power_p95_ape: float
    written: str | None
    kind: WorkloadKind = "train"
    time_rows_off: int = 0
    """Rows whose time is more than a quarter off the fit."""
    power_rows_off: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _TableCalibration:
    """A calibration with the table's path, the number of rows that repeat a mode, and the kind of step."""

    path: Path
    calibration: TableCalibration
    duplicates: int
    kind: WorkloadKind


@dataclass(frozen=True, slots=True)
class _CalibrationRequest:
    """The arguments of ``calibrate_tables`` that hold for all tables."""

    device: str | None
    workload: str | None
    batch_size: int | None
    kind: WorkloadKind | None
    maxn: PowerMode | None


def calibrate_tables(
    tables: Sequence[Path],
    *,
    device: str | None = None,
    workload: str | None = None,
    batch_size: int | None = None,
    kind: WorkloadKind | None = None,
    out: Path | None = None,
    maxn: PowerMode | None = None,
    origin: str = "",
) -> tuple[CalibrationOutcome, ...]:
    """Fit every table and write its profiles.

    Args:
        tables: Paths of measured tables.
        device: Board; by default from each table's path.
        workload: Workload; by default from each table's path.
        batch_size: Batch size to fit; by default, each batch size of an inference table gives a profile, fitted
            together.
        kind: Training or inference; by default from each table's path.
        out: Folder for the profiles, or None to write none.
        maxn: The board's top mode; by default the catalogue's, otherwise the table's.
        origin: Author of the measurements.

    Raises:
        BadInput: If a table is invalid, one workload name is given for several tables, or two tables share a file name.
    """
    if workload is not None and len(tables) > 1:
        raise BadInput("--workload", f"{len(tables)} tables", "one table, or no --workload (names come from the paths)")
    request = _CalibrationRequest(device, workload=workload, batch_size=batch_size, kind=kind, maxn=maxn)
    fits = [fitted for path in tables for fitted in _fit_table(path, request)]
    profiles = [_to_cost_profile(fitted, origin) for fitted in fits]
    names = [profile_file_name(profile) for profile in profiles]
    for name in names:
        if names.count(name) > 1:
            raise BadInput("TABLE", f"two tables for {name}", "tables of different boards or workloads")
    try:
        written = [write_profile(profile, out) if out else None for profile in profiles]
    except OSError as error:
        raise BadInput("--out", str(out), f"a folder that can be written ({error.strerror})") from error
    return tuple(_to_outcome(fitted, file) for fitted, file in zip(fits, written, strict=True))


def _fit_table(path: Path, request: _CalibrationRequest) -> list[_TableCalibration]:
    """Fit a table once, or once per batch size for an inference table."""
    kind = request.kind or parse_workload_kind(path)
    sizes = list_batch_sizes(path) if kind == "infer" and request.batch_size is None else (request.batch_size,)
    tables = [_require_modes(path, read_mode_table(path, request.device, request.workload, size)) for size in sizes]
    spec = load_catalogue().get(CANONICAL_BOARDS.get(tables[0].device, tables[0].device))
    maxn = request.maxn or (spec.maxn if spec else None)
    fits = calibrate_table_series(tables, maxn) if len(tables) > 1 else [calibrate_table(tables[0], maxn)]
    return [_TableCalibration(path, done, table.duplicates, kind) for done, table in zip(fits, tables, strict=True)]


def _require_modes(path: Path, table: ProfileTable) -> ProfileTable:
    if len(table.modes) < FEWEST_MODES:
        at = f" at batch size {table.batch_size}"
        raise BadInput(
            str(path), f"{len(table.modes)} power modes{at}", f"at least {FEWEST_MODES}: there is much to fit"
        )
    return table


def _to_cost_profile(fitted: _TableCalibration, origin: str) -> CostProfile:
    calibration = fitted.calibration
    time, power = calibration.time, calibration.power
    return CostProfile(
        device=CANONICAL_BOARDS.get(calibration.device, calibration.device),
        workload=calibration.workload,
        batch_size=calibration.batch_size,
        coefficients=calibration.coefficients,
        label="calibrated",
        source=f"fitted to {calibration.rows} rows of {calibration.table}",
        time_mape=time.mape,
        power_mape=power.mape,
        residual_time_sd_log=time.residual_sd_log,
        residual_power_sd_log=power.residual_sd_log,
        evidence=CalibrationEvidence(
            calibration.table,
            sha256=calibration.sha256,
            rows=calibration.rows,
            time_p95_ape=time.p95_ape,
            power_p95_ape=power.p95_ape,
            origin=origin,
            time_rows_off=time.rows_off,
            power_rows_off=power.rows_off,
        ),
        kind=fitted.kind,
    )


def _to_outcome(fitted: _TableCalibration, written: Path | None) -> CalibrationOutcome:
    calibration = fitted.calibration
    return CalibrationOutcome(
        str(fitted.path),
        device=CANONICAL_BOARDS.get(calibration.device, calibration.device),
        workload=calibration.workload,
        batch_size=calibration.batch_size,
        rows=calibration.rows,
        duplicates=fitted.duplicates,
        time_mape=calibration.time.mape,
        time_p95_ape=calibration.time.p95_ape,
        power_mape=calibration.power.mape,
        power_p95_ape=calibration.power.p95_ape,
        written=str(written) if written else None,
        kind=fitted.kind,
        time_rows_off=calibration.time.rows_off,
        power_rows_off=calibration.power.rows_off,
    )
