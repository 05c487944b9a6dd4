"""Construction of emulated boards: an average surface from costs or a measured table, and a deviation per board."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedge.costs.cost_priors import build_inference_priors, build_priors, find_workload_cost, has_data_sheet
from fedge.costs.cost_profile import CostProfile, load_calibrated_inference, load_calibrated_training
from fedge.costs.cost_scaling import load_workload_sizes
from fedge.costs.layer_estimate import estimate_network_cost
from fedge.costs.layered_work import build_workload
from fedge.decisions.planning.front_columns import running_minimum
from fedge.devices import catalogue
from fedge.devices.mode_surface import MAX_IDLE_SHARE, ModeSurface, draw_board_surface
from fedge.devices.tables import mode_table as tables
from fedge.errors import BadInput
from fedge.experiment import FleetBoard, LinkSpec, WorkloadSpec
from fedge.modes import build_grid
from fedge.physics import time_power_model
from fedge.physics.prior_candidates import raise_to_idle_w
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Floats, Label, LinkUse, Modes, ProfileTable, Workload

TABLE_PREFIX = "table:"
TABLE_SUFFIX = ".csv"
DEFAULT_DOWN_MBPS, DEFAULT_UP_MBPS = 50.0, 20.0
EXPECTED_REFERENCE = "a table of another workload, measured on such a board"


@dataclass(frozen=True, slots=True, eq=False)
class BoardKind:
    """Properties that the boards of a fleet entry share.

    Attributes:
        residual_time_sd_log: Standard deviation of the time residual, in log units.
        residual_power_sd_log: Standard deviation of the power residual, in log units.
        priors: Cost profiles that a predictor may use as priors.
        cost: Cost profile behind ``average``; None for a measured table.
    """

    spec: DeviceSpec
    average: ModeSurface
    truth_label: Label
    truth_source: str
    residual_time_sd_log: float
    residual_power_sd_log: float
    priors: tuple[CostProfile, ...]
    cost: CostProfile | None = None


def build_kind(board: FleetBoard, workload: WorkloadSpec) -> BoardKind:
    """Build the board kind of a fleet entry.

    Raises:
        BadInput: The device, workload or table is unknown or invalid.
    """
    return _cached_kind(
        board.entry.device, board.truth, build_workload(board.entry, workload), board.entry.cost is None
    )


def build_workload_kind(device: str, work: Workload) -> BoardKind:
    """Build the kind of emulated boards of the catalogue for a workload.

    Raises:
        BadInput: The device is unknown, or the workload cannot be priced.
    """
    return _cached_kind(device, "model", work, False)


def load_references(board: FleetBoard, workload: WorkloadSpec) -> tuple[ProfileTable, ...]:
    """Load the tables that a board's predictor learns from in a run, also of the trained workload.

    Model files are left out: a run's launcher makes tables of them.
    """
    batch_size = build_workload(board.entry, workload).batch_size
    paths = [path for path in board.entry.references if path.endswith(TABLE_SUFFIX)]
    return tuple(_cached_reference(path, batch_size) for path in paths)


def load_unseen_references(board: FleetBoard, workload: WorkloadSpec) -> tuple[ProfileTable, ...]:
    """Load the tables that a board's predictor may learn from where its predictions are judged.

    Raises:
        BadInput: A table is the board's truth or of its own workload, which would leak what is to be predicted.
    """
    truth, work = board.truth, build_workload(board.entry, workload)
    replayed = None
    if truth.startswith(TABLE_PREFIX):
        replayed = _load_truth_table(truth, work.batch_size, board.entry.cost is None)
    references = load_references(board, workload)
    for table in references:
        if replayed is not None and table.sha256 == replayed.sha256:
            raise BadInput(table.path, "the very table that is replayed as the board's truth", EXPECTED_REFERENCE)
        if same := _workload_names(work.name, replayed) & _workload_names(table.workload, table):
            got = f"a table of {min(same)}, which is what the boards work on"
            raise BadInput(table.path, got, EXPECTED_REFERENCE)
    return references


def build_knowledge(kind: BoardKind, references: tuple[ProfileTable, ...], idle_w: float | None) -> PriorKnowledge:
    """Build the prior knowledge of a predictor.

    ``idle_w`` is that in MAXN.
    """
    return PriorKnowledge(kind.spec.maxn, tuple(prior.coefficients for prior in kind.priors), references, idle_w)


@lru_cache(maxsize=256)
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
    """Read a table at its only batch size, or at ``batch_size`` if it has several."""
    try:
        return tables.read_mode_table(path)
    except BadInput:  # several batch sizes, or an error that the second reading reports
        return tables.read_mode_table(path, batch_size=batch_size)


@lru_cache(maxsize=64)
def _cached_reference(path: str, batch_size: int) -> ProfileTable:
    return _read_table_at(Path(path), batch_size)


def _workload_names(workload: str, table: ProfileTable | None) -> set[str]:
    """Return the name of the workload, and the names under which its table was calibrated."""
    profiles = load_calibrated_training() if table is not None else ()
    return {workload, *(p.workload for p in profiles if p.evidence and table and p.evidence.sha256 == table.sha256)}


def _kind_from_model(spec: DeviceSpec, work: Workload) -> BoardKind:
    cost, priors = find_workload_cost(spec, work, catalogue.load_catalogue()), list_priors(spec, work)
    if cost.time_error_log or cost.power_error_log:
        # An estimate from layers has the idle power of tables, some of which measured only part of the rails: a small
        # network would draw less at work than the board idling.
        raised = raise_to_idle_w(cost.coefficients, spec.idle_w.value)
        cost = dataclasses.replace(cost, coefficients=raised)
    modes = build_grid(spec)
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
        cost=cost,
    )


def list_priors(spec: DeviceSpec, work: Workload) -> tuple[CostProfile, ...]:
    """List the cost profiles that a predictor may use as priors for ``work``.

    For an unmeasured network, the estimate from its layers comes first.
    """
    specs = catalogue.load_catalogue()
    if work.kind == "infer":
        others = build_inference_priors(spec, work.name, work.batch_size, specs, layered=False)
        known = any(profile.workload == work.name for profile in load_calibrated_inference())
    else:
        others = build_priors(spec, work.name, specs, batch_size=work.batch_size, layered=False)
        known = work.name in load_workload_sizes()
    if work.layers is None or known or not has_data_sheet(spec):
        return others
    return (estimate_network_cost(spec, work, specs), *others)


def _kind_from_table(spec: DeviceSpec, table: ProfileTable, workload: str) -> BoardKind:
    priors = build_priors(
        spec, workload, catalogue.load_catalogue(), batch_size=table.batch_size, unseen=table.sha256, layered=False
    )
    average = ModeSurface(table.modes, table.step_s, table.power_w, _find_idle_w(spec, table, priors[0].coefficients))
    source = f"{Path(table.path).name} ({len(table.modes)} rows)"
    return BoardKind(
        spec,
        average=average,
        truth_label=table.label,
        truth_source=source,
        residual_time_sd_log=0.0,
        residual_power_sd_log=0.0,
        priors=priors,
    )


def _find_idle_w(spec: DeviceSpec, table: ProfileTable, coefficients: time_power_model.Coefficients) -> Floats:
    if table.idle_w is None:
        return _mode_idle_w(spec, coefficients, table.modes, table.power_w)
    idle_w: Floats = np.minimum(table.idle_w, MAX_IDLE_SHARE * table.power_w)
    return idle_w


def _mode_idle_w(
    spec: DeviceSpec, coefficients: time_power_model.Coefficients, modes: Modes, power_w: Floats
) -> Floats:
    """Return idle power by mode, shape (n,): the catalogue's, scaled by the model, below power at work."""
    shape = time_power_model.compute_idle_ratio(coefficients, spec.maxn, modes)
    idle_w: Floats = np.minimum(spec.idle_w.value * shape, MAX_IDLE_SHARE * power_w)
    return idle_w


