"""What inferring a batch of a workload holds: FLOP and bytes of forward passes, by the rules in ``workloads.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

import yaml

from fedge.costs.workloads import WorkloadSize


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
def load_forward() -> Mapping[str, ForwardSize]:
    """The known workloads by name."""
    text = (resources.files("fedge.costs") / "forward.yaml").read_text(encoding="utf-8")
    return MappingProxyType({name: ForwardSize(name=name, **fields) for name, fields in yaml.safe_load(text).items()})


def of_batch(size: ForwardSize, batch_size: int) -> WorkloadSize:
    """What a batch of ``batch_size`` samples holds, to be compared with a training step or another batch."""
    gbyte = (batch_size * size.sample_mb + size.weights_mb) / 1e3
    return WorkloadSize(size.name, "inference", batch_size, batch_size * size.gflop, gbyte, size.source)
