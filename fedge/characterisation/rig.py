"""The seam between a sweep and what is characterised: this machine, or an emulated board."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fedge.characterisation.plans.plan import Course, WorkloadPlan
from fedge.characterisation.point import Point
from fedge.characterisation.seen import Seen
from fedge.types import PowerMode

Told = Callable[[str], None]


class Rig(Protocol):
    """What can be characterised. Made for one board of a plan."""

    @property
    def maxn(self) -> PowerMode | None:
        """The top power mode; None where modes cannot be set."""
        ...

    @property
    def software(self) -> dict[str, str]:
        """What the figures depend on, name -> version; a sweep goes on only where it is the same."""
        ...

    def refuses(self, point: Point, workload: WorkloadPlan) -> str | None:
        """Why the point cannot be measured here, in words for the user; None where it can."""
        ...

    def measure(self, point: Point, workload: WorkloadPlan, course: Course, told: Told) -> Seen:
        """Measure it, whatever was measured before; ``told`` hears how far it is.

        Raises ``BoardError`` when it cannot be done after all: the point is then a row with its reason.
        """
        ...

    def rest(self, seconds: float) -> None:
        """Let the board do nothing for so long."""
        ...
