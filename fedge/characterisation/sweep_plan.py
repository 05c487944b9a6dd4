"""Plans of sweeps and their points: one point is one setting of all knobs, measured once; its key names it on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self

from pydantic import TypeAdapter

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
    """One setting of all knobs on one board.

    Attributes:
        board: ``here``, or an emulated board's own name such as ``agx-xavier-1``.
        workload: The name of one of the plan's workloads.
        mode: The power mode; None for the machine's present one, where no mode can be set.
        kind: Training or inference.
        batch_size: Samples per step.
        workers: Loader processes; without any, the training process loads.
        prefetch: Batches that each worker prepares ahead.
        pinned: Whether batches go to page-locked memory.
        storage: The name of one of the plan's storages.
        cache: ``dropped``: the page cache is emptied before the first epoch only, later epochs find what it left;
            ``warm``: every file was read before.
        runtime: ``bare``, or ``docker:IMAGE``, ``podman:IMAGE``, with ``nvidia+`` in front for NVIDIA's runtime.
        dvfs: Whether clocks may follow the load, below those of the mode.
        repeat: Number of the repeat, from 0.
    """

    board: str
    workload: str
    mode: PowerMode | None = None
    kind: WorkKind = "train"
    batch_size: int = 16
    workers: int = 0
    prefetch: int = DEFAULT_PREFETCH
    pinned: bool = False
    storage: str = DEFAULT_STORAGE
    cache: CacheState = "dropped"
    runtime: str = "bare"
    dvfs: bool = False
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


@dataclass(frozen=True, slots=True)
class Images:
    """A data set of images.

    Attributes:
        count: Images per epoch.
        width: Width of a stored image in pixels.
        height: Height of a stored image in pixels.
        channels: 3 or 1.
        source: ``files`` are JPEGs in a folder per class, ``memory`` is one array that is read at once.
        kb: Mean file size in kB; None: as JPEG yields (measured here; ``JPEG_KB_PER_MPIXEL`` on emulated boards).
        folder: The user's own image folder; None: images are generated, identical for identical parameters.
    """

    count: int
    width: int
    height: int
    channels: int = 3
    source: Literal["files", "memory"] = "files"
    kb: float | None = None
    folder: str | None = None

    @property
    def mpixel(self) -> float:
        """Megapixels of a stored image."""
        return self.width * self.height / 1e6


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """A training or inference workload: a network, its input, and the images behind it.

    Attributes:
        name: Name of the workload.
        model: A torchvision name, one of fedge's own networks, or the user's ``module:function``.
        input: Channels, height and width of a sample at the network's input.
        classes: Number of classes.
        images: The data set.
        learning_rate: Learning rate of SGD.
        momentum: Momentum of SGD.
    """

    name: str
    model: str
    input: tuple[int, int, int]
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
    """How long and how often each point is measured.

    Attributes:
        epochs: Epochs per point.
        discard: Number of first epochs that are shown but excluded from the statistics.
        minibatches: Maximum number of minibatches per epoch; None: whole epochs.
        repeats: Number of repeats of all points.
        every_s: Minimum time from the start of one repeat of the plan to the start of the next, in seconds.
        sample_hz: Sampling rate of loads, power and temperature.
    """

    epochs: int = 3
    discard: int = 1
    minibatches: int | None = None
    repeats: int = 1
    every_s: float = 0.0
    sample_hz: float = 5.0


@dataclass(frozen=True, slots=True)
class CharacterisationPlan:
    """A sweep.

    Attributes:
        name: Name of the sweep.
        boards: ``here`` or the names of emulated boards.
        workloads: The workloads by name.
        storages: The storages by name.
        course: Duration of a point.
        points: All points in measuring order: shuffled by the seed within each repeat.
        seed: Seed of the order, and of emulated noise.
        base: The value of each knob where a sweep does not vary it.
        swept: The knobs that each sweep of the plan varies.
    """

    name: str
    boards: tuple[str, ...]
    workloads: Mapping[str, WorkloadPlan]
    storages: Mapping[str, StoragePlan]
    course: MeasurementSchedule
    points: tuple[SweepPoint, ...]
    seed: int = 0
    base: Mapping[str, Any] = field(default_factory=dict)
    swept: tuple[tuple[str, ...], ...] = ()


def plan_as_data(plan: CharacterisationPlan) -> dict[str, Any]:
    """Convert a plan to JSON-compatible data; equal plans give equal data."""
    data = asdict(replace(plan, points=())) | {"points": [point.as_data() for point in plan.points]}
    plain: dict[str, Any] = json.loads(json.dumps(data))
    return plain


def plan_from_data(data: dict[str, Any]) -> CharacterisationPlan:
    """Create a plan from the output of ``plan_as_data``.

    Raises:
        KeyError: A field of a point is missing.
        TypeError: A field of a point has a wrong type.
        ValueError: Another field is missing or wrong.
    """
    points = tuple(SweepPoint.from_data(one) for one in data["points"])
    return replace(TypeAdapter(CharacterisationPlan).validate_python(data | {"points": ()}), points=points)
