"""``fedge calibrate``: fits the physical model to measured tables and writes one cost profile per table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedge.costs.record import CostProfile, Evidence, file_name, write_profile
from fedge.devices.catalogue import load_catalogue
from fedge.errors import BadInput
from fedge.profiles.calibrate import Calibration
from fedge.profiles.calibrate import calibrate as fit
from fedge.profiles.table import read_table
from fedge.types import PowerMode

if TYPE_CHECKING:
    from rich.table import Table

CANONICAL = {"agx-orin": "agx-orin-64gb"}
"""Folder names of measured tables that the catalogue knows under another name."""
FEWEST_MODES = 20
"""About as many as the physical model has coefficients."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One table's outcome: errors over all rows as shares, and the file that was written (None without ``out``)."""

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


def calibrate(
    tables: Sequence[Path],
    *,
    device: str | None = None,
    workload: str | None = None,
    batch_size: int | None = None,
    out: Path | None = None,
    maxn: PowerMode | None = None,
    origin: str = "",
) -> tuple[Calibrated, ...]:
    """Fit every table and write its profile into ``out``; names default to the tables' paths.

    ``maxn`` is the board's top: by default the catalogue's, else the table's. ``origin`` says who measured. Raises
    ``BadInput`` for a bad table, for one workload name over several tables and for two tables that share a file.
    """
    if workload is not None and len(tables) > 1:
        raise BadInput("--workload", f"{len(tables)} tables", "one table, or no --workload (names come from the paths)")
    fits = [_fit(path, device, workload, batch_size, maxn) for path in tables]
    profiles = [_profile(calibration, origin) for calibration, _ in fits]
    names = [file_name(profile) for profile in profiles]
    for name in names:
        if names.count(name) > 1:
            raise BadInput("TABLE", f"two tables for {name}", "tables of different boards or workloads")
    try:
        written = [write_profile(profile, out) if out else None for profile in profiles]
    except OSError as error:
        raise BadInput("--out", str(out), f"a folder that can be written ({error.strerror})") from error
    return tuple(
        _outcome(path, calibration, duplicates, file)
        for path, (calibration, duplicates), file in zip(tables, fits, written, strict=True)
    )


def as_data(results: Sequence[Calibrated]) -> list[dict[str, Any]]:
    """The outcome for ``--json``."""
    return [asdict(result) for result in results]


def as_table(results: Sequence[Calibrated]) -> Table:
    """The outcome for the terminal."""
    from rich.table import Table

    table = Table(title="Calibration error over all rows, percent")
    for heading in ("board", "workload", "batch", "rows", "time MAPE", "p95", "power MAPE", "p95", "written"):
        table.add_column(heading, justify="left" if heading in ("board", "workload", "written") else "right")
    for r in results:
        errors = (f"{100 * e:.1f}" for e in (r.time_mape, r.time_p95_ape, r.power_mape, r.power_p95_ape))
        rows = f"{r.rows}" + (f" (+{r.duplicates} repeated)" if r.duplicates else "")
        table.add_row(r.device, r.workload, str(r.batch_size), rows, *errors, r.written or "-")
    return table


def _fit(
    path: Path, device: str | None, workload: str | None, batch_size: int | None, maxn: PowerMode | None
) -> tuple[Calibration, int]:
    table = read_table(path, device, workload, batch_size)
    if len(table.modes) < FEWEST_MODES:
        raise BadInput(str(path), f"{len(table.modes)} power modes", f"at least {FEWEST_MODES}: there is much to fit")
    spec = load_catalogue().get(CANONICAL.get(table.device, table.device))
    return fit(table, maxn or (spec.maxn if spec else None)), table.duplicates


def _profile(calibration: Calibration, origin: str) -> CostProfile:
    time, power = calibration.time, calibration.power
    return CostProfile(
        device=CANONICAL.get(calibration.device, calibration.device),
        workload=calibration.workload,
        batch_size=calibration.batch_size,
        coefficients=calibration.coefficients,
        label="calibrated",
        source=f"fitted to {calibration.rows} rows of {calibration.table}",
        time_mape=time.mape,
        power_mape=power.mape,
        residual_time_sd_log=time.residual_sd_log,
        residual_power_sd_log=power.residual_sd_log,
        evidence=Evidence(calibration.table, calibration.sha256, calibration.rows, time.p95_ape, power.p95_ape, origin),
    )


def _outcome(path: Path, calibration: Calibration, duplicates: int, written: Path | None) -> Calibrated:
    return Calibrated(
        str(path),
        CANONICAL.get(calibration.device, calibration.device),
        calibration.workload,
        calibration.batch_size,
        calibration.rows,
        duplicates,
        calibration.time.mape,
        calibration.time.p95_ape,
        calibration.power.mape,
        calibration.power.p95_ape,
        str(written) if written else None,
    )
