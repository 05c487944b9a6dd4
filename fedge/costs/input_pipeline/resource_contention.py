"""Slow-down of work that shares cores or a storage with other work.

Cores: n tasks at once on c cores, background included, each take max(1, n / c) (1 + k min(1, (n - 1) / max(1, c - 1)))
times as long. The first factor is time slicing, the second contention for caches and memory (k is
``HostCores.crowding``). Storage: the first min(a, 1 / u) readers are served and the others wait, where a is
``Storage.at_once`` and u the share of a read that moves bytes, since a device transfers for one reader at a time. For
1.3 readers, the second is served at 0.3 times its rate. Both forms are our own.
"""

from __future__ import annotations

import numpy as np

from fedge.costs.input_pipeline.pipeline_model import HostCores, InputPipeline, Storage
from fedge.types import Floats

_ALONE = 1e-9


def compute_slowdowns(cores: Floats, host: HostCores, running: float) -> Floats:
    """Return the slow-down of work on a core beside other work, shape (n,).

    Args:
        cores: Numbers of active cores, shape (n,).
        host: Background load and crowding; its ``cores`` are ignored.
        running: Tasks at once, including the work itself but not the background.
    """
    at_once = max(running + host.background, 1.0)
    shared = np.minimum(1.0, (at_once - 1.0) / np.maximum(cores - 1.0, 1.0))
    slower: Floats = np.maximum(1.0, at_once / cores) * (1.0 + host.crowding * shared)
    return slower


def compute_slowdown(host: HostCores, running: float) -> float:
    """Return the slow-down of work on one of the host's own cores.

    Args:
        host: The cores.
        running: Tasks at once, including the work itself but not the background.
    """
    return float(compute_slowdowns(np.array([host.cores]), host, running)[0])


def file_read_s(storage: Storage, file_mb: float) -> float:
    """Return the time to read an uncached file with one reader, in seconds."""
    return storage.latency_s + file_mb / storage.mb_per_s


def count_served_readers(storage: Storage, file_mb: float) -> float:
    """Return the number of readers that the storage serves at once, at least 1 and not necessarily whole.

    Args:
        storage: The storage.
        file_mb: MB of each file.
    """
    alone_s = file_read_s(storage, file_mb)
    moving = file_mb / storage.mb_per_s / alone_s if alone_s > 0 else 0.0
    return max(1.0, min(storage.at_once, 1.0 / max(moving, _ALONE)))


def batch_read_s(pipeline: InputPipeline) -> float:
    """Return the storage time of a batch's uncached files with one reader, in seconds."""
    missing = (1.0 - pipeline.cached) if pipeline.samples.file_mb > 0 else 0.0
    return pipeline.batch_size * missing * file_read_s(pipeline.storage, pipeline.samples.file_mb)
