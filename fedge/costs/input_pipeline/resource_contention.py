"""How work slows down where it shares cores or a storage with other work.

Cores: n pieces of work at once on c cores, the background among them, each take
max(1, n / c) (1 + k min(1, (n - 1) / max(1, c - 1))) times as long, the first factor for turns, the second for shared
caches and memory (k is ``HostCores.crowding``). Storage: the first min(a, 1 / u) readers are served, the others wait
for them; a is ``Storage.at_once``, u the part of a read that moves bytes, since a device moves those of one reader at a
time. Of 1.3 readers the second is served at 0.3 times its pace. The forms are ours.
"""

from __future__ import annotations

import numpy as np

from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Storage
from fedge.types import Floats

_ALONE = 1e-9


def compute_slowdowns(cores: Floats, host: HostCores, running: float) -> Floats:
    """How many times as long work on a core takes beside others, on so many ``cores`` (n,); ``host.cores`` is not used.

    ``running`` counts the work itself too, but not the background.
    """
    at_once = max(running + host.background, 1.0)
    shared = np.minimum(1.0, (at_once - 1.0) / np.maximum(cores - 1.0, 1.0))
    slower: Floats = np.maximum(1.0, at_once / cores) * (1.0 + host.crowding * shared)
    return slower


def compute_slowdown(host: HostCores, running: float) -> float:
    """The same on the host's own cores."""
    return float(compute_slowdowns(np.array([host.cores]), host, running)[0])


def file_read_s(storage: Storage, file_mb: float) -> float:
    """Seconds to read one file that is not cached, one reader alone."""
    return storage.latency_s + file_mb / storage.mb_per_s


def count_served_readers(storage: Storage, file_mb: float) -> float:
    """How many readers' worth of files the storage gives in the time of one."""
    alone_s = file_read_s(storage, file_mb)
    moving = file_mb / storage.mb_per_s / alone_s if alone_s > 0 else 0.0
    return max(1.0, min(storage.at_once, 1.0 / max(moving, _ALONE)))


def batch_read_s(pipeline: InputPipeline) -> float:
    """Seconds of the storage for one batch, one reader alone: of the files that the page cache does not have."""
    missing = (1.0 - pipeline.cached) if pipeline.samples.file_mb > 0 else 0.0
    return pipeline.batch_size * missing * file_read_s(pipeline.storage, pipeline.samples.file_mb)
