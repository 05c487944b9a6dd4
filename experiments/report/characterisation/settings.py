"""Settings: points that differ in nothing but the repeat are one, with the mean and an interval of all its repeats.

A setting's reference is where its board's knobs are when a sweep does not turn them: where the plan's base has them,
else where most of the board's settings have them, of equals the largest number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.report.characterisation.names import knobs_of
from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.pooling import Pooled, pooled
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.point import Point


@dataclass(frozen=True, slots=True)
class Setting:
    """A point whatever its repeat, its figures over all repeats, and what was found in each of them (at least one)."""

    stats: PointStats
    repeats: tuple[PointStats, ...]
    reference: Mapping[str, Any]
    """Of every knob, by the names of ``knobs_of``."""

    @property
    def point(self) -> Point:
        """The first repeat's."""
        return self.stats.point

    @property
    def key(self) -> str:
        """Of the first repeat."""
        return self.stats.point.key

    @property
    def away(self) -> int:
        """How many knobs are not at the reference."""
        return sum(value != self.reference[name] for name, value in knobs_of(self.point).items())

    def amount(self, field: str) -> Estimate | None:
        """Of ``e2e_s``, ``stall_s``, ...; None where nobody metered it."""
        found: Estimate | None = getattr(self.stats, field)
        return found

    def value(self, field: str) -> float | None:
        """The mean alone."""
        found = self.amount(field)
        return None if found is None else found.value


def settings_of(
    stats: Sequence[PointStats], base: Mapping[str, Any], points: Sequence[Pooled] | None = None
) -> tuple[Setting, ...]:
    """In the order in which they were first seen; ``base`` is the plan's, ``points`` what ``pooled`` makes of them."""
    by_key = {one.key: one for one in stats}
    points = pooled(stats) if points is None else points
    boards: dict[str, list[Point]] = {}
    for one in points:
        boards.setdefault(one.point.board, []).append(one.point)
    references = {board: _reference(own, base) for board, own in boards.items()}
    return tuple(
        Setting(one.stats, tuple(by_key[key] for key in one.points), references[one.point.board]) for one in points
    )


def _reference(points: Sequence[Point], base: Mapping[str, Any]) -> Mapping[str, Any]:
    knobs = [knobs_of(point) for point in points]
    return {name: _usual([one[name] for one in knobs], base.get(name)) for name in knobs[0]}


def _usual(values: Sequence[Any], base: Any) -> Any:
    if base is not None and base in values:
        return base
    counts = Counter(values)
    most = max(counts.values())
    equals = [value for value, count in counts.items() if count == most]
    numbers = [value for value in equals if isinstance(value, int | float)]
    return max(numbers) if len(numbers) == len(equals) else equals[0]
