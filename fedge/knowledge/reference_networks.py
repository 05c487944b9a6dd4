"""Reference networks of ``powertrain`` for measured tables: trained once and kept in the user's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.devices.tables.mode_table import read_mode_table
from fedge.errors import BadInput
from fedge.predictors.powertrain_reference import cache_folder, load_reference_network, reference_path

REFERENCE_SEED = 0
"""Seed of the networks that the predictor uses."""


@dataclass(frozen=True, slots=True)
class ReferenceNetworks:
    """Reference networks of one table.

    Attributes:
        time_mape: Mean absolute relative error of time on held-out modes, as a share.
        power_mape: Mean absolute relative error of power on held-out modes, as a share.
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


def train_reference_networks(tables: Sequence[Path], batch_size: int | None = None) -> tuple[ReferenceNetworks, ...]:
    """Train the reference networks of every table, or load them from the cache.

    Raises:
        BadInput: If a table is invalid or the cache cannot be written.
    """
    return tuple(_train_networks(path, batch_size) for path in tables)


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
