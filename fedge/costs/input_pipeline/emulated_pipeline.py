"""What an emulated board's input pipeline is made of at its top clocks: storages, host, samples, how boards differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import yaml

from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Loader, SampleCost, StepCost, Storage
from fedge.errors import UnknownName

ELEMENT_MB = 4e-6
"""A tensor's element."""


@dataclass(frozen=True, slots=True)
class PipelineBoardKind:
    """How emulated boards of a kind store, compute, and differ.

    ``between_*`` (boards of the kind) and ``within`` (one board over time) are (most - least) / mean of epochs' times
    or energies, as the paper prints them.
    """

    storage: str
    between_time: float
    between_energy: float
    within: float
    overlap: float
    """The norm that joins a step's GPU time and its launches."""
    compute: float = 1.0
    """The GPU's seconds beside what its layers say."""


@dataclass(frozen=True, slots=True)
class SampleFormat:
    """What the network is fed: a stored image, and the tensor that is made of it."""

    mpixel: float
    elements: int
    """Of the tensor, channels x height x width."""
    in_memory: bool = False
    kb: float | None = None
    """A file's mean size; None: what JPEG makes of so many pixels."""

    @property
    def file_mb(self) -> float:
        """What is read for one sample; nothing where the data set lies in memory."""
        if self.in_memory:
            return 0.0
        kb = self.mpixel * _load_file()["samples"]["jpeg_kb_per_mpixel"] if self.kb is None else self.kb
        return float(kb) / 1e3


@lru_cache(maxsize=1)
def _load_file() -> Mapping[str, Any]:
    text = (resources.files("fedge.costs.input_pipeline") / "emulation.yaml").read_text(encoding="utf-8")
    return MappingProxyType(yaml.safe_load(text))


@lru_cache(maxsize=1)
def load_storages() -> Mapping[str, Storage]:
    """The emulated storages by name."""
    return MappingProxyType({name: Storage(name, **given) for name, given in _load_file()["storages"].items()})


def find_storage(name: str, where: str = "storage") -> Storage:
    """One of them; raises ``UnknownName`` for the field ``where``."""
    if name not in load_storages():
        raise UnknownName(where, name, tuple(load_storages()))
    return load_storages()[name]


def find_pipeline_kind(device: str) -> PipelineBoardKind:
    """How boards of a kind store and differ."""
    boards = _load_file()["boards"]
    return PipelineBoardKind(**boards.get(device, boards["others"]))


def load_launch_counts() -> Mapping[str, int]:
    """By kind of operator, as how many launches it counts; one where it is not here."""
    counts: Mapping[str, int] = _load_file()["launches"]["composed"]
    return counts


def page_cache_mb(ram_gb: float, training_mb: float) -> float:
    """What the page cache can hold beside the system and the training."""
    return max(0.0, 1e3 * ram_gb * (1.0 - float(_load_file()["system_share"])) - training_mb)


def build_pipeline(
    fed: SampleFormat, batch_size: int, loader: Loader, stored: Storage, cpu_score: float, cores: int
) -> InputPipeline:
    """A board's pipeline at its top clocks, without the computing itself, and with everything in the page cache.

    ``cpu_score`` is a core's speed beside the AGX Orin's. What the thread that pins batches takes of the cores beside
    workers is not modelled; without workers the training pins each batch itself, which collates as much longer.
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
    """The share of an epoch's reads that a least-recently-used cache answers.

    ``reached`` of the data set was read at least once before; the epoch reads ``part`` of it, both from 0 to 1 and
    both chosen at random. When v of the data set is read, the cache holds min(c, reached + (1 - reached) v) of it, with
    c the part for which there is room; v of this was read in the epoch itself, and what is read next is any of the
    other 1 - v of the data set. So the next read is answered with the chance

        (min(c, reached + (1 - reached) v) - v) / (1 - v),   none from v = c on,

    whose mean over v from 0 to ``part`` is what is given here (our derivation). Of a data set that fits and was read
    whole, that is all; of one that does not fit c + (1 - c) log(1 - c): half a data set's room answers 15 %, not 50 %.
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
    """What was read at least once of a data set after ``parts`` epochs that read a random ``part`` of it each."""
    return 1.0 - (1.0 - min(part, 1.0)) ** parts
