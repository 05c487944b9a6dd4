"""The loop of a sweep: measure, skip or record as failed each remaining point, with pauses between the repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedge.characterisation.point_measurement import MeasurementRig, PointMeasurement, ProgressCallback
from fedge.characterisation.sweep_plan import CharacterisationPlan, SweepPoint
from fedge.characterisation.sweep_store import SweepJournal
from fedge.errors import BoardError


@dataclass(frozen=True, slots=True)
class UnmeasuredPoint:
    """A point without a measurement, and the reason."""

    point: SweepPoint
    reason: str
    failed: bool
    """True: the measurement failed; False: the board cannot measure the point."""


class SweepRun:
    """One start of a sweep: every remaining point is tried once. The journal must have begun already."""

    def __init__(self, plan: CharacterisationPlan, rigs: Mapping[str, MeasurementRig], journal: SweepJournal) -> None:
        self.plan, self._rigs, self.journal = plan, rigs, journal
        self._left = list(journal.past.remaining_points(plan))[::-1]

    @property
    def remaining_count(self) -> int:
        """Number of points still to be tried in this start."""
        return len(self._left)

    @property
    def remaining_points(self) -> tuple[SweepPoint, ...]:
        """The points still to be tried, in order."""
        return tuple(self._left[::-1])

    def next_point(self) -> SweepPoint | None:
        """Return the next point, or None when all are done."""
        return self._left[-1] if self._left else None

    def run_next(self, told: ProgressCallback = lambda _: None) -> PointMeasurement | UnmeasuredPoint:
        """Measure the next point, unless its rig refuses it, and write the journal.

        Args:
            told: Called with progress messages.

        Returns:
            The measurement, or the reason why there is none.
        """
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
    """Return how long a board idles before its first point of a repeat, in seconds.

    The pause makes up the rest of ``every_s`` since the previous repeat began. A repeat's duration is the sum of its
    points' durations; time without measurements does not count.
    """
    here = [done for done in journal.past.done.values() if done.point.board == point.board]
    last = [done.seconds for done in here if done.point.repeat == point.repeat - 1]
    begun = any(done.point.repeat == point.repeat for done in here)
    return max(0.0, plan.course.every_s - sum(last)) if last and not begun else 0.0
