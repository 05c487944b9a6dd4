"""Input pipelines of emulated boards at their top clocks: storages, host cores, sample formats, and board variation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from fedge.costs.cost_profile import load_yaml
from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Loader, SampleCost, StepCost, Storage
from fedge.errors import UnknownName

ELEMENT_MB = 4e-6
"""Size of a tensor element (float32), in MB."""


@dataclass(frozen=True, slots=True)
class PipelineBoardKind:
    """Storage, speed and variation of the emulated boards of one kind.

    Attributes:
        between_time: Spread of epoch times between boards of the kind: (largest - smallest) / mean, as printed by the
            characterisation paper (doi 10.1145/3570604).
        between_energy: The same for epoch energies.
        within: The same for one board over time.
        overlap: Exponent of the norm that combines a step's GPU and launch times; larger values overlap them more.
        compute: Factor on the GPU time that is estimated from the layers.
    """

    storage: str
    between_time: float
    between_energy: float
    within: float
    overlap: float
    compute: float = 1.0


@dataclass(frozen=True, slots=True)
class SampleFormat:
    """Format of a training sample: a stored image, and the tensor made from it.

    Attributes:
        in_memory: Whether the data set is held in memory, so that nothing is read or decoded.
        kb: Mean file size in kB; None for the usual size of a JPEG with that many pixels.
    """

    mpixel: float
    elements: int
    in_memory: bool = False
    kb: float | None = None

    @property
    def file_mb(self) -> float:
        """Return the MB read per sample; 0 if the data set is held in memory."""
        if self.in_memory:
            return 0.0
        kb = self.mpixel * _load_file()["samples"]["jpeg_kb_per_mpixel"] if self.kb is None else self.kb
        return float(kb) / 1e3


@lru_cache(maxsize=1)
def _load_file() -> Mapping[str, Any]:
    return MappingProxyType(load_yaml(resources.files("fedge.costs.input_pipeline") / "emulation.yaml"))


@lru_cache(maxsize=1)
def load_storages() -> Mapping[str, Storage]:
    """Load the emulated storages by name."""
    return MappingProxyType({name: Storage(name, **given) for name, given in _load_file()["storages"].items()})


def find_storage(name: str, where: str = "storage") -> Storage:
    """Return the emulated storage with a given name.

    Raises:
        UnknownName: There is no such storage.
    """
    if name not in load_storages():
        raise UnknownName(where, name, tuple(load_storages()))
    return load_storages()[name]


def find_pipeline_kind(device: str) -> PipelineBoardKind:
    """Return storage and variation of a kind of board; kinds that are not listed share the entry ``others``."""
    boards = _load_file()["boards"]
    return PipelineBoardKind(**boards.get(device, boards["others"]))


def load_launch_counts() -> Mapping[str, int]:
    """Load, by kind of operator, the number of kernel launches it counts as; operators that are not listed count as
    one.
    """
    counts: Mapping[str, int] = _load_file()["launches"]["composed"]
    return counts


def page_cache_mb(ram_gb: float, training_mb: float) -> float:
    """Return the size of the page cache, in MB: the memory left by the system and the training process."""
    return max(0.0, 1e3 * ram_gb * (1.0 - float(_load_file()["system_share"])) - training_mb)


def build_pipeline(
    fed: SampleFormat, batch_size: int, loader: Loader, stored: Storage, cpu_score: float, cores: int
) -> InputPipeline:
    """Build a board's pipeline at its top clocks, without compute time and with all files in the page cache.

    ``cpu_score`` is the speed of a core relative to the AGX Orin's. Core time of the pinning thread beside workers is
    not modelled. Without workers, training pins each batch itself, which adds to collating.
    """
    file, core_s = _load_file(), 1.0 / cpu_score
    each, batch, host = file["samples"], file["batch"], file["host"]
    batch_mb = batch_size * fed.elements * ELEMENT_MB
    preprocess_s = each["sample_s"] + each["transform_s_per_mpixel"] * fed.elements / 3e6
    preprocess_s += 0.0 if fed.in_memory else each["decode_s_per_mpixel"] * fed.mpixel
    copying = batch["pinned_copy_mb_per_s"] if loader.pinned else batch["copy_mb_per_s"]
    pinning_s = batch_mb / batch["copy_mb_per_s"] if loader.pinned and loader.workers == 0 else 0.0
    return InputPipeline(
        batch_size=batch_size,
        loader=loader,
        storage=stored,
        samples=SampleCost(fed.file_mb, 0.0 if fed.in_memory else each["open_s"] * core_s, preprocess_s * core_s),
        step=StepCost(
            compute_s=0.0,
            host_share=0.0,
            copy_s=batch_mb / copying * core_s,
            collate_s=(batch["collate_s"] + batch_mb / batch["collate_mb_per_s"] + pinning_s) * core_s,
            handover_s=(batch["take_s"] + batch_mb / batch["take_mb_per_s"]) * core_s,
            overhead_s=batch["loop_s"] * core_s,
        ),
        host=HostCores(float(cores), host["background"], host["crowding"]),
        start_s=host["worker_start_s"] * core_s,
    )


def cache_hit_share(cache_mb: float, dataset_mb: float, reached: float = 1.0, part: float = 1.0) -> float:
    """Return the share of an epoch's reads that a least-recently-used cache answers, from 0 to 1.

    While a share v of the data set has been read in the epoch, the cache holds min(c, reached + (1 - reached) v) of it,
    where c is the share it has room for. Of this, v was read in the epoch itself, and the next read is uniform over the
    remaining 1 - v. It is therefore a hit with probability

        (min(c, reached + (1 - reached) v) - v) / (1 - v),   and 0 from v = c on.

    The result is the mean of this over v from 0 to ``part``. A data set that fits and was read completely is always
    hit; one that does not fit is hit with probability c + (1 - c) log(1 - c): room for half of it answers 15 % of the
    reads, not 50 %.

    Args:
        cache_mb: Size of the cache in MB.
        dataset_mb: Size of the data set in MB.
        reached: Share of the data set that was read at least once before, chosen at random, from 0 to 1.
        part: Share of the data set that the epoch reads, chosen at random, above 0 to 1.
    """
    if dataset_mb <= 0:
        return 1.0
    room = max(cache_mb, 0.0) / dataset_mb
    if room >= 1.0:
        return reached
    full = max(0.0, room - reached) / (1.0 - reached) if reached < 1.0 else 0.0
    filling, end = min(full, part), min(room, part)
    answered = reached * filling + (end - filling) + (1.0 - room) * math.log((1.0 - end) / (1.0 - filling))
    return max(0.0, answered) / part


def ever_read_share(parts: int, part: float) -> float:
    """Return the expected share of a data set that was read at least once after ``parts`` epochs, each reading a share
    at random.
    """
    return 1.0 - (1.0 - min(part, 1.0)) ** parts
