"""An emulated board as a rig: the input-pipeline model simulates epochs on a virtual clock, with modelled power.

The cost of a minibatch comes from the layers of its network: input pipeline and power in every mode.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedge import __version__
from fedge.characterisation.point_measurement import (
    PART_FIELDS,
    EpochSummary,
    MeasurementRig,
    MinibatchTimes,
    PointMeasurement,
    ProgressCallback,
    SensorTrace,
    count_epoch_steps,
)
from fedge.characterisation.sweep_plan import (
    DEFAULT_STORAGE,
    CharacterisationPlan,
    MeasurementSchedule,
    SweepPoint,
    WorkKind,
    WorkloadPlan,
)
from fedge.costs.cost_profile import CostProfile
from fedge.costs.input_pipeline.emulated_pipeline import (
    SampleFormat,
    build_pipeline,
    cache_hit_share,
    ever_read_share,
    find_pipeline_kind,
    find_storage,
    load_launch_counts,
    load_storages,
    page_cache_mb,
)
from fedge.costs.input_pipeline.epoch_simulation import Jitter, simulate_epoch
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
from fedge.devices.emulated_board import JITTER_SD, NOISE_POWER_SD, WARM_UP_STEPS
from fedge.devices.thermal_model import TRIP_C, build_thermal_model
from fedge.errors import BadInput
from fedge.modes import stack_modes
from fedge.physics import time_power_model
from fedge.physics.time_power_model import as_knob_table
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Floats, LayerWork, PowerMode, Workload
from fedge.workloads.datasets import translate_refusals

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
    """Estimate the costs of a workload; raises ``BadInput`` if its network cannot be built for its input.

    The network is built and traced with torch once per process.
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
    from fedge.worker.builtin_tasks import make_network

    with translate_refusals():
        return trace_module(make_network(name, shape, classes), shape, name)


AMBIENT_C = 25.0
"""Ambient air temperature; the default is a typical room."""
FETCH_SD, PREPROCESS_SD, COMPUTE_SD = 0.15, 0.08, JITTER_SD
"""Standard deviations of a minibatch's times in log units. The last one is that of all emulated boards; the others
are defaults: they determine how often a queue of batches runs empty by chance."""
DVFS_SLOWER, DVFS_POWER = 1.01, 0.99
"""Factors of time and power when clocks follow the load (SIGMETRICS'22: at most 2 % of time, 3 % of energy)."""
RANGE_SD = 2.0
"""The paper's spreads are (max - min) of a few boards or runs; this is the number of standard deviations that the
range of three or four normal values covers (1.7 and 2.1)."""
CONTAINER_NOTE = "a container is emulated as making no difference (HiPC 2023: negligible on AGX Orin)"
MAX_TRACE_SAMPLES = 1200
"""Maximum length of a sensor trace; a default that bounds file and page sizes."""


def build_emulated_rig(plan: CharacterisationPlan, board: str) -> MeasurementRig:
    """Create the rig of an emulated board such as ``agx-xavier-1``, with the plan's storages and seed.

    Raises:
        BadInput: The board's name has another form.
        UnknownName: The board, or the model of a storage, is not known.
    """
    device, dash, number = board.rpartition("-")
    if not dash or not number.isdigit():
        raise BadInput("boards", repr(board), "a board of `fedge devices list`, a dash and a number: agx-xavier-1")
    models = {
        name: one.model or (find_pipeline_kind(device).storage if name == DEFAULT_STORAGE else name)
        for name, one in plan.storages.items()
    }
    for name, known in models.items():
        given = plan.storages.get(name)
        is_named = given is None or given.model is not None or name == DEFAULT_STORAGE
        find_storage(known, f"storages.{name}.model" + ("" if is_named else " (none: the name is taken)"))
    return EmulatedRig(catalogue.find(device, where="boards"), board, models, plan.seed)


