"""Whether repeats of a setting differ by more than their minibatches explain: one look then says less than it seems.

Each repeat has a mean time of an epoch, and a standard error of its minibatches alone. Of n repeats every pair is
compared by a t-test at 99 % over all pairs together (Bonferroni); what amounts to less than ``DRIFT`` does not matter.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from fedge.characterisation.judging.estimate import joined, student
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.judging.steadiness import DRIFT
from fedge.characterisation.point import Point

SURE = 0.99


@dataclass(frozen=True, slots=True)
class Apart:
    """A setting whose repeats are not alike."""

    points: tuple[str, ...]
    """The keys of all its repeats."""
    spread: float
    """(most - least) / least of their epochs' times."""

    @property
    def note(self) -> str:
        """In words."""
        return f"repeats differ by {100 * self.spread:.0f} %, more than their minibatches explain"


def apart(stats: Sequence[PointStats]) -> tuple[Apart, ...]:
    """All settings whose repeats differ by more than chance among their minibatches would have it."""
    groups: dict[Point, list[PointStats]] = defaultdict(list)
    for one in stats:
        groups[replace(one.point, repeat=0)].append(one)
    return tuple(
        Apart(tuple(one.key for one in group), _spread(group))
        for group in groups.values()
        if len(group) > 1 and _differ(group)
    )


def noted(stats: Sequence[PointStats]) -> tuple[PointStats, ...]:
    """The same, with a note at every repeat of such a setting."""
    notes = {key: one.note for one in apart(stats) for key in one.points}
    return tuple(
        replace(one, notes=(*one.notes, notes[one.key])) if notes and one.key in notes else one for one in stats
    )


def _spread(group: Sequence[PointStats]) -> float:
    times = [one.e2e_s.value for one in group]
    return max(times) / min(times) - 1.0 if min(times) > 0 else 0.0


def _differ(group: Sequence[PointStats]) -> bool:
    if _spread(group) <= DRIFT:
        return False
    known = [(one.e2e_s.value, *of) for one in group if (of := _within(one)) is not None]
    pairs = list(combinations(known, 2))
    sure = 1.0 - (1.0 - SURE) / max(len(pairs), 1)
    for (a, se_a, of_a), (b, se_b, of_b) in pairs:
        se, freedom = joined([(se_a, of_a), (se_b, of_b)])
        if abs(a - b) > max(student(math.floor(freedom), sure) * se, DRIFT * min(a, b)):
            return True
    return False


def _within(one: PointStats) -> tuple[float, float] | None:
    """The standard error of an epoch's time by its minibatches, and its degrees of freedom; None where not known."""
    epochs = one.by_epoch.get("e2e_s", ())
    if not epochs or not all(epoch.bounded for epoch in epochs):
        return None
    return joined([(epoch.se / len(epochs), epoch.n - 1) for epoch in epochs])
