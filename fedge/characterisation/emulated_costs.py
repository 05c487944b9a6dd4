"""Cost of a workload's minibatch on an emulated board, from its layers: input pipeline and power in every mode."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedge.characterisation.sweep_plan import WorkKind, WorkloadPlan
from fedge.costs.cost_profile import CostProfile
from fedge.costs.input_pipeline.emulated_pipeline import (
    SampleFormat,
    build_pipeline,
    find_pipeline_kind,
    load_launch_counts,
)
from fedge.costs.input_pipeline.pipeline_model import (
    ClockShares,
    InputPipeline,
    Loader,
    SimulatedEpoch,
    Storage,
    scale_to_clocks,
)
from fedge.costs.layer_estimate import estimate_network_cost
from fedge.costs.layers.network_cost import NetworkCost, sum_layers
from fedge.costs.memory.step_need import load_stock_calibration, predict_step_need
from fedge.devices import catalogue
from fedge.errors import BadInput
from fedge.modes import stack_modes
from fedge.physics import time_power_model
from fedge.physics.time_power_model import as_knob_table
from fedge.types import DeviceSpec, Floats, LayerWork, PowerMode, Workload

WORKER_MB = 180.0
"""Resident memory of a loader process. A default for a Python process with torch loaded; it decides which points
are refused for lack of memory."""
LOADING_SHARE = 0.1
"""Lower limit of the power of all cores when they load at the top clocks, as a share of the board's maximum. Tables
without loading do not determine it (AGX Xavier, TX2: below 2 %); those with loading have 7 to 23 % (AGX Orin, Orin
Nano)."""


@dataclass(frozen=True, slots=True, eq=False)
class ComputeCost:
    """The compute time of one minibatch in one mode, in seconds, with no other work on the cores."""

    compute_s: float
    host_share: float
    """Part of ``compute_s`` in which the GPU waits for kernel launches, 0 to 1."""
    gpu_s: float
    """Time in which the GPU is busy; of these ``math_s`` with arithmetic, ``mem_s`` with memory."""
    math_s: float
    mem_s: float
    launch_s: float


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedCosts:
    """A workload at one batch size on one board: its cost coefficients and its memory."""

    spec: DeviceSpec
    profile: CostProfile
    fed: SampleFormat
    batch_size: int
    memory_mb: float

    def compute_cost(self, mode: PowerMode) -> ComputeCost:
        """Return the compute time in a mode, combining device and launch times with the board's overlap exponent."""
        shares = time_power_model.knob_shares(self.spec.maxn, stack_modes([mode]))
        parts = time_power_model.compute_time_parts(self.profile.coefficients.time, shares)
        own = find_pipeline_kind(self.spec.name)
        gpu_s, math_s, mem_s = (own.compute * float(part[0]) for part in (parts.gpu_s, parts.math_s, parts.mem_s))
        launch_s, overlap = float(parts.launch_s[0]), own.overlap
        compute_s = float((gpu_s**overlap + launch_s**overlap) ** (1.0 / overlap))
        return ComputeCost(
            compute_s,
            host_share=(launch_s / compute_s) ** overlap,
            gpu_s=gpu_s,
            math_s=math_s,
            mem_s=mem_s,
            launch_s=launch_s,
        )

    def build_pipeline(self, mode: PowerMode, loader: Loader, stored: Storage) -> InputPipeline:
        """Return the input pipeline in a mode, with everything in the page cache."""
        spec, does = self.spec, self.compute_cost(mode)
        cores = max(spec.cores)
        top = build_pipeline(
            self.fed,
            batch_size=self.batch_size,
            loader=loader,
            stored=stored,
            cpu_score=spec.cpu_score.value,
            cores=cores,
        )
        clocks = ClockShares(mode.cores, mode.cpu_mhz / spec.maxn.cpu_mhz, mode.mem_mhz / spec.maxn.mem_mhz)
        return scale_to_clocks(top, clocks, does.compute_s, does.host_share)

    def power_w(self, mode: PowerMode, played: SimulatedEpoch) -> Floats:
        """Return the module's power during each minibatch of an epoch, in watts, shape (steps,).

        Concurrent loading lengthens kernel launches, but does not lengthen the time in which the GPU is busy.
        """
        shares = time_power_model.knob_shares(self.spec.maxn, stack_modes([mode]))
        does, step_s = self.compute_cost(mode), played.step_s
        training = played.copy_s + played.compute_s + played.overhead_s
        loading_cores = np.maximum(0.0, played.cpu_busy - training / step_s)
        parts = time_power_model.StepParts(
            as_knob_table(np.repeat(shares, len(step_s), axis=0)),
            total_s=step_s,
            overlapped_s=step_s,
            gpu_s=np.minimum(does.gpu_s, played.compute_s),
            math_s=np.minimum(does.math_s, played.compute_s),
            mem_s=np.minimum(does.mem_s, played.compute_s),
            prep_s=step_s * np.minimum(1.0, loading_cores / mode.cores),
            launch_s=np.minimum(does.launch_s * played.compute_s / does.compute_s, played.compute_s) + played.copy_s,
            host_s=played.overhead_s,
        )
        watts: Floats = time_power_model.compute_power_terms(self.profile.coefficients.power, parts).sum(axis=0)
        return watts


