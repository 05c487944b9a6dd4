"""An emulated board's loader: what is believed of it, what it truly takes, and the minibatches that come of both."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fedge.devices.truth import Surface, slower
from fedge.experiment import Board, Experiment, LoaderSpec
from fedge.fleetsim.boards import Kind
from fedge.interfaces import Device
from fedge.pipeline import emulation
from fedge.pipeline.emulation import Fed, storage
from fedge.pipeline.emulation import kind_of as boards_of
from fedge.pipeline.records import Loader, Pipeline
from fedge.rounds.loading import Loading, StallingDevice, with_stalls
from fedge.seeds import generator
from fedge.types import DeviceSpec, Floats

SAMPLE_ELEMENTS = 3 * 224 * 224
"""Of the tensor that is made of an image; chosen by us, the networks' usual input."""
OWN_SD_LOG = 0.05
"""How far a board's own loading lies off its kind's, log units; chosen by us, as far as boards differ otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """A board's loader over all its modes, row i of each belonging to the same one.

    ``believed`` is what boards of the kind need, which is known beforehand, ``true`` what this board needs. ``bare`` is
    the truth without loading, ``surface`` with it, ``waits`` (n,) the share of a minibatch that is stall.
    """

    believed: Loading
    true: Loading
    bare: Surface
    surface: Surface
    waits: Floats

    def at(self, batch_size: int, ratio: float) -> Load:
        """The same for minibatches of another size, whose computing takes ``ratio`` times as long."""
        return _load(self.believed.at_batch(batch_size), self.true.at_batch(batch_size), slower(self.bare, ratio))


def load_of(board: Board, kind: Kind, bare: Surface, experiment: Experiment) -> Load | None:
    """The loader of a board whose minibatches take what ``bare`` says otherwise; None where its entry has none.

    Raises ``UnknownName`` for its storage.
    """
    spec = board.entry.loader
    if spec is None:
        return None
    pipeline = pipeline_of(spec, kind.spec, experiment.workload.batch_size)
    believed = Loading(pipeline, kind.spec.maxn, kind.priors[0].coefficients, kind.spec.idle_w.value)
    own = np.exp(OWN_SD_LOG * generator(experiment.seed, board.name, "loading").standard_normal())
    return _load(believed, believed.slower(float(own)), bare)


def _load(believed: Loading, true: Loading, bare: Surface) -> Load:
    made = with_stalls(true, bare.modes, bare.step_s, bare.power_w)
    surface = dataclasses.replace(bare, step_s=made.step_s, power_w=np.maximum(made.power_w, bare.idle_w))
    return Load(believed, true, bare, surface, made.stall_s / made.step_s)


def pipeline_of(spec: LoaderSpec, device: DeviceSpec, batch_size: int) -> Pipeline:
    """What an entry's ``loader`` stands for on boards of a kind, in seconds of their top clocks; estimated.

    The step itself, its copies among it, and whatever runs beside are not in it: they are in the board's minibatch
    already. Raises ``UnknownName`` for the storage.
    """
    fed = Fed(spec.image_mpixel, SAMPLE_ELEMENTS, kb=None if spec.file_mb is None else 1e3 * spec.file_mb)
    loader, cores = Loader(spec.workers, spec.prefetch), max(device.cores)
    stored = storage(spec.storage or boards_of(device.name).storage, "loader.storage")
    whole = emulation.pipeline_of(fed, batch_size, loader, stored, device.cpu_score.value, cores)
    step = dataclasses.replace(whole.step, copy_s=0.0, handover_s=0.0, overhead_s=0.0)
    host = dataclasses.replace(whole.host, background=0.0)
    return dataclasses.replace(whole, step=step, host=host, cached=spec.cached)


def stalling(load: Load, board: Device) -> StallingDevice:
    """The board, whose measurements tell their stalls."""
    return StallingDevice(board, load.surface, load.waits)
