"""How long points take: minibatches of an epoch, the rest of a sweep, an emulated point by some of its minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedge.characterisation.plans.plan import Course, WorkloadPlan
from fedge.characterisation.point import Point
from fedge.characterisation.rig import Rig
from fedge.errors import BoardError

SOME = 50
"""So many minibatches of an emulated point are looked at; chosen by us."""


def steps_of(images: int, batch_size: int, course: Course) -> int:
    """Minibatches of an epoch: whole ones alone, as many as the plan's course has at most."""
    whole = images // batch_size
    return whole if course.minibatches is None else min(whole, course.minibatches)


def left_s(done_s: Sequence[float], left: Sequence[Point], course: Course) -> float:
    """Seconds that the points ``left`` will take, at the mean of those done, with the rests before further repeats."""
    mean_s = sum(done_s) / len(done_s)
    repeats = len({point.repeat for point in left})
    within_s = len(left) * mean_s
    return max(within_s, (repeats - 1) * course.every_s + within_s / max(repeats, 1))


def roughly_s(rig: Rig, point: Point, workload: WorkloadPlan, course: Course) -> float | None:
    """About how many seconds of the board's own time a point takes; None where nobody can say."""
    steps = steps_of(workload.images.count, point.batch_size, course)
    some = min(SOME, steps)
    try:
        seen = rig.measure(point, workload, replace(course, epochs=1, discard=0, minibatches=some), lambda _: None)
    except BoardError:
        return None
    return course.epochs * seen.epochs[0].e2e_s * steps / some
