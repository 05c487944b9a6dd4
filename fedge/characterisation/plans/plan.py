"""A plan: which workloads, storages and boards there are, what is swept, and how long each point is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedge.characterisation.point import Point

Source = Literal["files", "memory"]


@dataclass(frozen=True, slots=True)
class Images:
    """A data set of images: ``files`` are JPEGs in a folder per class, ``memory`` is one array that is read at once."""

    count: int
    """How many make an epoch."""
    width: int
    height: int
    channels: int = 3
    source: Source = "files"
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
class Course:
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
class Plan:
    """A sweep. ``boards`` are ``here`` or the names of emulated boards, ``points`` all that is to be measured."""

    name: str
    boards: tuple[str, ...]
    workloads: Mapping[str, WorkloadPlan]
    storages: Mapping[str, StoragePlan]
    course: Course
    points: tuple[Point, ...]
    """In the order in which they are measured: randomised by the seed within every repeat."""
    seed: int = 0
    base: Mapping[str, Any] = field(default_factory=dict)
    """What every knob is at where a sweep does not turn it."""
    swept: tuple[tuple[str, ...], ...] = ()
    """The knobs that each sweep of the plan turns."""
