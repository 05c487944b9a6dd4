"""The request of a topology search and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedge.analysis.topology.channel_coupling import UncutGroup
from fedge.analysis.topology.variant_search import (
    StepLimits,
    VariantFit,
)
from fedge.types import DeviceSpec

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """The options of the command."""

    model: str
    device: str
    batch_size: int = 32
    max_memory_mb: float | None = None
    max_step_s: float | None = None
    input_shape: str | None = None
    method: str = "l1"
    round_to: int = 1
    variants: int = 4
    confidence: float = 0.84
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TopologyResult:
    """Result of a search: variants at the requested batch size, the front over batch sizes, and their derivation."""

    options: TopologyOptions
    device: DeviceSpec
    limits: StepLimits
    memory_limit_source: str
    """Source of the limit on memory."""
    whole_network: VariantFit
    variants: tuple[VariantFit, ...]
    front: tuple[VariantFit, ...]
    largest_by_batch: tuple[VariantFit, ...]
    curve: tuple[VariantFit, ...]
    uncut_layers: tuple[UncutGroup, ...]
