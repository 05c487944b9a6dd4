"""What an emulated board's input pipeline is made of at its top clocks: storages, host, samples, how boards differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import yaml

from fedge.errors import UnknownName
from fedge.pipeline.records import Host, Loader, Pipeline, Samples, Step, Storage

FLOAT_MB = 4e-6
"""A tensor's element."""


@dataclass(frozen=True, slots=True)
class Kind:
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
class Fed:
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
        kb = self.mpixel * _file()["samples"]["jpeg_kb_per_mpixel"] if self.kb is None else self.kb
        return float(kb) / 1e3


@lru_cache(maxsize=1)
def _file() -> Mapping[str, Any]:
    text = (resources.files("fedge.pipeline") / "emulation.yaml").read_text(encoding="utf-8")
    return MappingProxyType(yaml.safe_load(text))


@lru_cache(maxsize=1)
def storages() -> Mapping[str, Storage]:
    """The emulated storages by name."""
    return MappingProxyType({name: Storage(name, **given) for name, given in _file()["storages"].items()})


def storage(name: str, where: str = "storage") -> Storage:
    """One of them; raises ``UnknownName`` for the field ``where``."""
    if name not in storages():
        raise UnknownName(where, name, tuple(storages()))
    return storages()[name]


def kind_of(device: str) -> Kind:
    """How boards of a kind store and differ."""
    boards = _file()["boards"]
    return Kind(**boards.get(device, boards["others"]))


def composed() -> Mapping[str, int]:
    """By kind of operator, as how many launches it counts; one where it is not here."""
    counts: Mapping[str, int] = _file()["launches"]["composed"]
    return counts


def cache_mb(ram_gb: float, training_mb: float) -> float:
    """What the page cache can hold beside the system and the training."""
    return max(0.0, 1e3 * ram_gb * (1.0 - float(_file()["system_share"])) - training_mb)


def pipeline_of(fed: Fed, batch_size: int, loader: Loader, stored: Storage, cpu_score: float, cores: int) -> Pipeline:
    """A board's pipeline at its top clocks, without the computing itself, and with everything in the page cache.

    ``cpu_score`` is a core's speed beside the AGX Orin's. What the thread that pins batches takes of the cores beside
    workers is not modelled; without workers the training pins each batch itself, which collates as much longer.
    """
    file, core_s = _file(), 1.0 / cpu_score
    each, batch, host = file["samples"], file["batch"], file["host"]
    batch_mb = batch_size * fed.elements * FLOAT_MB
    preprocess_s = each["sample_s"] + each["transform_s_per_mpixel"] * fed.elements / 3e6
    preprocess_s += 0.0 if fed.in_memory else each["decode_s_per_mpixel"] * fed.mpixel
    copying = batch["pinned_copy_mb_per_s"] if loader.pinned else batch["copy_mb_per_s"]
    pinning_s = batch_mb / batch["copy_mb_per_s"] if loader.pinned and loader.workers == 0 else 0.0
    return Pipeline(
        batch_size=batch_size,
        loader=loader,
        storage=stored,
        samples=Samples(fed.file_mb, 0.0 if fed.in_memory else each["open_s"] * core_s, preprocess_s * core_s),
        step=Step(
            compute_s=0.0,
            host_share=0.0,
            copy_s=batch_mb / copying * core_s,
            collate_s=(batch["collate_s"] + batch_mb / batch["collate_mb_per_s"] + pinning_s) * core_s,
            handover_s=(batch["take_s"] + batch_mb / batch["take_mb_per_s"]) * core_s,
            overhead_s=batch["loop_s"] * core_s,
        ),
        host=Host(float(cores), host["background"], host["crowding"]),
        start_s=host["worker_start_s"] * core_s,
    )
