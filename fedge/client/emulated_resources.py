"""Resources of an emulated board beside its steps: speed of its loader, memory, cost of evaluations."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedge.client.answers import answer_evaluation, describe_evaluation
from fedge.client.client_setup import ClientSetup, plan_conditions
from fedge.client.emulated_service import cached_average_costs, draw_batch_surface
from fedge.client.loader_stalls import LoaderModel, add_stalls
from fedge.client.memory_scaling import ScalingContext, build_scaling_context, explain_narrowing_failure
from fedge.costs.input_pipeline import emulated_pipeline
from fedge.costs.input_pipeline.emulated_pipeline import SampleFormat, find_storage
from fedge.costs.input_pipeline.emulated_pipeline import find_pipeline_kind as boards_of
from fedge.costs.input_pipeline.pipeline_fit import read_fitted_loader
from fedge.costs.input_pipeline.pipeline_model import InputPipeline, Loader
from fedge.devices import catalogue
from fedge.devices.board_kinds import BoardKind
from fedge.devices.emulated_board import EmulatedBoard
from fedge.devices.mode_surface import ModeSurface, scale_step_time
from fedge.devices.thermal_model import build_thermal_model
from fedge.errors import BadInput, FedgeError, OutOfMemory
from fedge.experiment import (
    DEFAULT_LOADED_MPIXEL,
    DEFAULT_WIDTHS,
    Experiment,
    FleetBoard,
    FleetEntry,
    LoaderSpec,
    choose_training_device,
)
from fedge.protocols import Training
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, NamedArrays, TrainingScale, TrainResult
from fedge.wire import ReplyMessage, RequestMessage
from fedge.worker.refusal import TEST_SAMPLES_NEEDED
from fedge.workloads import load_experiment_task

SAMPLE_ELEMENTS = 3 * 224 * 224
# Elements of the tensor made from an image: 3 x 224 x 224, the usual ImageNet input.
BOARD_SD_LOG = 0.05
# Standard deviation of a board's loading time around its kind's, log units. Default: as large as the spread assumed
# between boards otherwise; there are no measurements of it.


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedLoader:
    """A board's loader over its n modes; rows of all tables belong to the same modes.

    Attributes:
        expected: Loader of an average board of the kind, which is known beforehand.
        surface: True time and power with loading, and the share of a step that waits for samples.
    """

    expected: LoaderModel
    true: LoaderModel
    bare: ModeSurface
    surface: ModeSurface

    def at_scale(self, batch_size: int, ratio: float) -> EmulatedLoader:
        """Return the loader for another batch size, at which computing takes ``ratio`` times as long."""
        return _compose_loader(
            self.expected.with_batch_size(batch_size),
            self.true.with_batch_size(batch_size),
            scale_step_time(self.bare, ratio),
        )


def build_loader(
    board: FleetBoard, kind: BoardKind, bare: ModeSurface, experiment: Experiment
) -> EmulatedLoader | None:
    """Build the loader of a board.

    Returns:
        The loader, or None if the board's fleet entry has none.

    Raises:
        UnknownName: If the storage is unknown.
    """
    spec = board.entry.loader
    if spec is None:
        return None
    pipeline = build_loader_pipeline(spec, kind.spec, experiment.workload.batch_size)
    expected = LoaderModel(pipeline, kind.spec.maxn, kind.priors[0].coefficients, kind.spec.idle_w.value)
    own = np.exp(BOARD_SD_LOG * make_generator(experiment.seed, board.name, "loading").standard_normal())
    return _compose_loader(expected, expected.slow_down(float(own)), bare)


def _compose_loader(expected: LoaderModel, true: LoaderModel, bare: ModeSurface) -> EmulatedLoader:
    stalled = add_stalls(true, bare.modes, bare.step_s, bare.power_w)
    surface = dataclasses.replace(
        bare,
        step_s=stalled.step_s,
        power_w=np.maximum(stalled.power_w, bare.idle_w),
        stall_share=stalled.stall_s / stalled.step_s,
    )
    return EmulatedLoader(expected, true=true, bare=bare, surface=surface)


def build_loader_pipeline(
    spec: LoaderSpec, device: DeviceSpec, batch_size: int, where: str = "fleet.loader"
) -> InputPipeline:
    """Build the input pipeline of a loader entry, with times at the top clocks: as fitted, or an estimate.

    The step itself, including its copies, and background load are set to zero because the board's step time includes
    them.

    Raises:
        UnknownName: If the storage is unknown.
        BadInput: If the fitted loader cannot be read, has changed or is another board's, or is beside ``image_mpixel``.
    """
    build = _emulate_pipeline if spec.model is None else _read_pipeline
    whole = build(spec, device, batch_size, where)
    step = dataclasses.replace(whole.step, copy_s=0.0, handover_s=0.0, overhead_s=0.0)
    host = dataclasses.replace(whole.host, background=0.0)
    return dataclasses.replace(whole, step=step, host=host, cached=spec.cached)


def _read_pipeline(spec: LoaderSpec, device: DeviceSpec, batch_size: int, where: str) -> InputPipeline:
    assert spec.model is not None
    if spec.image_mpixel is not None:
        right = "no image_mpixel beside model: the images are those of the fit; file_mb may set another size of a file"
        raise BadInput(f"{where}.image_mpixel", f"{spec.image_mpixel:g}", right)
    fitted = read_fitted_loader(Path(spec.model), f"{where}.model", spec.sha256)
    if fitted.device != device.name:
        raise BadInput(
            f"{where}.model", f"{spec.model} of {fitted.device}", f"a loader that was fitted on {device.name}"
        )
    pipeline = fitted.pipeline.pipeline_at(
        batch_size,
        workers=spec.workers,
        prefetch=spec.prefetch,
        storage=spec.storage or fitted.pipeline.top.storage.name,
        cached=spec.cached,
        where=f"{where}.storage",
    )
    if spec.file_mb is None:
        return pipeline
    return dataclasses.replace(pipeline, samples=dataclasses.replace(pipeline.samples, file_mb=spec.file_mb))


def _emulate_pipeline(spec: LoaderSpec, device: DeviceSpec, batch_size: int, where: str) -> InputPipeline:
    mpixel = spec.image_mpixel or DEFAULT_LOADED_MPIXEL
    fed = SampleFormat(mpixel, SAMPLE_ELEMENTS, kb=None if spec.file_mb is None else 1e3 * spec.file_mb)
    loader, cores = Loader(spec.workers, spec.prefetch), max(device.cores)
    stored = find_storage(spec.storage or boards_of(device.name).storage, f"{where}.storage")
    return emulated_pipeline.build_pipeline(
        fed, batch_size=batch_size, loader=loader, stored=stored, cpu_score=device.cpu_score.value, cores=cores
    )


def build_board_scaling(experiment: Experiment, entry: FleetEntry) -> ScalingContext | None:
    """Return the memory and scaling options of an entry's boards, or None if the network of the workload is unknown."""
    widths = (*(experiment.workload.memory.widths or DEFAULT_WIDTHS), entry.width)

    def can_narrow() -> bool:
        return explain_narrowing_failure(load_experiment_task(experiment), widths) == ""

    return build_scaling_context(experiment, entry, catalogue.find(entry.device, where="fleet.device"), can_narrow)


