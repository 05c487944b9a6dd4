"""How far a workload without a table lies off when it is priced by its layers: every measured table left out in turn.

    FEDGE_PROFILES=folder/of/tables python benchmarks/cost_from_layers.py

For every ``<board>/train/*.csv`` and ``<board>/infer/*.csv`` the profile that was calibrated to it is left out
(``table``), or every profile of its network on any board (``network``); the time of the top mode, the shape over all
modes after scaling by the median, and the whole are held against the table. Beside it stands what was there before:
the nearest workload's profile, moved by the ratio of sizes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedge.costs.from_layers import network_cost
from fedge.costs.inference import inference_priors
from fedge.costs.layered import batch_of, known_layers
from fedge.costs.priors import carried_priors
from fedge.costs.record import CostProfile, Kind, load_calibrated, load_inference
from fedge.devices.catalogue import find, load_catalogue
from fedge.physics.model import power_w, step_s
from fedge.profiles.table import batch_sizes_of, read_table
from fedge.types import Floats, ProfileTable, Workload

HEADINGS = ("board", "workload", "batch", "top mode", "shape", "whole", "power", "before: top", "shape")


@dataclass(frozen=True, slots=True)
class Errors:
    """In percent: of the top mode's time (signed), of the shape, of all times, of all watts."""

    top: float
    shape: float
    whole: float
    power: float

    def cells(self) -> tuple[str, ...]:
        return (f"{self.top:+.1f}", f"{self.shape:.1f}", f"{self.whole:.1f}", f"{self.power:.1f}")


def main() -> None:
    folder = os.environ.get("FEDGE_PROFILES")
    paths = sorted(Path(folder).glob("*/*/*.csv")) if folder else []
    if not paths:
        sys.exit(f"FEDGE_PROFILES: got {folder or 'nothing'}; a folder that holds <board>/train/<workload>.csv")
    for kind in ("train", "infer"):
        tables = [read_table(p, batch_size=size) for p in paths if p.parent.name == kind for size in batch_sizes_of(p)]
        for left_out in ("table", "network"):
            _show(tables, kind, left_out)


def _show(tables: Sequence[ProfileTable], kind: Kind, left_out: str) -> None:
    shown = Table(title=f"{kind}: errors in percent where the {left_out} is left out")
    for heading in HEADINGS:
        shown.add_column(heading, justify="right")
    for table in tables:
        if known_layers(table.workload, kind) is None:
            shown.add_row(table.device, table.workload, str(table.batch_size), "its network is not known")
            continue
        ours, before = _errors(table, _by_layers(table, kind, left_out)), _errors(table, _before(table, kind))
        first = (find(table.device).name, table.workload, str(table.batch_size))
        shown.add_row(*first, *ours.cells(), *before.cells()[:2])
    Console(width=120).print(shown)


def _by_layers(table: ProfileTable, kind: Kind, left_out: str) -> CostProfile:
    layers = known_layers(table.workload, kind)
    device = find(table.device)
    profiles = [
        profile
        for profile in (*load_calibrated(), *load_inference())
        if not _is_left_out(profile, table, kind, left_out == "network")
    ]
    work = Workload(table.workload, table.batch_size, kind, layers)
    return network_cost(device, work, load_catalogue(), profiles)


def _is_left_out(profile: CostProfile, table: ProfileTable, kind: Kind, network: bool) -> bool:
    """Inference of one table is calibrated batch size by batch size: all of them are left out together."""
    same = profile.workload == table.workload and profile.kind == kind and profile.device == find(table.device).name
    batch, layers = batch_of(profile), known_layers(table.workload, kind)
    alike = batch is not None and layers is not None and batch.layers.network == layers.network
    return same or (network and alike)


def _before(table: ProfileTable, kind: Kind) -> CostProfile:
    spec, specs = find(table.device), load_catalogue()
    if kind == "train":
        return carried_priors(spec, table.workload, specs)[0]
    return inference_priors(spec, table.workload, table.batch_size, specs)[0]


def _errors(table: ProfileTable, cost: CostProfile) -> Errors:
    time = step_s(cost.coefficients, table.maxn, table.modes)
    watts = power_w(cost.coefficients, table.maxn, table.modes)
    top = int(np.argmax((table.modes.knobs / table.modes.knobs.max(axis=0)).sum(axis=1)))
    scaled = time * np.exp(np.median(np.log(table.step_s / time)))
    return Errors(
        100.0 * float(time[top] / table.step_s[top] - 1.0),
        _mape(scaled, table.step_s),
        _mape(time, table.step_s),
        _mape(watts, table.power_w),
    )


def _mape(predicted: Floats, seen: Floats) -> float:
    return 100.0 * float(np.abs(predicted / seen - 1.0).mean())


if __name__ == "__main__":
    main()
