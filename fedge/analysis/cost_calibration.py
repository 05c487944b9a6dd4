"""Calibration of the physical model to tables, written as cost profiles.

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
from fedge.types import Label, PowerMode, ProfileTable, fitted_label

CANONICAL_BOARDS = {"agx-orin": "agx-orin-64gb"}
"""Catalogue names of folders with measured tables that are named differently."""
FEWEST_MODES = 20
"""Fewest modes for a fit: about the number of coefficients of the physical model."""


@dataclass(frozen=True, slots=True)
class CalibrationOutcome:
    """Result of fitting one table, or one batch size of it.

    Errors are relative ones over all rows, as shares: the mean and the 95th percentile of the absolute error, and the
    number of rows that are more than a quarter off. ``written`` is None if no profile was written.
    """

    table: str
    device: str
    workload: str
    batch_size: int
    rows: int
    duplicates: int
    """Rows that repeat a mode."""
    time_mape: float
    time_p95_ape: float
    power_mape: float
    power_p95_ape: float
    written: str | None
    label: Label
    """Label of the profile: ``calibrated`` if its table was measured."""
    kind: WorkloadKind = "train"
    time_rows_off: int = 0
    power_rows_off: int = 0


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
        tables: Paths of tables.
        device: Board; by default from each table's path.
        workload: Workload; by default from each table's path.
        batch_size: Batch size to fit; by default, each batch size of an inference table gives a profile, fitted
            together.
        kind: Training or inference; by default from each table's path.
        out: Folder for the profiles, or None to write none.
        maxn: The board's top mode; by default the catalogue's, otherwise the table's.
        origin: Author of the measurements; a table without a label counts as measured if it is given.

    Raises:
        BadInput: If a table is invalid, one workload name is given for several tables, or two tables share a file name.
    """
    if workload is not None and len(tables) > 1:
        raise BadInput("--workload", f"{len(tables)} tables", "one table, or no --workload (names come from the paths)")
    fits: list[tuple[Path, int, CostProfile]] = []
    for path in tables:
        own_kind = kind or parse_workload_kind(path)
        sizes = list_batch_sizes(path) if own_kind == "infer" and batch_size is None else (batch_size,)
        read = [_require_modes(path, read_mode_table(path, device, workload, size)) for size in sizes]
        for done, table in zip(_fit_tables(read, maxn), read, strict=True):
            fits.append((path, table.duplicates, _to_cost_profile(done, own_kind, origin)))
    names = [profile_file_name(profile) for *_, profile in fits]
    for name in names:
        if names.count(name) > 1:
            raise BadInput("TABLE", f"two tables for {name}", "tables of different boards or workloads")
    try:
        written = [write_profile(profile, out) if out else None for *_, profile in fits]
    except OSError as error:
        raise BadInput("--folder", str(out), f"a folder that can be written ({error.strerror})") from error
    return tuple(_to_outcome(*fitted, file) for fitted, file in zip(fits, written, strict=True))


def _fit_tables(tables: Sequence[ProfileTable], maxn: PowerMode | None) -> Sequence[TableCalibration]:
    """Fit one table, or several batch sizes of one together."""
    spec = load_catalogue().get(CANONICAL_BOARDS.get(tables[0].device, tables[0].device))
    top = maxn or (spec.maxn if spec else None)
    return calibrate_table_series(tables, top) if len(tables) > 1 else [calibrate_table(tables[0], top)]


def _require_modes(path: Path, table: ProfileTable) -> ProfileTable:
    if len(table.modes) < FEWEST_MODES:
        got = f"{len(table.modes)} power modes at batch size {table.batch_size}"
        raise BadInput(str(path), got, f"at least {FEWEST_MODES}: there is much to fit")
    return table


def _to_cost_profile(calibration: TableCalibration, kind: WorkloadKind, origin: str) -> CostProfile:
    time, power = calibration.time, calibration.power
    label: Label = "measured" if calibration.label == "unknown" and origin else calibration.label
    return CostProfile(
        device=CANONICAL_BOARDS.get(calibration.device, calibration.device),
        workload=calibration.workload,
        batch_size=calibration.batch_size,
        coefficients=calibration.coefficients,
        label=fitted_label(label),
        source=f"fitted to {calibration.rows} rows of {calibration.table} ({label})",
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
            label=label,
        ),
        kind=kind,
    )


def _to_outcome(path: Path, duplicates: int, profile: CostProfile, written: Path | None) -> CalibrationOutcome:
    evidence = profile.evidence
    assert evidence is not None
    assert profile.time_mape is not None
    assert profile.power_mape is not None
    return CalibrationOutcome(
        str(path),
        device=profile.device,
        workload=profile.workload,
        batch_size=profile.batch_size,
        rows=evidence.rows,
        duplicates=duplicates,
        time_mape=profile.time_mape,
        time_p95_ape=evidence.time_p95_ape,
        power_mape=profile.power_mape,
        power_p95_ape=evidence.power_p95_ape,
        written=str(written) if written else None,
        label=profile.label,
        kind=profile.kind,
        time_rows_off=evidence.time_rows_off,
        power_rows_off=evidence.power_rows_off,
    )
