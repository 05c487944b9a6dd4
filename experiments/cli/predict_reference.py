"""``fedge predict train-reference``: trains the reference networks of ``powertrain``, or loads them from the cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.predictors.powertrain_reference import cache_folder, load_reference_network, reference_path

REFERENCE_SEED = 0
"""Seed of the networks that the predictor uses."""


@dataclass(frozen=True, slots=True)
class ReferenceNetworks:
    """Reference networks of one table.

    Attributes:
        rows: Number of rows of the table.
        time_mape: Mean absolute relative error of time on held-out modes, as a share.
        power_mape: Mean absolute relative error of power on held-out modes, as a share.
        train_s: Training time, in seconds.
        file: Path in the cache.
        cached: Whether they were loaded from the cache.
    """

    table: str
    device: str
    workload: str
    batch_size: int
    rows: int
    time_mape: float
    power_mape: float
    train_s: float
    file: str
    cached: bool


def train_references(tables: Sequence[Path], batch_size: int | None, as_json: bool) -> None:
    """Train or load the networks of every table and print them.

    Raises:
        BadInput: If a table is invalid or the cache cannot be written.
    """
    results = [_train_networks(path, batch_size) for path in tables]
    console = Console()
    if as_json:
        console.out(json.dumps([asdict(result) for result in results]), highlight=False)
    else:
        console.print(_as_table(results))
        for result in results:
            console.out(f"kept: {result.file}", highlight=False)


def _train_networks(path: Path, batch_size: int | None) -> ReferenceNetworks:
    table = read_mode_table(path, batch_size=batch_size)
    folder = cache_folder()
    reference = load_reference_network(table, REFERENCE_SEED, folder)
    if not reference.kept:
        raise BadInput("cache folder", str(folder), "a folder that can be written; FEDGE_CACHE names another one")
    time_mape, power_mape = (float(mape) for mape in reference.trained.validation_mape)
    return ReferenceNetworks(
        str(path),
        device=table.device,
        workload=table.workload,
        batch_size=table.batch_size,
        rows=len(table.modes),
        time_mape=time_mape,
        power_mape=power_mape,
        train_s=reference.train_s,
        file=str(reference_path(table, REFERENCE_SEED, folder)),
        cached=reference.cached,
    )


def _as_table(results: Sequence[ReferenceNetworks]) -> Table:
    table = Table(title="Reference networks; error on the modes set aside, percent")
    for heading in ("board", "workload", "rows", "time MAPE", "power MAPE", "seconds", ""):
        table.add_column(heading, justify="left" if heading in {"board", "workload", ""} else "right", overflow="fold")
    for r in results:
        errors = (f"{100 * error:.1f}" for error in (r.time_mape, r.power_mape))
        how = "cached" if r.cached else "trained"
        table.add_row(r.device, r.workload, f"{r.rows}", *errors, f"{r.train_s:.1f}", how)
    return table
