"""The seam between a rig and the kind of machine it stands on: what can be set there, and who meters its power."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from fedge.characterisation.point import Point
from fedge.characterisation.seen import Strip
from fedge.types import PowerMode


@dataclass(frozen=True, slots=True)
class Metered:
    """A stretch of time by the machine's own sensors; None where it has none."""

    energy_j: float | None = None
    gpu_load: float | None = None
    temperature_c: float | None = None
    throttled: bool = False


class Held(Protocol):
    """A machine that is set for a point."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was odd about the setting."""
        ...

    def metered(self, start_s: float, end_s: float) -> Metered:
        """The stretch between two moments of the monotonic clock."""
        ...

    def completed(self, strip: Strip, begun_s: float) -> Strip:
        """A strip with what the machine's own sensors saw; its times count from ``begun_s``."""
        ...


class Ground(Protocol):
    """A kind of machine."""

    @property
    def title(self) -> str:
        """The machine in words."""
        ...

    @property
    def maxn(self) -> PowerMode | None:
        """Its top mode; None where modes cannot be set."""
        ...

    @property
    def meter(self) -> str | None:
        """What its own watts are of; None where it has no sensor of its own."""
        ...

    @property
    def software(self) -> dict[str, str]:
        """What the figures depend on beside Python's packages."""
        ...

    def refuses(self, point: Point) -> str | None:
        """Why the point's mode or clocks cannot be set; None where they can."""
        ...

    def held(self, point: Point) -> AbstractContextManager[Held]:
        """Set the machine for a point, and put back what was found at the end; raises ``BoardError``."""
        ...
