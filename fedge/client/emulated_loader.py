"""An emulated board's loader: what is believed of it, what it truly takes, and the minibatches that come of both."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fedge.client.loader_stalls import LoaderModel, StallDevice, add_stalls
from fedge.costs.input_pipeline import emulated_pipeline
from fedge.costs.input_pipeline.emulated_pipeline import SampleFormat, find_storage
from fedge.costs.input_pipeline.emulated_pipeline import find_pipeline_kind as boards_of
from fedge.costs.input_pipeline.pipeline_model import InputPipeline, Loader
from fedge.devices.board_kinds import BoardKind
from fedge.devices.mode_surface import ModeSurface, scale_step_time
from fedge.experiment import Experiment, FleetBoard, LoaderSpec
from fedge.protocols import Device
from fedge.seeds import make_generator
from fedge.types import DeviceSpec, Floats

SAMPLE_ELEMENTS = 3 * 224 * 224
"""Of the tensor that is made of an image; chosen by us, the networks' usual input."""
BOARD_SD_LOG = 0.05
"""How far a board's own loading lies off its kind's, log units; chosen by us, as far as boards differ otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedLoader:
    """A board's loader over all its modes, row i of each belonging to the same one.

    ``believed`` is what boards of the kind need, which is known beforehand, ``true`` what this board needs. ``bare`` is
    the truth without loading, ``surface`` with it, ``waits`` (n,) the share of a minibatch that is stall.
    """

    expected: LoaderModel
    true: LoaderModel
    bare: ModeSurface
    surface: ModeSurface
    stall_share: Floats

    def at_scale(self, batch_size: int, ratio: float) -> EmulatedLoader:
        """The same for minibatches of another size, whose computing takes ``ratio`` times as long."""
        return _compose_loader(
            self.expected.with_batch_size(batch_size),
            self.true.with_batch_size(batch_size),
            scale_step_time(self.bare, ratio),
        )


def build_loader(
    board: FleetBoard, kind: BoardKind, bare: ModeSurface, experiment: Experiment
) -> EmulatedLoader | None:
    """The loader of a board whose minibatches take what ``bare`` says otherwise; None where its entry has none.

    Raises ``UnknownName`` for its storage.
    """
    spec = board.entry.loader
    if spec is None:
        return None
    pipeline = build_loader_pipeline(spec, kind.spec, experiment.workload.batch_size)
    believed = LoaderModel(pipeline, kind.spec.maxn, kind.priors[0].coefficients, kind.spec.idle_w.value)
    own = np.exp(BOARD_SD_LOG * make_generator(experiment.seed, board.name, "loading").standard_normal())
    return _compose_loader(believed, believed.slow_down(float(own)), bare)


def _compose_loader(believed: LoaderModel, true: LoaderModel, bare: ModeSurface) -> EmulatedLoader:
    made = add_stalls(true, bare.modes, bare.step_s, bare.power_w)
    surface = dataclasses.replace(bare, step_s=made.step_s, power_w=np.maximum(made.power_w, bare.idle_w))
    return EmulatedLoader(believed, true=true, bare=bare, surface=surface, stall_share=made.stall_s / made.step_s)


def build_loader_pipeline(spec: LoaderSpec, device: DeviceSpec, batch_size: int) -> InputPipeline:
    """What an entry's ``loader`` stands for on boards of a kind, in seconds of their top clocks; estimated.

    The step itself, its copies among it, and whatever runs beside are not in it: they are in the board's minibatch
    already. Raises ``UnknownName`` for the storage.
    """
    fed = SampleFormat(spec.image_mpixel, SAMPLE_ELEMENTS, kb=None if spec.file_mb is None else 1e3 * spec.file_mb)
    loader, cores = Loader(spec.workers, spec.prefetch), max(device.cores)
    stored = find_storage(spec.storage or boards_of(device.name).storage, "loader.storage")
    whole = emulated_pipeline.build_pipeline(
        fed, batch_size=batch_size, loader=loader, stored=stored, cpu_score=device.cpu_score.value, cores=cores
    )
    step = dataclasses.replace(whole.step, copy_s=0.0, handover_s=0.0, overhead_s=0.0)
    host = dataclasses.replace(whole.host, background=0.0)
    return dataclasses.replace(whole, step=step, host=host, cached=spec.cached)


def wrap_with_stalls(load: EmulatedLoader, board: Device) -> StallDevice:
    """The board, whose measurements tell their stalls."""
    return StallDevice(board, load.surface, load.stall_share)
