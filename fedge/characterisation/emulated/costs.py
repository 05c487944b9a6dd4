"""What a workload's minibatch costs on an emulated board: its pipeline and its watts in every mode, by its layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedge.characterisation.plans.plan import WorkloadPlan
from fedge.characterisation.point import Kind
from fedge.costs.from_layers import network_cost
from fedge.costs.record import CostProfile
from fedge.devices import catalogue
from fedge.errors import BadInput
from fedge.layers.counted import counted
from fedge.layers.network import NetworkCost
from fedge.memory.calibration import stock
from fedge.memory.need import need
from fedge.modes import modes_of
from fedge.physics import model
from fedge.pipeline.emulation import Fed, composed, kind_of, pipeline_of
from fedge.pipeline.modes import Clocks, at_clocks
from fedge.pipeline.records import Loader, Pipeline, Played, Storage
from fedge.types import DeviceSpec, Floats, LayerWork, PowerMode, Workload

WORKER_MB = 180.0
"""Resident memory of a loader process; chosen by us."""
LOADING_SHARE = 0.1
"""What all cores draw when they load at the top clocks is at least this part of the board's most. Chosen by us: tables
without loading do not tell it (AGX Xavier, TX2: below 2 %), those with loading have 7 to 23 % (AGX Orin, Orin Nano)."""


@dataclass(frozen=True, slots=True, eq=False)
class Computing:
    """One minibatch's computing in one mode, seconds, nobody else on the cores."""

    compute_s: float
    host_share: float
    """The part of it in which the GPU waits for launches."""
    gpu_s: float
    """In which the GPU is busy; of these ``math_s`` with arithmetic, ``mem_s`` with memory."""
    math_s: float
    mem_s: float
    launch_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """A workload at a batch size on a board: the coefficients of its computing, and what it needs of memory."""

    spec: DeviceSpec
    profile: CostProfile
    fed: Fed
    batch_size: int
    memory_mb: float

    def computing(self, mode: PowerMode) -> Computing:
        """The device's time and the launches', joined as they overlap."""
        shares = model.shares(self.spec.maxn, modes_of([mode]))
        parts = model.time_parts(self.profile.coefficients.time, shares)
        own = kind_of(self.spec.name)
        gpu_s, math_s, mem_s = (own.compute * float(part[0]) for part in (parts.gpu_s, parts.math_s, parts.mem_s))
        launch_s, overlap = float(parts.launch_s[0]), own.overlap
        compute_s = float((gpu_s**overlap + launch_s**overlap) ** (1.0 / overlap))
        return Computing(compute_s, (launch_s / compute_s) ** overlap, gpu_s, math_s, mem_s, launch_s)

    def pipeline(self, mode: PowerMode, loader: Loader, stored: Storage) -> Pipeline:
        """The input pipeline in a mode, with everything in the page cache."""
        spec, does = self.spec, self.computing(mode)
        cores = max(spec.cores)
        top = pipeline_of(self.fed, self.batch_size, loader, stored, spec.cpu_score.value, cores)
        clocks = Clocks(mode.cores, mode.cpu_mhz / spec.maxn.cpu_mhz, mode.mem_mhz / spec.maxn.mem_mhz)
        return at_clocks(top, clocks, does.compute_s, does.host_share)

    def power_w(self, mode: PowerMode, played: Played) -> Floats:
        """Module watts in every minibatch of an epoch, shape (steps,), by what it used of the board.

        Beside loading, launches take longer, but the GPU is busy for no longer than alone.
        """
        shares = model.shares(self.spec.maxn, modes_of([mode]))
        does, step_s = self.computing(mode), played.step_s
        training = played.copy_s + played.compute_s + played.overhead_s
        loading_cores = np.maximum(0.0, played.cpu_busy - training / step_s)
        parts = model.Parts(
            total_s=step_s,
            overlapped_s=step_s,
            gpu_s=np.minimum(does.gpu_s, played.compute_s),
            math_s=np.minimum(does.math_s, played.compute_s),
            mem_s=np.minimum(does.mem_s, played.compute_s),
            prep_s=step_s * np.minimum(1.0, loading_cores / mode.cores),
            launch_s=np.minimum(does.launch_s * played.compute_s / does.compute_s, played.compute_s) + played.copy_s,
            host_s=played.overhead_s,
        )
        terms = model.power_terms(self.profile.coefficients.power, parts, np.repeat(shares, len(step_s), axis=0))
        watts: Floats = terms.sum(axis=0)
        return watts


@lru_cache(maxsize=256)
def costs_of(device: str, workload: WorkloadPlan, kind: Kind, batch_size: int) -> Costs:
    """The costs of ``workload``; its network is built and counted, which needs torch, once per process.

    Raises ``BadInput`` for a network that cannot be built for its input.
    """
    spec = catalogue.find(device, where="board")
    network = _network(workload.model, workload.input, workload.classes)
    each = counted(network)
    more = sum(composed().get(layer.kind, 1) - 1 for layer in network.layers)
    each = dataclasses.replace(each, operators=each.operators + more)
    images = workload.images
    layers = LayerWork(workload.model, each, loading="cached", image_mpixel=images.mpixel)
    profile = network_cost(spec, Workload(workload.name, batch_size, kind, layers), catalogue.load_catalogue())
    profile = _with_loading_watts(profile, LOADING_SHARE * spec.max_w.value)
    elements = int(np.prod(workload.input))
    fed = Fed(images.mpixel, elements, images.source == "memory", images.kb)
    return Costs(spec, profile, fed, batch_size, _memory_mb(network, spec, kind, batch_size))


def _with_loading_watts(profile: CostProfile, least_w: float) -> CostProfile:
    """The same, whose cores draw ``least_w`` at least when all of them load."""
    power = profile.coefficients.power.copy()
    place = model.POWER_NAMES.index("cores_busy_w")
    power[place] = max(power[place], np.log(least_w))
    return dataclasses.replace(profile, coefficients=model.Coefficients(profile.coefficients.time, power))


def _memory_mb(network: NetworkCost, spec: DeviceSpec, kind: Kind, batch_size: int) -> float:
    """What a step has resident, estimated. Inference keeps no gradients, and of the activations one operator's.

    To these and the weights comes what every training process was seen to need at least, chosen by us.
    """
    training_mb = need(network, spec, batch_size).memory_mb
    if kind == "train":
        return training_mb
    activations = max((layer.read_bytes + layer.written_bytes for layer in network.layers), default=0.0)
    return min(training_mb, stock().memory.floor_mb + (network.weight_bytes + batch_size * activations) / 1e6)


@lru_cache(maxsize=32)
def _network(name: str, shape: tuple[int, int, int], classes: int) -> NetworkCost:
    from fedge.layers.trace import trace
    from fedge.worker.characterising_networks import network
    from fedge.worker.refusal import Refusal

    try:
        return trace(network(name, shape, classes), shape, name)
    except Refusal as error:
        raise BadInput(error.where, error.got, error.right) from error