def mode_idle_power_w(spec: DeviceSpec, work: Workload, modes: Modes) -> Floats:
    """Return the idle power that is expected in ``modes`` before any measurement, in watts, shape (n,)."""
    shape = time_power_model.compute_idle_ratio(list_priors(spec, work)[0].coefficients, spec.maxn, modes)
    idle_w: Floats = spec.idle_w.value * shape
    return idle_w


def build_surface(board: FleetBoard, kind: BoardKind, seed: int) -> ModeSurface:
    """Build the truth of one board; a measured table is used unchanged."""
    if board.truth.startswith(TABLE_PREFIX):
        return kind.average
    rng = make_generator(seed, board.name, "truth")
    average = draw_kind_average(kind, seed)
    return draw_board_surface(average, kind.residual_time_sd_log, kind.residual_power_sd_log, rng)


# Error of an estimate from layers, the same in all boards of a kind --------------------------------------------------


COMMON_ERROR_SHARE = 0.75
"""Share of the variance of log time's error that all parts of a step have in common. With the board of each calibrated
training profile left out, the mean error over the modes had 0.74 of the squared error, its variation over the modes the
rest; with the workload left out, 0.79."""
MAX_ERROR_SD = 2.0
"""Standard deviations at which an error is cut off: farther out the boards are no longer believable."""


@dataclass(frozen=True, slots=True, eq=False)
class EstimateError:
    """True time and power of a kind relative to the estimate, by mode, shape (n,); ones without an error."""

    time_ratio: Floats
    power_ratio: Floats


@lru_cache(maxsize=64)
def draw_kind_average(kind: BoardKind, seed: int) -> ModeSurface:
    """Draw the true average of the boards of a kind: ``kind.average``, with the error of an estimate from layers."""
    average = kind.average
    if kind.cost is None or not (kind.cost.time_error_log or kind.cost.power_error_log):
        return average
    error = draw_estimate_error(kind.spec, kind.cost, average.modes, seed)
    power_w = average.power_w * error.power_ratio
    idle_w = _mode_idle_w(kind.spec, kind.cost.coefficients, average.modes, power_w)
    return ModeSurface(average.modes, average.step_s * error.time_ratio, power_w, idle_w)