class EmulatedRig:
    """A ``MeasurementRig`` whose noise depends on seed and point only, so that a resumed sweep gives equal results."""

    def __init__(self, spec: DeviceSpec, board: str, models: dict[str, str], seed: int) -> None:
        self.spec, self.board, self.maxn, self.software = spec, board, spec.maxn, {"fedge": __version__}
        self._models, self._seed = models, seed

    def refusal_reason(self, point: SweepPoint, workload: WorkloadPlan) -> str | None:
        mode = point.mode or self.spec.maxn
        tables = (self.spec.cores, self.spec.cpu_mhz, self.spec.gpu_mhz, self.spec.mem_mhz)
        if any(value not in table for value, table in zip(astuple(mode), tables, strict=True)):
            return f"{mode} is no mode of the {self.spec.title}"
        if point.storage != DEFAULT_STORAGE and self._models.get(point.storage, point.storage) not in load_storages():
            return f"no emulated storage is called {point.storage}; there are {', '.join(load_storages())}"
        if workload.images.count < point.batch_size:
            return f"batch_size {point.batch_size} is more than the {workload.images.count} images of an epoch"
        needed = self._point_costs(point, workload).memory_mb + point.workers * WORKER_MB
        has_mb = 1e3 * self.spec.ram_gb.value
        if needed > has_mb:
            return f"it needs about {needed:.0f} MB of memory (estimated), the {self.spec.title} has {has_mb:.0f}"
        return None

    def measure(
        self, point: SweepPoint, workload: WorkloadPlan, course: MeasurementSchedule, report: ProgressCallback
    ) -> PointMeasurement:
        mode, costs = point.mode or self.spec.maxn, self._point_costs(point, workload)
        stored = find_storage(self._models.get(point.storage, find_pipeline_kind(self.spec.name).storage), "storage")
        pipeline = costs.build_pipeline(mode, Loader(point.workers, point.prefetch, point.pinned), stored)
        images, memory_mb = workload.images.count, costs.memory_mb + point.workers * WORKER_MB
        steps, file_mb = count_epoch_steps(images, point.batch_size, course), costs.fed.file_mb
        room_mb, part = page_cache_mb(self.spec.ram_gb.value, memory_mb), steps * point.batch_size / images
        cached = _CacheModel(file_mb * images, room_mb, part, point.cache == "warm")
        thermal, gpu_s = build_thermal_model(self.spec, AMBIENT_C), costs.compute_cost(mode).gpu_s
        slower, more_power = self._draw_variation(point)
        rows: list[EpochSummary] = []
        columns: list[_Columns] = []
        begun_s, at_c = 0.0, thermal.ambient_c
        for number in range(course.epochs):
            report(f"epoch {number + 1} of {course.epochs}")
            rng = make_generator(self._seed, self.board, "epoch", point.key, number)
            fed = dataclasses.replace(pipeline, cached=cached.cached_share(number))
            simulated = simulate_epoch(fed, steps, _draw_jitter(steps, slower, number == 0, rng))
            watts = more_power * costs.power_w(mode, simulated) * np.exp(rng.normal(0.0, NOISE_POWER_SD))
            read_mb = (1.0 - fed.cached) * file_mb * costs.batch_size
            own = _list_minibatches(number, simulated, watts, begun_s=begun_s, gpu_s=gpu_s, read_mb=read_mb)
            row = _summarise_epoch(number, own, simulated.e2e_s, cached, cores=mode.cores, memory_mb=memory_mb)
            at_c = thermal.temperature_after_c(at_c, row.power_w or 0.0, row.e2e_s)
            disk_mb = (1.0 - fed.cached) * file_mb * steps * costs.batch_size
            throttled = at_c > TRIP_C
            rows.append(dataclasses.replace(row, disk_read_mb=disk_mb, temperature_c=at_c, throttled=throttled))
            columns.append(own)
            begun_s += row.e2e_s
        every = {name: np.concatenate([own[name] for own in columns]) for name in columns[0]}
        trace = _build_sensor_trace(every, rows, cores=mode.cores, memory_mb=memory_mb, sample_hz=course.sample_hz)
        return self._build_measurement(point, mode, rows=rows, columns=every, trace=trace, pipeline=pipeline)

    def idle(self, seconds: float) -> None:
        """Do nothing: emulated points do not depend on what ran before."""

    def _point_costs(self, point: SweepPoint, workload: WorkloadPlan) -> EmulatedCosts:
        return estimate_costs(self.spec.name, workload, point.kind, point.batch_size)

    def _draw_variation(self, point: SweepPoint) -> tuple[float, float]:
        """Draw the factors of time and power: of the board, of this repeat, and of clocks that may follow the load."""
        kind = find_pipeline_kind(self.spec.name)
        board = make_generator(self._seed, self.board, "own").normal(size=2) / RANGE_SD
        again = make_generator(self._seed, self.board, "repeat", point.repeat).normal() / RANGE_SD
        time = math.exp(kind.between_time * board[0] + kind.within * again)
        power_range = math.sqrt(max(0.0, kind.between_energy**2 - kind.between_time**2))
        power = math.exp(power_range * board[1])
        return (time * DVFS_SLOWER, power * DVFS_POWER) if point.dvfs else (time, power)

    def _build_measurement(
        self,
        point: SweepPoint,
        mode: PowerMode,
        rows: list[EpochSummary],
        columns: _Columns,
        trace: SensorTrace,
        pipeline: InputPipeline,
    ) -> PointMeasurement:
        minibatches = MinibatchTimes(**{one.name: columns[one.name] for one in dataclasses.fields(MinibatchTimes)})
        return PointMeasurement(
            point,
            read_minibatches=lambda: minibatches,
            epochs=tuple(rows),
            read_sensor_trace=lambda: trace,
            label="estimated",
            source=f"an emulated {self.spec.title}: input-pipeline model, computing by the network's layers",
            seconds=sum(row.e2e_s for row in rows),
            notes=() if point.runtime == "bare" else (CONTAINER_NOTE,),
            power_label="estimated",
            parameters={
                "cores": float(mode.cores),
                "sample_preprocess_s": pipeline.samples.preprocess_s,
                "sample_file_mb": pipeline.samples.file_mb,
                "compute_s": pipeline.step.compute_s,
                "host_share": pipeline.step.host_share,
                "crowding": pipeline.host.crowding,
                "background": pipeline.host.background,
            },
        )


