"""Drives the rigs through a plan: which point next, measured or skipped or failed, with rests between the repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedge.characterisation.plans.plan import Plan
from fedge.characterisation.point import Point
from fedge.characterisation.rig import Rig, Told
from fedge.characterisation.seen import Seen
from fedge.characterisation.sweep.journal import Journal
from fedge.errors import BoardError


@dataclass(frozen=True, slots=True)
class NotSeen:
    """A point without figures, and why."""

    point: Point
    reason: str
    failed: bool
    """It failed; else the board refused it."""


class Campaign:
    """One start of a sweep: every point that is left is asked or measured once. The journal has begun already."""

    def __init__(self, plan: Plan, rigs: Mapping[str, Rig], journal: Journal) -> None:
        self.plan, self._rigs, self.journal = plan, rigs, journal
        self._left = list(journal.past.left(plan))[::-1]

    @property
    def left(self) -> int:
        """How many points this start has still to ask or measure."""
        return len(self._left)

    @property
    def remaining(self) -> tuple[Point, ...]:
        """These points, in their order."""
        return tuple(self._left[::-1])

    def next(self) -> Point | None:
        """The point to ask or measure now; None when all are done."""
        return self._left[-1] if self._left else None

    def step(self, told: Told = lambda _: None) -> Seen | NotSeen:
        """Ask the next point's rig and have it measure, unless it refuses; the journal is written before it returns."""
        point = self._left[-1]
        rig, workload = self._rigs[point.board], self.plan.workloads[point.workload]
        result: Seen | NotSeen
        if (reason := rig.refuses(point, workload)) is not None:
            self.journal.skip(point, reason)
            result = NotSeen(point, reason, failed=False)
        else:
            self._rest(point, rig, told)
            result = self._measured(point, rig, told)
        self._left.pop()
        return result

    def _measured(self, point: Point, rig: Rig, told: Told) -> Seen | NotSeen:
        try:
            seen = rig.measure(point, self.plan.workloads[point.workload], self.plan.course, told)
        except BoardError as error:
            self.journal.fail(point, str(error))
            return NotSeen(point, str(error), failed=True)
        self.journal.finish(seen)
        return seen

    def _rest(self, point: Point, rig: Rig, told: Told) -> None:
        seconds = rest_s(point, self.plan, self.journal)
        if seconds > 0:
            told(f"resting {seconds / 60:.1f} min before repeat {point.repeat + 1}")
            rig.rest(seconds)


def rest_s(point: Point, plan: Plan, journal: Journal) -> float:
    """How long a board rests before its first point of a repeat, so that the last one began ``every_s`` ago.

    What the last repeat took is what its points took; time in which nothing was measured does not count.
    """
    here = [done for done in journal.past.done.values() if done.point.board == point.board]
    last = [done.seconds for done in here if done.point.repeat == point.repeat - 1]
    begun = any(done.point.repeat == point.repeat for done in here)
    return max(0.0, plan.course.every_s - sum(last)) if last and not begun else 0.0
