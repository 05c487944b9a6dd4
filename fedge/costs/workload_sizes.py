"""What one step of a workload holds: FLOP and bytes, by the counting rules in ``workloads.yaml``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

import yaml

from fedge.types import Loading

SIZE_EXPONENT = 0.5
"""A step's time grows more slowly than its FLOP and bytes: launches, loading and small kernels do not grow with them.
Chosen by us; between the calibrated workloads of one board it halves the error of proportional scaling."""


@dataclass(frozen=True, slots=True)
class WorkloadSize:
    """A workload at its batch size: GFLOP and GB per training step, and where the figures come from."""

    name: str
    description: str
    batch_size: int
    gflop_per_step: float
    gbyte_per_step: float
    source: str
    network: str = ""
    """The network's name, whatever it learns from."""
    mixed: bool = False
    """Computed in mixed precision."""
    loading: Loading = "workers"
    image_mpixel: float = 0.25
    """A stored image's megapixels, as far as they matter: where it is loaded inline."""


@lru_cache(maxsize=1)
def load_workload_sizes() -> Mapping[str, WorkloadSize]:
    """The known workloads by name."""
    text = (resources.files("fedge.costs") / "workloads.yaml").read_text(encoding="utf-8")
    return MappingProxyType({name: WorkloadSize(name=name, **fields) for name, fields in yaml.safe_load(text).items()})


def size_distance(a: WorkloadSize, b: WorkloadSize) -> float:
    """Distance of two workloads in log GFLOP and log GB per step."""
    return math.hypot(
        math.log(a.gflop_per_step / b.gflop_per_step),
        math.log(a.gbyte_per_step / b.gbyte_per_step),
    )


def size_ratio(wanted: WorkloadSize, known: WorkloadSize) -> float:
    """Geometric mean of the GFLOP and the GB ratio of two workloads."""
    flop, byte = wanted.gflop_per_step / known.gflop_per_step, wanted.gbyte_per_step / known.gbyte_per_step
    return math.sqrt(flop * byte)


@dataclass(frozen=True, slots=True)
class ForwardSize:
    """One forward pass: GFLOP and MB per sample, MB of weights per batch, and where the figures come from."""

    name: str
    gflop: float
    sample_mb: float
    weights_mb: float
    source: str
    network: str = ""
    """The network's name, whatever it is shown."""


@lru_cache(maxsize=1)
def load_forward_sizes() -> Mapping[str, ForwardSize]:
    """The known workloads by name."""
    text = (resources.files("fedge.costs") / "forward.yaml").read_text(encoding="utf-8")
    return MappingProxyType({name: ForwardSize(name=name, **fields) for name, fields in yaml.safe_load(text).items()})


def forward_size_of_batch(size: ForwardSize, batch_size: int) -> WorkloadSize:
    """What a batch of ``batch_size`` samples holds, to be compared with a training step or another batch."""
    gbyte = (batch_size * size.sample_mb + size.weights_mb) / 1e3
    return WorkloadSize(
        size.name,
        description="inference",
        batch_size=batch_size,
        gflop_per_step=batch_size * size.gflop,
        gbyte_per_step=gbyte,
        source=size.source,
    )
