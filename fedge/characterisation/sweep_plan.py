"""Plans of sweeps and their points: one point is one setting of all knobs, measured once; its key names it on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from fedge.types import PowerMode

WorkKind = Literal["train", "infer"]
CacheState = Literal["dropped", "warm"]
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
"""The knobs that a sweep may vary, in display order; board and repeat are not among them."""


DEFAULT_PREFETCH = 2
"""Batches that each loader worker prepares ahead unless a plan says otherwise: PyTorch's own default."""
DEFAULT_STORAGE = "default"
"""Name of the storage in a plan that names none."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One setting. ``board`` is ``here``, or an emulated board's own name such as ``agx-xavier-1``."""

    board: str
    workload: str
    """The name of one of the plan's workloads."""
    mode: PowerMode | None = None
    """None: the machine's present mode, where no mode can be set."""
    kind: WorkKind = "train"
    batch_size: int = 16
    workers: int = 0
    prefetch: int = DEFAULT_PREFETCH
    pinned: bool = False
    storage: str = DEFAULT_STORAGE
    """The name of one of the plan's storages."""
    cache: CacheState = "dropped"
    """``dropped``: emptied before the first epoch only, later epochs find what it left; ``warm``: every file was read
    before."""
    runtime: str = "bare"
    """``bare``, or ``docker:IMAGE``, ``podman:IMAGE``, with ``nvidia+`` in front for NVIDIA's runtime."""
    dvfs: bool = False
    """Whether clocks may follow the load, below those of the mode."""
    repeat: int = 0

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits that identify the point, equal for equal settings in any plan and version."""
        return hashlib.sha256(json.dumps(self.as_data(), sort_keys=True).encode()).hexdigest()[:12]

    def as_data(self) -> dict[str, Any]:
        """Convert to JSON-compatible data; ``mode`` becomes [cores, CPU MHz, GPU MHz, memory MHz] or null."""
        mode = self.mode
        knobs = None if mode is None else [mode.cores, mode.cpu_mhz, mode.gpu_mhz, mode.mem_mhz]
        return asdict(self) | {"mode": knobs}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Create a point from the output of ``as_data``.

        Raises:
            KeyError: A field is missing.
            TypeError: A field has a wrong type.
            ValueError: A field has a wrong value.
        """
        given = {one.name: data[one.name] for one in fields(cls)}
        if given["mode"] is not None:
            cores, cpu_mhz, gpu_mhz, mem_mhz = map(float, given["mode"])
            given["mode"] = PowerMode(int(cores), cpu_mhz, gpu_mhz, mem_mhz)
        return cls(**given)


ImageSource = Literal["files", "memory"]


@dataclass(frozen=True, slots=True)
class Images:
    """A data set of images: ``files`` are JPEGs in a folder per class, ``memory`` is one array that is read at once."""

    count: int
    """Images per epoch."""
    width: int
    height: int
    channels: int = 3
    source: ImageSource = "files"
    kb: float | None = None
    """Mean file size in kB; None: as JPEG yields (measured here; ``JPEG_KB_PER_MPIXEL`` on emulated boards)."""
    folder: str | None = None
    """The user's own image folder; None: images are generated, identical for identical parameters."""

    @property
    def mpixel(self) -> float:
        """Megapixels of a stored image."""
        return self.width * self.height / 1e6


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """A training or inference workload: a network, its input, and the images behind it."""

    name: str
    model: str
    """A torchvision name, one of fedge's own networks, or the user's ``module:function``."""
    input: tuple[int, int, int]
    """Channels, height and width of a sample at the network's input."""
    classes: int
    images: Images
    learning_rate: float = 0.01
    momentum: float = 0.9


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """A place for images: ``path`` is a mounted folder of this machine, ``model`` the name of an emulated storage."""

    name: str
    path: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class MeasurementSchedule:
    """How long and how often each point is measured."""

    epochs: int = 3
    discard: int = 1
    """Number of first epochs that are shown but excluded from the statistics."""
    minibatches: int | None = None
    """Maximum number of minibatches per epoch; None: whole epochs."""
    repeats: int = 1
    every_s: float = 0.0
    """Minimum time from the start of one repeat of the plan to the start of the next, in seconds."""
    sample_hz: float = 5.0
    """Sampling rate of loads, power and temperature."""


@dataclass(frozen=True, slots=True)
class CharacterisationPlan:
    """A sweep. ``boards`` are ``here`` or the names of emulated boards; ``points`` are all points to be measured."""

    name: str
    boards: tuple[str, ...]
    workloads: Mapping[str, WorkloadPlan]
    storages: Mapping[str, StoragePlan]
    course: MeasurementSchedule
    points: tuple[SweepPoint, ...]
    """In measuring order: shuffled by the seed within each repeat."""
    seed: int = 0
    base: Mapping[str, Any] = field(default_factory=dict)
    """The value of each knob where a sweep does not vary it."""
    swept: tuple[tuple[str, ...], ...] = ()
    """The knobs that each sweep of the plan varies."""


def plan_as_data(plan: CharacterisationPlan) -> dict[str, Any]:
    """Convert a plan to JSON-compatible data; equal plans give equal data."""
    return {
        "name": plan.name,
        "seed": plan.seed,
        "boards": list(plan.boards),
        "course": asdict(plan.course),
        "workloads": {name: workload_as_data(workload) for name, workload in plan.workloads.items()},
        "storages": {name: asdict(storage) for name, storage in plan.storages.items()},
        "base": dict(plan.base),
        "swept": [list(knobs) for knobs in plan.swept],
        "points": [point.as_data() for point in plan.points],
    }


def workload_as_data(workload: WorkloadPlan) -> dict[str, Any]:
    """Convert a workload to JSON-compatible data."""
    return asdict(workload) | {"input": list(workload.input)}


def plan_from_data(data: dict[str, Any]) -> CharacterisationPlan:
    """Create a plan from the output of ``plan_as_data``.

    Raises:
        KeyError: A field is missing.
        TypeError: A field has a wrong type.
        ValueError: A field has a wrong value.
    """
    return CharacterisationPlan(
        name=data["name"],
        boards=tuple(data["boards"]),
        workloads={name: _workload_from_data(one) for name, one in data["workloads"].items()},
        storages={name: StoragePlan(**one) for name, one in data["storages"].items()},
        course=MeasurementSchedule(**data["course"]),
        points=tuple(SweepPoint.from_data(one) for one in data["points"]),
        seed=data["seed"],
        base=dict(data["base"]),
        swept=tuple(tuple(knobs) for knobs in data["swept"]),
    )


def _workload_from_data(data: dict[str, Any]) -> WorkloadPlan:
    channels, height, width = data["input"]
    return WorkloadPlan(**{**data, "input": (channels, height, width), "images": Images(**data["images"])})