@lru_cache(maxsize=256)
def estimate_costs(device: str, workload: WorkloadPlan, kind: WorkKind, batch_size: int) -> EmulatedCosts:
    """Estimate the costs of a workload. Its network is built and traced with torch once per process.

    Raises:
        BadInput: The network cannot be built for its input.
    """
    spec = catalogue.find(device, where="board")
    network = _trace_network(workload.model, workload.input, workload.classes)
    each = sum_layers(network)
    more = sum(load_launch_counts().get(layer.kind, 1) - 1 for layer in network.layers)
    each = dataclasses.replace(each, operators=each.operators + more)
    images = workload.images
    layers = LayerWork(workload.model, each, loading="cached", image_mpixel=images.mpixel)
    profile = estimate_network_cost(spec, Workload(workload.name, batch_size, kind, layers), catalogue.load_catalogue())
    profile = _with_min_loading_power(profile, LOADING_SHARE * spec.max_w.value)
    elements = int(np.prod(workload.input))
    fed = SampleFormat(images.mpixel, elements, images.source == "memory", images.kb)
    return EmulatedCosts(
        spec,
        profile=profile,
        fed=fed,
        batch_size=batch_size,
        memory_mb=_estimate_memory_mb(network, spec, kind, batch_size),
    )


def _with_min_loading_power(profile: CostProfile, least_w: float) -> CostProfile:
    power = profile.coefficients.power.copy()
    place = time_power_model.POWER_NAMES.index("cores_busy_w")
    power[place] = max(power[place], np.log(least_w))
    return dataclasses.replace(profile, coefficients=time_power_model.Coefficients(profile.coefficients.time, power))


def _estimate_memory_mb(network: NetworkCost, spec: DeviceSpec, kind: WorkKind, batch_size: int) -> float:
    """Estimate the resident memory of a step in MB.

    Inference keeps no gradients, and the activations of one operator only; to these and the weights the calibrated
    minimum of a training process is added.
    """
    training_mb = predict_step_need(network, spec, batch_size).memory_mb
    if kind == "train":
        return training_mb
    return min(training_mb, load_stock_calibration().memory.floor_mb + network.inference_memory_mb(batch_size))


@lru_cache(maxsize=32)
def _trace_network(name: str, shape: tuple[int, int, int], classes: int) -> NetworkCost:
    from fedge.costs.layers.torch_trace import trace_module
    from fedge.worker.network_lookup import make_network
    from fedge.worker.refusal import Refusal

    try:
        return trace_module(make_network(name, shape, classes), shape, name)
    except Refusal as error:
        raise BadInput(error.where, error.got, error.right) from error
