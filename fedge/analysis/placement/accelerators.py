"""A board's accelerators for inference, instances of a network on them, and placements of instances."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fedge.types import Label, LabelledValue

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class PrecisionSpeed:
    """The speed of an accelerator in one precision."""

    precision: str
    flop_per_s: float
    """Attained FLOP per second without other limits; below the peak."""
    bytes_scale: float
    """Bytes moved per byte counted at four bytes per element."""
    launch_s: float
    """Seconds per operator during which the accelerator is occupied without computing."""
    batch_s: float = 0.0
    """The same per batch."""
    offered: bool = True
    """Whether a planner may choose it; not before it has a measured or known speed."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Hardware on which an instance can run. Accelerators of one ``engine`` share it, as two kinds of GPU cores do."""

    name: str
    engine: str
    speeds: tuple[PrecisionSpeed, ...]
    bandwidth_share: float = 1.0
    """Share of the board's usable memory bandwidth that it can draw."""
    spill_batch: float = NEVER
    """Batch size at which its caches no longer help and activations are moved twice."""
    hindrance: float = 1.0
    """How much an instance that occupies the engine delays another: 1, but less on a processor with several cores."""
    full_w: float = 0.0
    """Watts above idle while it computes or moves bytes."""
    waiting_w: float = 0.0
    """Watts above idle while it is occupied without working."""
    supported: frozenset[str] | None = None
    """Kinds of operators that it runs; the others fall back to the GPU. None: all."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that a planner may choose."""
        return tuple(speed.precision for speed in self.speeds if speed.offered)

    def speed(self, precision: str) -> PrecisionSpeed:
        """Return its speed in a precision.

        Raises:
            KeyError: If it does not have the precision.
        """
        for speed in self.speeds:
            if speed.precision == precision:
                return speed
        raise KeyError(precision)


@dataclass(frozen=True, slots=True)
class GpuFallback:
    """The engine for operators that an accelerator does not support, with seconds per switch and watts meanwhile."""

    engine: str
    speed: PrecisionSpeed
    switch_s: float
    full_w: float


@dataclass(frozen=True, slots=True)
class PlacementBoard:
    """Accelerators that share a memory; ``bandwidth`` is the usable one in bytes per second."""

    name: str
    accelerators: tuple[Accelerator, ...]
    bandwidth: float
    corner: float
    """How sharply time turns from computing to moving bytes: (compute^n + memory^n)^(1/n)."""
    overlap: float
    """How much two kinds of cores of one engine delay each other: 0 not at all, 1 as if they were one."""
    idle_w: float
    memory_j: float
    """Joules per byte moved."""
    fallback: GpuFallback | None = None
    label: Label = "estimated"
    source: str = ""
    figures: tuple[tuple[str, LabelledValue], ...] = field(default=())
    """Every number with its source."""

    @property
    def accelerator_names(self) -> tuple[str, ...]:
        return tuple(accelerator.name for accelerator in self.accelerators)

    def accelerator(self, name: str) -> Accelerator:
        """Return the accelerator of this name.

        Raises:
            KeyError: If there is none.
        """
        for accelerator in self.accelerators:
            if accelerator.name == name:
                return accelerator
        raise KeyError(name)


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """A copy of the network that runs one batch after the other on an accelerator."""

    accelerator: str
    batch_size: int
    precision: str

    def __str__(self) -> str:
        return f"{self.accelerator} (batch {self.batch_size}, {self.precision})"


@dataclass(frozen=True, slots=True)
class Placement:
    """Instances that run at the same time."""

    instances: tuple[Instance, ...]

    def __str__(self) -> str:
        counts = Counter(self.instances)
        return " + ".join(f"{n} x {one}" if n > 1 else str(one) for one, n in counts.items()) or "nothing"

    @property
    def combination(self) -> str:
        """The accelerators in use, as the paper's figure labels its lines."""
        return " + ".join(dict.fromkeys(instance.accelerator for instance in self.instances))
