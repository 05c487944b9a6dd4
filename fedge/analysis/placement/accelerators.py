"""A board's accelerators as they matter to inference, instances of a network on them, and a placement of instances."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fedge.types import Label, LabelledValue

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class PrecisionSpeed:
    """What an accelerator reaches in one precision."""

    precision: str
    flop_per_s: float
    """FLOP per second that are reached while nothing else holds it up; peaks are above it."""
    bytes_scale: float
    """Bytes moved per byte counted at four bytes per element."""
    launch_s: float
    """Seconds per operator during which the accelerator is held without computing."""
    batch_s: float = 0.0
    """The same per batch."""
    offered: bool = True
    """Whether a planner may choose it: not before something is known of it."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A place where an instance can run. Accelerators of one ``engine`` share it, as two kinds of cores of a GPU do."""

    name: str
    engine: str
    speeds: tuple[PrecisionSpeed, ...]
    bandwidth_share: float = 1.0
    """The share of the board's usable memory bandwidth that it can draw."""
    spill_batch: float = NEVER
    """The batch size at which its caches no longer help and activations are moved twice."""
    hindrance: float = 1.0
    """How much an instance that holds the engine holds up another one: 1, but less on a processor of several cores."""
    full_w: float = 0.0
    """Watts above idle while it works: computes, or moves bytes."""
    waiting_w: float = 0.0
    """Watts above idle while it is held without working."""
    supported: frozenset[str] | None = None
    """Kinds of operators that it runs; the others fall back to the GPU. None: all."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """What a planner may choose from."""
        return tuple(speed.precision for speed in self.speeds if speed.offered)

    def speed(self, precision: str) -> PrecisionSpeed:
        """Its speed in a precision; raises ``KeyError``."""
        for speed in self.speeds:
            if speed.precision == precision:
                return speed
        raise KeyError(precision)


@dataclass(frozen=True, slots=True)
class GpuFallback:
    """Where operators run that an accelerator does not support: seconds per switch there or back, watts meanwhile."""

    engine: str
    speed: PrecisionSpeed
    switch_s: float
    full_w: float


@dataclass(frozen=True, slots=True)
class PlacementBoard:
    """Accelerators that share a memory. ``bandwidth`` is what of it can be used, bytes per second."""

    name: str
    accelerators: tuple[Accelerator, ...]
    bandwidth: float
    corner: float
    """How sharply time turns from computing to moving bytes: (compute^n + memory^n)^(1/n)."""
    overlap: float
    """How much two kinds of cores of one engine hold each other up: 0 not at all, 1 as if they were one."""
    idle_w: float
    memory_j: float
    """Joules per byte moved."""
    fallback: GpuFallback | None = None
    label: Label = "estimated"
    source: str = ""
    figures: tuple[tuple[str, LabelledValue], ...] = field(default=())
    """Where every number comes from."""

    @property
    def accelerator_names(self) -> tuple[str, ...]:
        return tuple(accelerator.name for accelerator in self.accelerators)

    def accelerator(self, name: str) -> Accelerator:
        """By its name; raises ``KeyError``."""
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
        """The accelerators in use, as the paper's figure names its lines."""
        return " + ".join(dict.fromkeys(instance.accelerator for instance in self.instances))
