"""FLOP and bytes per step of the known workloads, counted by the rules in ``workloads.yaml``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from fedge.costs.cost_profile import load_yaml
from fedge.types import Loading

SIZE_EXPONENT = 0.5
"""Exponent of step time over size. It is below 1 because launches, loading and small kernels do not grow with FLOP and
bytes; between the calibrated workloads of one board, 0.5 halves the error of proportional scaling."""


@dataclass(frozen=True, slots=True)
class WorkloadSize:
    """Size of a workload's training step.

    Attributes:
        gflop_per_step: GFLOP of one step.
        gbyte_per_step: GB moved in one step.
        network: Name of the network, whatever data it is trained on.
        mixed: Whether it is computed in mixed precision.
        image_mpixel: Megapixels of a stored image; matters only for inline loading.
    """

    name: str
    description: str
    batch_size: int
    gflop_per_step: float
    gbyte_per_step: float
    source: str
    network: str = ""
    mixed: bool = False
    loading: Loading = "workers"
    image_mpixel: float = 0.25


@lru_cache(maxsize=1)
def load_workload_sizes() -> Mapping[str, WorkloadSize]:
    """Load the sizes of the known training workloads by name."""
    entries = load_yaml(resources.files("fedge.costs") / "workloads.yaml")
    return MappingProxyType({name: WorkloadSize(name=name, **fields) for name, fields in entries.items()})


def size_distance(a: WorkloadSize, b: WorkloadSize) -> float:
    """Return the Euclidean distance of two workloads in log GFLOP and log GB per step."""
    return math.hypot(
        math.log(a.gflop_per_step / b.gflop_per_step),
        math.log(a.gbyte_per_step / b.gbyte_per_step),
    )


def size_ratio(wanted: WorkloadSize, known: WorkloadSize) -> float:
    """Return the geometric mean of the GFLOP ratio and the GB ratio of two workloads."""
    flop, byte = wanted.gflop_per_step / known.gflop_per_step, wanted.gbyte_per_step / known.gbyte_per_step
    return math.sqrt(flop * byte)


@dataclass(frozen=True, slots=True)
class ForwardSize:
    """Size of a workload's forward pass.

    Attributes:
        sample_mb: MB of activations moved per sample.
        weights_mb: MB of weights read per batch.
        network: Name of the network, whatever data it is applied to.
    """

    name: str
    gflop: float
    sample_mb: float
    weights_mb: float
    source: str
    network: str = ""


@lru_cache(maxsize=1)
def load_forward_sizes() -> Mapping[str, ForwardSize]:
    """Load the forward passes of the known workloads by name."""
    entries = load_yaml(resources.files("fedge.costs") / "forward.yaml")
    return MappingProxyType({name: ForwardSize(name=name, **fields) for name, fields in entries.items()})


def forward_size_of_batch(size: ForwardSize, batch_size: int) -> WorkloadSize:
    """Return the size of inferring one batch, comparable with that of a training step."""
    gbyte = (batch_size * size.sample_mb + size.weights_mb) / 1e3
    return WorkloadSize(
        size.name,
        description="inference",
        batch_size=batch_size,
        gflop_per_step=batch_size * size.gflop,
        gbyte_per_step=gbyte,
        source=size.source,
    )
