"""Seconds and joules that a run takes to a target accuracy: one definition for reports, the arena and benchmarks.

The target is reached at the end of the first round at or above it of which the mean with the next two is so too.
Seconds are those of the fleet's clock. Joules are of the whole fleet, boards at rest and evaluations included.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedge.telemetry.store_records import RoundRow

TARGET_WINDOW = 3
"""Evaluations whose mean must not be below the target, so that one lucky evaluation does not count."""


@dataclass(frozen=True, slots=True)
class Course:
    """A run's accuracy over what it had spent: per evaluated round accuracy, and seconds and joules until its end."""

    accuracy: tuple[float, ...]
    seconds: tuple[float, ...]
    joules: tuple[float, ...]


def build_course(rounds: Sequence[RoundRow]) -> Course:
    """Return the course of a run; it is empty if no model was evaluated."""
    points, joules = list[tuple[float, float, float]](), 0.0
    for row in rounds:
        joules += row.energy_j + (row.resting_energy_j or 0.0) + (row.evaluation_energy_j or 0.0)
        if row.accuracy is not None:
            points.append((row.accuracy, row.end_s, joules))
    return Course(*zip(*points, strict=True)) if points else Course((), (), ())


def find_cost(course: Course, target: float) -> tuple[float, float] | None:
    """Return seconds and joules until the target is reached, or None if it never is."""
    for place, reached in enumerate(_list_reached(course)):
        if reached >= target:
            return course.seconds[place], course.joules[place]
    return None


def find_highest_target(course: Course) -> float | None:
    """Return the highest target that the run reaches, or None if no model was evaluated."""
    return max(_list_reached(course), default=None)


def _list_reached(course: Course) -> Iterator[float]:
    """Yield the highest target that each round reaches; a run shorter than the window is judged by its first round."""
    places = len(course.accuracy) - TARGET_WINDOW + 1
    for place in range(max(min(1, len(course.accuracy)), places)):
        window = course.accuracy[place : place + TARGET_WINDOW]
        yield min(window[0], statistics.mean(window))
