"""Drives the rigs through a plan: which point next, measured or skipped or failed, with rests between the repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedge.characterisation.point_measurement import MeasurementRig, PointMeasurement, ProgressCallback
from fedge.characterisation.sweep_plan import CharacterisationPlan, SweepPoint
from fedge.characterisation.sweep_store import SweepJournal
from fedge.errors import BoardError


@dataclass(frozen=True, slots=True)
class UnmeasuredPoint:
    """A point without figures, and why."""

    point: SweepPoint
    reason: str
    failed: bool
    """It failed; else the board refused it."""


class SweepRun:
    """One start of a sweep: every point that is left is asked or measured once. The journal has begun already."""

    def __init__(self, plan: CharacterisationPlan, rigs: Mapping[str, MeasurementRig], journal: SweepJournal) -> None:
        self.plan, self._rigs, self.journal = plan, rigs, journal
        self._left = list(journal.past.remaining_points(plan))[::-1]

    @property
    def remaining_count(self) -> int:
        """How many points this start has still to ask or measure."""
        return len(self._left)

    @property
    def remaining_points(self) -> tuple[SweepPoint, ...]:
        """These points, in their order."""
        return tuple(self._left[::-1])

    def next_point(self) -> SweepPoint | None:
        """The point to ask or measure now; None when all are done."""
        return self._left[-1] if self._left else None

    def run_next(self, told: ProgressCallback = lambda _: None) -> PointMeasurement | UnmeasuredPoint:
        """Ask the next point's rig and have it measure, unless it refuses; the journal is written before it returns."""
        point = self._left[-1]
        rig, workload = self._rigs[point.board], self.plan.workloads[point.workload]
        result: PointMeasurement | UnmeasuredPoint
        if (reason := rig.refusal_reason(point, workload)) is not None:
            self.journal.skip(point, reason)
            result = UnmeasuredPoint(point, reason, failed=False)
        else:
            self._idle_before_repeat(point, rig, told)
            result = self._measure(point, rig, told)
        self._left.pop()
        return result

    def _measure(
        self, point: SweepPoint, rig: MeasurementRig, told: ProgressCallback
    ) -> PointMeasurement | UnmeasuredPoint:
        try:
            seen = rig.measure(point, self.plan.workloads[point.workload], self.plan.course, told)
        except BoardError as error:
            self.journal.fail(point, str(error))
            return UnmeasuredPoint(point, str(error), failed=True)
        self.journal.finish(seen)
        return seen

    def _idle_before_repeat(self, point: SweepPoint, rig: MeasurementRig, told: ProgressCallback) -> None:
        seconds = idle_before_repeat_s(point, self.plan, self.journal)
        if seconds > 0:
            told(f"resting {seconds / 60:.1f} min before repeat {point.repeat + 1}")
            rig.idle(seconds)


def idle_before_repeat_s(point: SweepPoint, plan: CharacterisationPlan, journal: SweepJournal) -> float:
    """How long a board rests before its first point of a repeat, so that the last one began ``every_s`` ago.

    What the last repeat took is what its points took; time in which nothing was measured does not count.
    """
    here = [done for done in journal.past.done.values() if done.point.board == point.board]
    last = [done.seconds for done in here if done.point.repeat == point.repeat - 1]
    begun = any(done.point.repeat == point.repeat for done in here)
    return max(0.0, plan.course.every_s - sum(last)) if last and not begun else 0.0
