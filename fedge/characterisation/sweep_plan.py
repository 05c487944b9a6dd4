"""A point of a sweep: one setting of everything that can be set, measured once; its key names it on the disk."""

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
"""What a sweep may turn, in the order in which it is shown; the board and the repeat are beside them."""


DEFAULT_PREFETCH = 2
"""Batches that a loader worker makes ahead, unless a plan says otherwise: PyTorch's own."""
DEFAULT_STORAGE = "default"
"""What the storage is called of a plan that names none."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One setting. ``board`` is ``here``, or an emulated board's own name such as ``agx-xavier-1``."""

    board: str
    workload: str
    """The name of one of the plan's workloads."""
    mode: PowerMode | None = None
    """None: whatever mode the machine is in, where none can be set."""
    kind: WorkKind = "train"
    batch_size: int = 16
    workers: int = 0
    prefetch: int = DEFAULT_PREFETCH
    pinned: bool = False
    storage: str = DEFAULT_STORAGE
    """The name of one of the plan's storages."""
    cache: CacheState = "dropped"
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


ImageSource = Literal["files", "memory"]


@dataclass(frozen=True, slots=True)
class Images:
    """A data set of images: ``files`` are JPEGs in a folder per class, ``memory`` is one array that is read at once."""

    count: int
    """How many make an epoch."""
    width: int
    height: int
    channels: int = 3
    source: ImageSource = "files"
    kb: float | None = None
    """A file's mean size; None: what JPEG makes of it (here measured; emulated boards: ``JPEG_KB_PER_MPIXEL``)."""
    folder: str | None = None
    """The user's own image folder; None: images are made on the spot, the same ones for the same numbers."""

    @property
    def mpixel(self) -> float:
        """A stored image's megapixels."""
        return self.width * self.height / 1e6


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """What is trained or inferred: a network, what it is fed, and the images that this is made of."""

    name: str
    model: str
    """A torchvision name, one of fedge's own networks, or the user's ``module:function``."""
    input: tuple[int, int, int]
    """Channels, height, width of a sample as the network sees it."""
    classes: int
    images: Images
    learning_rate: float = 0.01
    momentum: float = 0.9


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """A place where images lie. ``path`` is a mounted folder of this machine, ``model`` an emulated storage's name."""

    name: str
    path: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class MeasurementSchedule:
    """How long a point is looked at."""

    epochs: int = 3
    discard: int = 1
    """So many first epochs are shown, but left out of the statistics."""
    minibatches: int | None = None
    """An epoch is cut after so many; None: it is whole."""
    repeats: int = 1
    every_s: float = 0.0
    """From the start of one repeat of the plan to the start of the next, at least."""
    sample_hz: float = 5.0
    """How often loads, watts and temperature are looked at."""


@dataclass(frozen=True, slots=True)
class CharacterisationPlan:
    """A sweep. ``boards`` are ``here`` or the names of emulated boards, ``points`` all that is to be measured."""

    name: str
    boards: tuple[str, ...]
    workloads: Mapping[str, WorkloadPlan]
    storages: Mapping[str, StoragePlan]
    course: MeasurementSchedule
    points: tuple[SweepPoint, ...]
    """In the order in which they are measured: randomised by the seed within every repeat."""
    seed: int = 0
    base: Mapping[str, Any] = field(default_factory=dict)
    """What every knob is at where a sweep does not turn it."""
    swept: tuple[tuple[str, ...], ...] = ()
    """The knobs that each sweep of the plan turns."""


def plan_as_data(plan: CharacterisationPlan) -> dict[str, Any]:
    """JSON-able; equal plans give equal data."""
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
    """JSON-able."""
    return asdict(workload) | {"input": list(workload.input)}


def plan_from_data(data: dict[str, Any]) -> CharacterisationPlan:
    """The inverse of ``plan_as_data``; raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
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
