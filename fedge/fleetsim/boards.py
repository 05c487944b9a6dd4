"""Composes an emulated board: its average from the cost profile or a measured table, its own truth from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedge import modes as mode_tables
from fedge.costs.profiles import cost_of, priors_for
from fedge.costs.record import CostProfile
from fedge.devices import catalogue
from fedge.devices.link import Link
from fedge.devices.truth import IDLE_BELOW_WORK, Surface, own_surface
from fedge.experiment import Board, LinkSpec, WorkloadSpec
from fedge.physics import model
from fedge.profiles import table as tables
from fedge.seeds import generator
from fedge.types import DeviceSpec, Floats, Label, Modes

TABLE = "table:"


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What the boards of a fleet entry share: the average surface, where it comes from, the predictor's priors."""

    spec: DeviceSpec
    average: Surface
    truth_label: Label
    truth_source: str
    residual_time_sd_log: float
    residual_power_sd_log: float
    priors: tuple[CostProfile, ...]


def kind_of(board: Board, workload: WorkloadSpec) -> Kind:
    """The kind behind a board's fleet entry; raises ``BadInput`` for an unknown device, workload or table."""
    return _kind(board.entry.device, board.entry.truth, workload.cost, workload.batch_size)


@lru_cache(maxsize=64)
def _kind(device: str, truth: str, workload: str, batch_size: int) -> Kind:
    specs = catalogue.load_catalogue()
    spec = catalogue.find(device, where="fleet.device")
    if truth.startswith(TABLE):
        return _kind_from_table(spec, Path(truth.removeprefix(TABLE)), workload, batch_size)
    priors = priors_for(spec, workload, specs)
    cost = cost_of(spec, workload, specs)
    modes = mode_tables.grid(spec)
    maxn = spec.maxn
    step_s = model.step_s(cost.coefficients, maxn, modes)
    power_w = model.power_w(cost.coefficients, maxn, modes)
    average = Surface(modes, step_s, power_w, _idle_w(spec, cost.coefficients, modes, power_w))
    return Kind(spec, average, cost.label, cost.source, cost.residual_time_sd_log, cost.residual_power_sd_log, priors)


def _kind_from_table(spec: DeviceSpec, path: Path, workload: str, batch_size: int) -> Kind:
    table = tables.read_table(path, batch_size=batch_size)
    priors = priors_for(spec, workload, catalogue.load_catalogue(), unseen=table.sha256)
    idle_w = _idle_w(spec, priors[0].coefficients, table.modes, table.power_w)
    average = Surface(table.modes, table.step_s, table.power_w, idle_w)
    return Kind(spec, average, "measured", f"{path.name} ({len(table.modes)} rows)", 0.0, 0.0, priors)


def _idle_w(spec: DeviceSpec, coefficients: model.Coefficients, modes: Modes, power_w: Floats) -> Floats:
    """The catalogue's idle power, in other modes as the model's power at zero use, always below the power at work."""
    shape = model.idle_shape(coefficients, spec.maxn, modes)
    idle_w: Floats = np.minimum(spec.idle_w.value * shape, IDLE_BELOW_WORK * power_w)
    return idle_w


def surface_of(board: Board, kind: Kind, seed: int) -> Surface:
    """The truth of one board; a measured table is replayed as it is."""
    if board.entry.truth.startswith(TABLE):
        return kind.average
    rng = generator(seed, board.name, "truth")
    return own_surface(kind.average, kind.residual_time_sd_log, kind.residual_power_sd_log, rng)


def link_of(spec: LinkSpec) -> Link:
    return Link(spec.down_mbps, spec.up_mbps, spec.latency_s, spec.radio_w)
