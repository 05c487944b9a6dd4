"""Calibration of the physical model to tables, written as cost profiles.

A training table yields one profile, an inference table one per batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedge.costs.cost_profile import CostProfile, WorkloadKind, profile_file_name, write_profile
from fedge.costs.table_calibration import calibrate_tables_jointly
from fedge.devices.catalogue import load_catalogue
from fedge.devices.tables.mode_table import list_batch_sizes, parse_workload_kind, read_mode_table
from fedge.errors import BadInput
from fedge.types import Label, PowerMode, ProfileTable

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
    board: str | None = None,
    workload: str | None = None,
    batch_size: int | None = None,
    kind: WorkloadKind | None = None,
    folder: Path | None = None,
    maxn: PowerMode | None = None,
    origin: str = "",
) -> tuple[CalibrationOutcome, ...]:
    """Fit every table and write its profiles.

    Board, workload and kind come from each table's path unless given. Without a batch size, each batch size of an
    inference table gives a profile, fitted together. The top mode is the catalogue's, otherwise the table's. A table
    without a label counts as measured if the ``origin`` of the measurements is given. Without a folder nothing is
    written.

    Raises:
        BadInput: If a table is invalid, one workload name is given for several tables, or two tables share a file name.
    """
    if workload is not None and len(tables) > 1:
        raise BadInput("--workload", f"{len(tables)} tables", "one table, or no --workload (names come from the paths)")
    fits: list[tuple[Path, int, CostProfile]] = []
    for path in tables:
        own_kind = kind or parse_workload_kind(path)
        sizes = list_batch_sizes(path) if own_kind == "infer" and batch_size is None else (batch_size,)
        read = [_require_modes(path, read_mode_table(path, board, workload, size)) for size in sizes]
        device = CANONICAL_BOARDS.get(read[0].device, read[0].device)
        spec = load_catalogue().get(device)
        top = maxn or (spec.maxn if spec else None)
        for table, fitted in zip(read, calibrate_tables_jointly(read, top, kind=own_kind, origin=origin), strict=True):
            fits.append((path, table.duplicates, replace(fitted, device=device)))
    names = [profile_file_name(profile) for *_, profile in fits]
    for name in names:
        if names.count(name) > 1:
            raise BadInput("TABLE", f"two tables for {name}", "tables of different boards or workloads")
    try:
        written = [write_profile(profile, folder) if folder else None for *_, profile in fits]
    except OSError as error:
        raise BadInput("--folder", str(folder), f"a folder that can be written ({error.strerror})") from error
    return tuple(_to_outcome(*fitted, file) for fitted, file in zip(fits, written, strict=True))


def _require_modes(path: Path, table: ProfileTable) -> ProfileTable:
    if len(table.modes) < FEWEST_MODES:
        got = f"{len(table.modes)} power modes at batch size {table.batch_size}"
        raise BadInput(str(path), got, f"at least {FEWEST_MODES}: there is much to fit")
    return table


def _to_outcome(path: Path, duplicates: int, profile: CostProfile, written: Path | None) -> CalibrationOutcome:
    own: dict[str, Any] = {"table": str(path), "duplicates": duplicates, "written": str(written) if written else None}
    shared = [field.name for field in fields(CalibrationOutcome) if field.name not in own]
    values: dict[str, Any] = {
        name: getattr(profile if hasattr(profile, name) else profile.evidence, name) for name in shared
    }
    return CalibrationOutcome(**own, **values)