_Columns = dict[str, NDArray[Any]]
"""Minibatches: the fields of ``MinibatchTimes``, power, busy cores, GPU time and reads."""


@dataclass(frozen=True, slots=True)
class _CacheModel:
    """State of the page cache during a point.

    Attributes:
        part: Share of the data set that an epoch reads.
        warm: Whether all of the data set was read before the first epoch; else none of it.
    """

    dataset_mb: float
    cache_mb: float
    part: float
    warm: bool

    def read_share(self, epochs: int) -> float:
        """Return the share of the data set that was read at least once within the first ``epochs`` epochs."""
        return 1.0 if self.warm else ever_read_share(epochs, self.part)

    def cached_share(self, epoch: int) -> float:
        """Return the share of an epoch's reads that the cache serves."""
        return cache_hit_share(self.cache_mb, self.dataset_mb, self.read_share(epoch), self.part)

    def resident_share(self, epochs: int) -> float:
        """Return the share of the data set in the cache after ``epochs`` epochs."""
        return 1.0 if self.dataset_mb <= 0 else min(self.read_share(epochs), self.cache_mb / self.dataset_mb)


def _draw_jitter(steps: int, slower: float, first: bool, rng: np.random.Generator) -> Jitter:
    """Draw the noise of an epoch's minibatches; a point's very first one computes ``WARM_UP_STEPS`` times longer."""
    fetch, preprocess, compute = (
        slower * np.exp(rng.normal(-0.5 * sd * sd, sd, steps)) for sd in (FETCH_SD, PREPROCESS_SD, COMPUTE_SD)
    )
    if first:
        compute[0] *= 1.0 + WARM_UP_STEPS
    return Jitter(fetch, preprocess, compute)


def _list_minibatches(
    epoch: int, simulated: SimulatedEpoch, power_w: Floats, *, begun_s: float, gpu_s: float, read_mb: float
) -> _Columns:
    """Return the minibatches of an epoch that begins at ``begun_s``, each reading ``read_mb``."""
    steps = len(simulated.step_s)
    return {
        **{name: getattr(simulated, name) for name in (*PART_FIELDS, "step_s", "cpu_busy")},
        "epoch": np.full(steps, epoch, dtype=np.int64),
        "step": np.arange(steps, dtype=np.int64),
        "start_s": simulated.start_s + begun_s,
        "power_w": power_w,
        "gpu_s": np.minimum(gpu_s, simulated.compute_s),
        "read_mb": np.full(steps, read_mb),
    }


def _summarise_epoch(
    epoch: int, own: _Columns, e2e_s: float, cached: _CacheModel, *, cores: int, memory_mb: float
) -> EpochSummary:
    step_s, steps = own["step_s"], len(own["step_s"])
    energy_j = float(own["power_w"] @ step_s)
    sums: dict[str, Any] = {name: float(own[name].sum()) for name in PART_FIELDS}
    return EpochSummary(
        epoch=epoch,
        steps=steps,
        e2e_s=e2e_s,
        **sums,
        energy_j=energy_j,
        power_w=energy_j / e2e_s,
        cpu_load=min(1.0, float(own["cpu_busy"] @ step_s) / e2e_s / cores),
        gpu_load=float(own["gpu_s"].sum()) / e2e_s,
        memory_mb=memory_mb,
        resident_before=cached.resident_share(epoch),
        resident_after=cached.resident_share(epoch + 1),
    )


def _build_sensor_trace(
    columns: _Columns, rows: list[EpochSummary], *, cores: int, memory_mb: float, sample_hz: float
) -> SensorTrace:
    """Build the trace that a sampler would have recorded, with ``MAX_TRACE_SAMPLES`` samples at most."""
    end_s = sum(row.e2e_s for row in rows)
    count = int(np.clip(end_s * sample_hz, 2, MAX_TRACE_SAMPLES))
    at_s = (np.arange(count) + 0.5) * end_s / count
    row = np.clip(np.searchsorted(columns["start_s"], at_s, side="right") - 1, 0, len(columns["step"]) - 1)
    seen = {name: values[row] for name, values in columns.items()}
    temperatures = np.array([AMBIENT_C, *(one.temperature_c or math.nan for one in rows)])
    ends_s = np.concatenate([[0.0], np.cumsum([one.e2e_s for one in rows])])
    return SensorTrace(
        at_s=at_s,
        cpu_load=np.minimum(1.0, seen["cpu_busy"] / cores),
        gpu_load=seen["gpu_s"] / seen["step_s"],
        memory_mb=np.full(count, memory_mb),
        disk_mb_per_s=seen["read_mb"] / seen["step_s"],
        power_w=seen["power_w"],
        temperature_c=np.interp(at_s, ends_s, temperatures),
    )