def true_peak_mb(scaling: ScalingContext, scale: TrainingScale, board: str, seed: int) -> float:
    """Return the true peak memory of a step on this board in MB.

    It is the predicted need times a log-normal factor of the board, whose spread is the prediction's own uncertainty.
    """
    need = scaling.estimate_need(scale)
    return need.memory_mb * math.exp(need.memory_sd_log * make_generator(seed, board, "memory").standard_normal())


class MemoryLimitedTraining:
    """A ``fedge.protocols.Training`` whose first step raises ``OutOfMemory`` if it needs more than the limit."""

    def __init__(self, training: Training, peak_mb: float, limit_mb: float, lost_s: float) -> None:
        self._training, self._peak_mb, self._limit_mb, self._lost_s = training, peak_mb, limit_mb, lost_s

    def advance(self, steps: int) -> None:
        if self._peak_mb > self._limit_mb:
            raise OutOfMemory(f"out of memory: a step needed more than {self._limit_mb:,.0f} MB", self._lost_s)
        self._training.advance(steps)

    def result(self) -> TrainResult:
        return self._training.result()


def evaluate_emulated(
    experiment: Experiment,
    setup: ClientSetup,
    kind: BoardKind,
    request: RequestMessage,
    *,
    arrays: NamedArrays,
    share: NDArray[np.int64],
) -> ReplyMessage:
    """Evaluate ``arrays`` on the test samples ``share`` and return the reply of an emulated board.

    Raises:
        BadInput: There are no test samples.
        FedgeError: The task gives no result.
    """
    if not len(share):
        raise BadInput("evaluate", "no test samples", TEST_SAMPLES_NEEDED)
    name, entry, state = setup.board.name, setup.board.entry, request.state
    surface, batch_size = _draw_surface(experiment, setup, kind)
    board = EmulatedBoard(
        kind.spec,
        surface=surface,
        thermal=build_thermal_model(kind.spec, entry.ambient_c),
        temperature_c=entry.ambient_c if state.temperature_c is None else state.temperature_c,
        rng=make_generator(experiment.seed, name, request.round, "evaluation noise"),
    )
    board.idle_for(max(0.0, request.start_s - state.rested_at_s), plan_conditions(setup, request, None).waiting_mode)

    def evaluate() -> tuple[float, float, int]:
        task = load_experiment_task(experiment, choose_training_device(experiment))
        result = task.evaluate(arrays, share)
        if result is None:
            raise FedgeError(f"the task {experiment.workload.task} has test samples but evaluates no model on them")
        return *result, len(share)

    reply = answer_evaluation(setup, request, board, batches=math.ceil(len(share) / batch_size), evaluate=evaluate)
    assert reply.state is not None
    return dataclasses.replace(reply, state=dataclasses.replace(reply.state, temperature_c=board.temperature_c))


def _draw_surface(experiment: Experiment, setup: ClientSetup, kind: BoardKind) -> tuple[ModeSurface, int]:
    """Return the board's true time and power of a batch, and the batch size."""
    work = describe_evaluation(experiment.workload, setup.board.entry)
    average, profiles = cached_average_costs(setup.board.entry.device, work, kind.average.modes)
    column = ModeSurface(average.modes, average.infer_s[:, 0], average.power_w[:, 0], kind.average.idle_w)
    rng = make_generator(experiment.seed, setup.board.name, "evaluation")
    surface = draw_batch_surface(setup.board.entry.device, profiles[0], column, seed=experiment.seed, rng=rng)
    return surface, work.batch_sizes[0]
