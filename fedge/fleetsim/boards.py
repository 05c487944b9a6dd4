"""Composes an emulated board: its average from the cost profile or a measured table, its own truth from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedge import modes as mode_tables
from fedge.costs.from_layers import network_cost, rescaled
from fedge.costs.layered import work_of
from fedge.costs.priors import priors_for
from fedge.costs.profiles import cost_of
from fedge.costs.record import CostProfile, load_calibrated
from fedge.costs.workloads import load_workloads
from fedge.devices import catalogue
from fedge.devices.link import Link
from fedge.devices.truth import IDLE_BELOW_WORK, Surface, own_surface
from fedge.errors import BadInput
from fedge.experiment import Board, LinkSpec, WorkloadSpec
from fedge.physics import model
from fedge.physics.knowledge import Knowledge
from fedge.profiles import table as tables
from fedge.profiles.label import label_of
from fedge.seeds import generator
from fedge.types import DeviceSpec, Floats, Label, Modes, ProfileTable, Workload

TABLE = "table:"
RIGHT_REFERENCE = "a table of another workload, measured on such a board"


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
    return _kind(board.entry.device, board.entry.truth, work_of(board.entry, workload), board.entry.cost is None)


def references_of(board: Board, workload: WorkloadSpec) -> tuple[ProfileTable, ...]:
    """The tables that a board's predictor learns from beforehand; see ``reference_of``."""
    return tuple(reference_of(path, board, workload) for path in board.entry.references)


def reference_of(path: str, board: Board, workload: WorkloadSpec) -> ProfileTable:
    """A reference table, at its one batch size, or of several at the workload's.

    Raises ``BadInput`` for the table that is replayed as the board's truth and for any of the workload that the boards
    are given: what is to be predicted must not be known.
    """
    return _reference(path, board.entry.truth, work_of(board.entry, workload), board.entry.cost is None)


def knowledge_of(kind: Kind, references: tuple[ProfileTable, ...], idle_w: float | None) -> Knowledge:
    """What a predictor is told beforehand of a board that draws ``idle_w`` at rest in its top mode."""
    return Knowledge(kind.spec.maxn, tuple(prior.coefficients for prior in kind.priors), references, idle_w)


@lru_cache(maxsize=64)
def _kind(device: str, truth: str, work: Workload, exact: bool) -> Kind:
    spec = catalogue.find(device, where="fleet.device")
    if truth.startswith(TABLE):
        return _kind_from_table(spec, _truth_table(truth, work.batch_size, exact), work.name)
    return _kind_from_model(spec, work)


@lru_cache(maxsize=64)
def _truth_table(truth: str, batch_size: int, exact: bool) -> ProfileTable:
    path = Path(truth.removeprefix(TABLE))
    return tables.read_table(path, batch_size=batch_size) if exact else _table_at(path, batch_size)


def _table_at(path: Path, batch_size: int) -> ProfileTable:
    """A table at its one batch size, or of several at ``batch_size``."""
    try:
        return tables.read_table(path)
    except BadInput:  # several batch sizes, or something wrong, which the second reading tells
        return tables.read_table(path, batch_size=batch_size)


@lru_cache(maxsize=64)
def _reference(path: str, truth: str, work: Workload, exact: bool) -> ProfileTable:
    table = _table_at(Path(path), work.batch_size)
    replayed = _truth_table(truth, work.batch_size, exact) if truth.startswith(TABLE) else None
    if replayed is not None and table.sha256 == replayed.sha256:
        raise BadInput(path, "the very table that is replayed as the board's truth", RIGHT_REFERENCE)
    same = _names_of(work.name, replayed) & _names_of(table.workload, table)
    if same:
        raise BadInput(path, f"a table of {min(same)}, which is what the boards work on", RIGHT_REFERENCE)
    return table


def _names_of(workload: str, table: ProfileTable | None) -> set[str]:
    """The workload, and as what the table was calibrated, whatever it is called now."""
    profiles = load_calibrated() if table is not None else ()
    return {workload, *(p.workload for p in profiles if p.evidence and table and p.evidence.sha256 == table.sha256)}


def _kind_from_model(spec: DeviceSpec, work: Workload) -> Kind:
    cost, priors = _cost_of(spec, work), priors_of(spec, work)
    modes = mode_tables.grid(spec)
    maxn = spec.maxn
    step_s = model.step_s(cost.coefficients, maxn, modes)
    power_w = model.power_w(cost.coefficients, maxn, modes)
    average = Surface(modes, step_s, power_w, _idle_w(spec, cost.coefficients, modes, power_w))
    return Kind(spec, average, cost.label, cost.source, cost.residual_time_sd_log, cost.residual_power_sd_log, priors)


def _cost_of(spec: DeviceSpec, work: Workload) -> CostProfile:
    """The profile of a measured workload, at the batch size that is wanted, or that of a network by its layers."""
    specs = catalogue.load_catalogue()
    if work.name not in load_workloads():
        return network_cost(spec, work, specs) if work.layers is not None else cost_of(spec, work.name, specs)
    return rescaled(cost_of(spec, work.name, specs), work, spec, specs)


def priors_of(spec: DeviceSpec, work: Workload) -> tuple[CostProfile, ...]:
    """What a predictor may believe of ``work`` beforehand: of an unmeasured network its layers' estimate first."""
    specs = catalogue.load_catalogue()
    others = priors_for(spec, work.name, specs, batch_size=work.batch_size, layered=False)
    if work.layers is None or work.name in load_workloads():
        return others
    return (network_cost(spec, work, specs), *others)


def _kind_from_table(spec: DeviceSpec, table: ProfileTable, workload: str) -> Kind:
    priors = priors_for(
        spec, workload, catalogue.load_catalogue(), batch_size=table.batch_size, unseen=table.sha256, layered=False
    )
    idle_w = _idle_w(spec, priors[0].coefficients, table.modes, table.power_w)
    average = Surface(table.modes, table.step_s, table.power_w, idle_w)
    source = f"{Path(table.path).name} ({len(table.modes)} rows)"
    return Kind(spec, average, label_of(Path(table.path)), source, 0.0, 0.0, priors)


def _idle_w(spec: DeviceSpec, coefficients: model.Coefficients, modes: Modes, power_w: Floats) -> Floats:
    """The catalogue's idle power, in other modes as the model's power at zero use, always below the power at work."""
    shape = model.idle_shape(coefficients, spec.maxn, modes)
    idle_w: Floats = np.minimum(spec.idle_w.value * shape, IDLE_BELOW_WORK * power_w)
    return idle_w


def idle_power(spec: DeviceSpec, work: Workload, modes: Modes) -> Floats:
    """Watts at rest in ``modes`` of boards of this kind, as far as is known beforehand; shape (n,)."""
    shape = model.idle_shape(priors_of(spec, work)[0].coefficients, spec.maxn, modes)
    idle_w: Floats = spec.idle_w.value * shape
    return idle_w


def surface_of(board: Board, kind: Kind, seed: int) -> Surface:
    """The truth of one board; a measured table is replayed as it is."""
    if board.entry.truth.startswith(TABLE):
        return kind.average
    rng = generator(seed, board.name, "truth")
    return own_surface(kind.average, kind.residual_time_sd_log, kind.residual_power_sd_log, rng)


def link_of(spec: LinkSpec) -> Link:
    return Link(spec.down_mbps, spec.up_mbps, spec.latency_s, spec.radio_w)
