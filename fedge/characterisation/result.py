"""What a sweep's folder holds: its plan, what was seen of every point, what was skipped or failed, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedge.characterisation.plans.plan import Plan
from fedge.characterisation.point import Point
from fedge.characterisation.seen import Epoch, Minibatches, Seen, Strip
from fedge.types import Label


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """How to get at a point's arrays: they are read from the disk when they are asked for, or at hand already."""

    minibatches: Callable[[], Minibatches]
    strip: Callable[[], Strip]


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A finished point; the fields are those of ``Seen``, but its arrays are methods."""

    point: Point
    epochs: tuple[Epoch, ...]
    label: Label
    power_label: Label | None
    source: str
    seconds: float
    notes: tuple[str, ...]
    parameters: Mapping[str, float]
    arrays: Arrays = field(repr=False)

    def minibatches(self) -> Minibatches:
        """Every minibatch, read now; raises ``BadInput`` when its file is gone or damaged."""
        return self.arrays.minibatches()

    def strip(self) -> Strip:
        """Loads, watts and temperature over time, read now; raises ``BadInput`` when the file is gone or damaged."""
        return self.arrays.strip()


@dataclass(frozen=True, slots=True)
class Result:
    """A sweep, finished or not; points in the order of the plan."""

    plan: Plan
    folder: Path
    points: tuple[Finished, ...]
    skipped: tuple[tuple[Point, str], ...]
    """What could not be measured on that board, and why."""
    failed: tuple[tuple[Point, str], ...]


def finished_of(seen: Seen) -> Finished:
    """What was just seen, its arrays at hand."""
    return Finished(
        point=seen.point,
        epochs=seen.epochs,
        label=seen.label,
        power_label=seen.power_label,
        source=seen.source,
        seconds=seen.seconds,
        notes=seen.notes,
        parameters=dict(seen.parameters),
        arrays=Arrays(lambda: seen.minibatches, lambda: seen.strip),
    )


def read_result(folder: Path) -> Result:
    """What lies in ``folder``; raises ``BadInput`` where no sweep was written or its journal is damaged."""
    from fedge.characterisation.sweep.journal import read_folder

    return read_folder(folder)
