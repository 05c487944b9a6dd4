"""Composes an emulated board: its average from the cost profile or a measured table, its own truth from the seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedge import modes as mode_tables
from fedge.costs.cost_lookup import find_cost_profile
from fedge.costs.cost_priors import build_priors
from fedge.costs.cost_profile import CostProfile, load_calibrated_training
from fedge.costs.layer_estimate import estimate_network_cost, rescale_to_batch_size
from fedge.costs.layered_work import build_workload
from fedge.costs.workload_sizes import load_workload_sizes
from fedge.devices import catalogue
from fedge.devices.mode_surface import MAX_IDLE_SHARE, ModeSurface, draw_board_surface
from fedge.devices.network_link import NetworkLink
from fedge.devices.tables import mode_table as tables
from fedge.devices.tables.mode_table import read_table_label
from fedge.errors import BadInput
from fedge.experiment import FleetBoard, LinkSpec, WorkloadSpec
from fedge.physics import time_power_model
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Floats, Label, Modes, ProfileTable, Workload

TABLE_PREFIX = "table:"
EXPECTED_REFERENCE = "a table of another workload, measured on such a board"


@dataclass(frozen=True, slots=True, eq=False)
class BoardKind:
    """What the boards of a fleet entry share: the average surface, where it comes from, the predictor's priors."""

    spec: DeviceSpec
    average: ModeSurface
    truth_label: Label
    truth_source: str
    residual_time_sd_log: float
    residual_power_sd_log: float
    priors: tuple[CostProfile, ...]


def build_kind(board: FleetBoard, workload: WorkloadSpec) -> BoardKind:
    """The kind behind a board's fleet entry; raises ``BadInput`` for an unknown device, workload or table."""
    return _cached_kind(
        board.entry.device, board.entry.truth, build_workload(board.entry, workload), board.entry.cost is None
    )


def load_references(board: FleetBoard, workload: WorkloadSpec) -> tuple[ProfileTable, ...]:
    """The tables that a board's predictor learns from beforehand; see ``load_reference``."""
    return tuple(load_reference(path, board, workload) for path in board.entry.references)


def load_reference(path: str, board: FleetBoard, workload: WorkloadSpec) -> ProfileTable:
    """A reference table, at its one batch size, or of several at the workload's.

    Raises ``BadInput`` for the table that is replayed as the board's truth and for any of the workload that the boards
    are given: what is to be predicted must not be known.
    """
    return _cached_reference(path, board.entry.truth, build_workload(board.entry, workload), board.entry.cost is None)


def build_knowledge(kind: BoardKind, references: tuple[ProfileTable, ...], idle_w: float | None) -> PriorKnowledge:
    """What a predictor is told beforehand of a board that draws ``idle_w`` at rest in its top mode."""
    return PriorKnowledge(kind.spec.maxn, tuple(prior.coefficients for prior in kind.priors), references, idle_w)


@lru_cache(maxsize=64)
def _cached_kind(device: str, truth: str, work: Workload, exact: bool) -> BoardKind:
    spec = catalogue.find(device, where="fleet.device")
    if truth.startswith(TABLE_PREFIX):
        return _kind_from_table(spec, _load_truth_table(truth, work.batch_size, exact), work.name)
    return _kind_from_model(spec, work)


@lru_cache(maxsize=64)
def _load_truth_table(truth: str, batch_size: int, exact: bool) -> ProfileTable:
    path = Path(truth.removeprefix(TABLE_PREFIX))
    return tables.read_mode_table(path, batch_size=batch_size) if exact else _read_table_at(path, batch_size)


def _read_table_at(path: Path, batch_size: int) -> ProfileTable:
    """A table at its one batch size, or of several at ``batch_size``."""
    try:
        return tables.read_mode_table(path)
    except BadInput:  # several batch sizes, or something wrong, which the second reading tells
        return tables.read_mode_table(path, batch_size=batch_size)


@lru_cache(maxsize=64)
def _cached_reference(path: str, truth: str, work: Workload, exact: bool) -> ProfileTable:
    table = _read_table_at(Path(path), work.batch_size)
    replayed = _load_truth_table(truth, work.batch_size, exact) if truth.startswith(TABLE_PREFIX) else None
    if replayed is not None and table.sha256 == replayed.sha256:
        raise BadInput(path, "the very table that is replayed as the board's truth", EXPECTED_REFERENCE)
    same = _workload_names(work.name, replayed) & _workload_names(table.workload, table)
    if same:
        raise BadInput(path, f"a table of {min(same)}, which is what the boards work on", EXPECTED_REFERENCE)
    return table