def draw_estimate_error(spec: DeviceSpec, cost: CostProfile, modes: Modes, seed: int) -> EstimateError:
    """Draw how far a kind of board is off the estimate of a network's cost, once per kind, network and seed.

    Time is that of the physical model with other coefficients, so that a lower clock never makes a step faster. Power
    follows the changed time; what it is above idling has one error in all modes, so that work never takes less than
    idling, nor more than the board's largest power. The model's power falls where faster memory lets the GPU wait for
    the CPU, by up to a third in estimates; measured tables show that in none of a hundred modes by more than 2.5 %, so
    it stays as high as at the lower memory clock.
    """
    seconds = np.array([name.endswith("_s") for name in time_power_model.TIME_NAMES])
    rng = make_generator(seed, spec.name, cost.workload, "estimate")  # training and inference are off alike
    draws = np.clip(rng.standard_normal(2 + seconds.sum()), -MAX_ERROR_SD, MAX_ERROR_SD)
    common, own = np.sqrt(COMMON_ERROR_SHARE), np.sqrt(1.0 - COMMON_ERROR_SHARE)
    time = cost.coefficients.time.copy()
    time[seconds] += cost.time_error_log * (common * draws[0] + own * draws[2:])
    drawn = time_power_model.Coefficients(time, cost.coefficients.power)
    step_s, expected_s = (time_power_model.compute_step_s(one, spec.maxn, modes) for one in (drawn, cost.coefficients))
    power_w, expected_w = (
        time_power_model.compute_power_w(one, spec.maxn, modes) for one in (drawn, cost.coefficients)
    )
    idle_w = _mode_idle_w(spec, cost.coefficients, modes, power_w)
    room = float(((spec.max_w.value - idle_w) / (power_w - idle_w)).min())
    factor = min(float(np.exp(cost.power_error_log * draws[1])), max(1.0, room))
    power_w = _keep_up_with_memory(modes, idle_w + factor * (power_w - idle_w))
    return EstimateError(step_s / expected_s, power_w / expected_w)


def _keep_up_with_memory(modes: Modes, power_w: Floats) -> Floats:
    """Return the largest power among modes of the same other knobs and no higher memory clock, shape (n,)."""
    order = np.lexsort(modes.knobs.T[::-1])
    others = modes.knobs[order, :3]
    starts = np.flatnonzero((others[1:] != others[:-1]).any(axis=1)) + 1
    highest = np.empty_like(power_w)
    highest[order] = -running_minimum(-power_w[order], np.concatenate([[0], starts, [len(order)]]))
    return highest


def build_link(spec: LinkSpec, measured_mbps: float | None = None) -> NetworkLink:
    """Return a client's network.

    ``measured_mbps``, the measured rate of both transfers, is used where ``spec`` names none; None for the defaults.
    """
    down_mbps, up_mbps = (DEFAULT_DOWN_MBPS, DEFAULT_UP_MBPS) if measured_mbps is None else [measured_mbps] * 2
    return NetworkLink(spec.down_mbps or down_mbps, spec.up_mbps or up_mbps, spec.latency_s, spec.radio_w)


# Network link: transfer times of a model, and the radio's power -------------------------------------------------------


ENCODED_BYTES_PER_S = 100e6
"""Bytes of the update that one core encodes per second, estimated: a tenth of what ``int8`` and ``topk`` reach on one
core of a server (933 and 1,135 MB/s for 11.7 M values), since no figures of a Jetson's cores are known."""
ENCODING_W = 2.0
"""Watts above idling of one core at work, estimated."""


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """A network link."""

    down_mbps: float
    up_mbps: float
    latency_s: float
    radio_w: float

    def transfer(self, down_bytes: float, up_bytes: float, up_share: float = 1.0) -> LinkUse:
        """Return the times and the energy of one download and one upload, with the encoding of the update before it.

        Args:
            down_bytes: Bytes of the model.
            up_bytes: Bytes of the update before it is encoded.
            up_share: Bytes of the encoded update relative to them; 1 for an update that is not encoded.
        """
        down_s = self.latency_s + 8e-6 * down_bytes / self.down_mbps
        up_s = self.latency_s + 8e-6 * up_share * up_bytes / self.up_mbps
        encode_s = up_bytes / ENCODED_BYTES_PER_S
        encode_j = ENCODING_W * encode_s
        spent_s, spent_j = (0.0, 0.0) if up_share == 1.0 else (encode_s, encode_j)
        return LinkUse(
            down_s,
            up_s=up_s + spent_s,
            radio_j=self.radio_w * (down_s + up_s) + spent_j,
            moved_mb=1e-6 * (down_bytes + up_share * up_bytes),
            down_mb=1e-6 * down_bytes,
            latency_s=self.latency_s,
            up_share=up_share,
            encode_s=encode_s,
            encode_j=encode_j,
        )
