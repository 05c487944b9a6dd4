"""A point of a sweep: one setting of everything that can be set, measured once; its key names it on the disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from fedge.types import PowerMode

Kind = Literal["train", "infer"]
Cache = Literal["dropped", "warm"]
KNOBS = (
    "mode",
    "workload",
    "kind",
    "batch_size",
    "workers",
    "prefetch",
    "pinned",
    "storage",
    "cache",
    "runtime",
    "dvfs",
)
"""What a sweep may turn, in the order in which it is shown; the board and the repeat are beside them."""


PREFETCH = 2
"""Batches that a loader worker makes ahead, unless a plan says otherwise: PyTorch's own."""
STORAGE = "default"
"""What the storage is called of a plan that names none."""


@dataclass(frozen=True, slots=True)
class Point:
    """One setting. ``board`` is ``here``, or an emulated board's own name such as ``agx-xavier-1``."""

    board: str
    workload: str
    """The name of one of the plan's workloads."""
    mode: PowerMode | None = None
    """None: whatever mode the machine is in, where none can be set."""
    kind: Kind = "train"
    batch_size: int = 16
    workers: int = 0
    prefetch: int = PREFETCH
    pinned: bool = False
    storage: str = STORAGE
    """The name of one of the plan's storages."""
    cache: Cache = "dropped"
    """``dropped``: before the first epoch, later epochs find what it left; ``warm``: every file was read before."""
    runtime: str = "bare"
    """``bare``, or ``docker:IMAGE``, ``podman:IMAGE``, with ``nvidia+`` in front for NVIDIA's runtime."""
    dvfs: bool = False
    """Whether clocks may follow the load below the mode's."""
    repeat: int = 0

    @property
    def key(self) -> str:
        """Twelve hex digits that name the point; the same for the same setting, in any plan and version of Python."""
        return hashlib.sha256(json.dumps(self.as_data(), sort_keys=True).encode()).hexdigest()[:12]

    def as_data(self) -> dict[str, Any]:
        """JSON-able; ``mode`` is [cores, CPU, GPU, memory MHz] or null."""
        mode = self.mode
        knobs = None if mode is None else [mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz]
        return asdict(self) | {"mode": knobs}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The inverse of ``as_data``; raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        given = {one.name: data[one.name] for one in fields(cls)}
        if given["mode"] is not None:
            cores, cpu_mhz, gpu_mhz, mem_mhz = map(float, given["mode"])
            given["mode"] = PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)
        return cls(**given)