def _workload_names(workload: str, table: ProfileTable | None) -> set[str]:
    """The workload, and as what the table was calibrated, whatever it is called now."""
    profiles = load_calibrated_training() if table is not None else ()
    return {workload, *(p.workload for p in profiles if p.evidence and table and p.evidence.sha256 == table.sha256)}


def _kind_from_model(spec: DeviceSpec, work: Workload) -> BoardKind:
    cost, priors = _find_cost(spec, work), list_priors(spec, work)
    modes = mode_tables.build_grid(spec)
    maxn = spec.maxn
    step_s = time_power_model.compute_step_s(cost.coefficients, maxn, modes)
    power_w = time_power_model.compute_power_w(cost.coefficients, maxn, modes)
    average = ModeSurface(modes, step_s, power_w, _mode_idle_w(spec, cost.coefficients, modes, power_w))
    return BoardKind(
        spec,
        average=average,
        truth_label=cost.label,
        truth_source=cost.source,
        residual_time_sd_log=cost.residual_time_sd_log,
        residual_power_sd_log=cost.residual_power_sd_log,
        priors=priors,
    )


def _find_cost(spec: DeviceSpec, work: Workload) -> CostProfile:
    """The profile of a measured workload, at the batch size that is wanted, or that of a network by its layers."""
    specs = catalogue.load_catalogue()
    if work.name not in load_workload_sizes():
        return (
            estimate_network_cost(spec, work, specs)
            if work.layers is not None
            else find_cost_profile(spec, work.name, specs)
        )
    return rescale_to_batch_size(find_cost_profile(spec, work.name, specs), work, spec, specs)


def list_priors(spec: DeviceSpec, work: Workload) -> tuple[CostProfile, ...]:
    """What a predictor may believe of ``work`` beforehand: of an unmeasured network its layers' estimate first."""
    specs = catalogue.load_catalogue()
    others = build_priors(spec, work.name, specs, batch_size=work.batch_size, layered=False)
    if work.layers is None or work.name in load_workload_sizes():
        return others
    return (estimate_network_cost(spec, work, specs), *others)


def _kind_from_table(spec: DeviceSpec, table: ProfileTable, workload: str) -> BoardKind:
    priors = build_priors(
        spec, workload, catalogue.load_catalogue(), batch_size=table.batch_size, unseen=table.sha256, layered=False
    )
    idle_w = _mode_idle_w(spec, priors[0].coefficients, table.modes, table.power_w)
    average = ModeSurface(table.modes, table.step_s, table.power_w, idle_w)
    source = f"{Path(table.path).name} ({len(table.modes)} rows)"
    return BoardKind(
        spec,
        average=average,
        truth_label=read_table_label(Path(table.path)),
        truth_source=source,
        residual_time_sd_log=0.0,
        residual_power_sd_log=0.0,
        priors=priors,
    )


def _mode_idle_w(
    spec: DeviceSpec, coefficients: time_power_model.Coefficients, modes: Modes, power_w: Floats
) -> Floats:
    """The catalogue's idle power, in other modes as the model's power at zero use, always below the power at work."""
    shape = time_power_model.compute_idle_ratio(coefficients, spec.maxn, modes)
    idle_w: Floats = np.minimum(spec.idle_w.value * shape, MAX_IDLE_SHARE * power_w)
    return idle_w


def mode_idle_power_w(spec: DeviceSpec, work: Workload, modes: Modes) -> Floats:
    """Watts at rest in ``modes`` of boards of this kind, as far as is known beforehand; shape (n,)."""
    shape = time_power_model.compute_idle_ratio(list_priors(spec, work)[0].coefficients, spec.maxn, modes)
    idle_w: Floats = spec.idle_w.value * shape
    return idle_w


def build_surface(board: FleetBoard, kind: BoardKind, seed: int) -> ModeSurface:
    """The truth of one board; a measured table is replayed as it is."""
    if board.entry.truth.startswith(TABLE_PREFIX):
        return kind.average
    rng = make_generator(seed, board.name, "truth")
    return draw_board_surface(kind.average, kind.residual_time_sd_log, kind.residual_power_sd_log, rng)


def build_link(spec: LinkSpec) -> NetworkLink:
    return NetworkLink(spec.down_mbps, spec.up_mbps, spec.latency_s, spec.radio_w)
