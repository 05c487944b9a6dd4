"""The data loader of an emulated board: its expected and true speed, and the resulting step times."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedge.client.loader_stalls import LoaderModel, add_stalls
from fedge.costs.input_pipeline import emulated_pipeline
from fedge.costs.input_pipeline.emulated_pipeline import SampleFormat, find_storage
from fedge.costs.input_pipeline.emulated_pipeline import find_pipeline_kind as boards_of
from fedge.costs.input_pipeline.pipeline_fit import read_fitted_loader
from fedge.costs.input_pipeline.pipeline_model import InputPipeline, Loader
from fedge.devices.board_kinds import BoardKind
from fedge.devices.mode_surface import ModeSurface, scale_step_time
from fedge.errors import BadInput
from fedge.experiment import DEFAULT_LOADED_MPIXEL, Experiment, FleetBoard, LoaderSpec
from fedge.seeds import make_generator
from fedge.types import DeviceSpec

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
        true: Loader of this board.
        bare: True time and power without loading.
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

    Args:
        board: The board.
        kind: Its kind.
        bare: True time and power without loading.
        experiment: The resolved experiment.

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
