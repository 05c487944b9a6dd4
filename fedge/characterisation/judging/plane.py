"""The time-energy plane: which settings are on its front, which are certainly beaten by another, where the knee is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.pooling import Pooled
from fedge.characterisation.judging.ratios import ratio
from fedge.characterisation.judging.statistics import PointStats
from fedge.pareto import front_mask
from fedge.types import Floats


@dataclass(frozen=True, slots=True)
class Plane:
    """Settings of one board and workload, by time and energy per sample; indices are those of ``settings``."""

    settings: tuple[Pooled, ...]
    """With known energy."""
    front: tuple[int, ...]
    """From the fastest to the cheapest."""
    beaten: tuple[tuple[int, int], ...]
    """(setting, another that certainly takes less time and less energy)."""
    knee: int
    """The setting of the front that lies farthest below the chord between its ends, in normalised logarithms."""


def plane_of(points: Sequence[Pooled]) -> Plane | None:
    """None where fewer than two settings have a known energy."""
    settings = tuple(one for one in points if one.stats.energy_j is not None and one.stats.energy_j.value > 0)
    if len(settings) < 2:
        return None
    times = np.array([one.stats.e2e_s.value / one.stats.samples for one in settings])
    joules = np.array([_joules(one.stats).value for one in settings])
    front = np.flatnonzero(front_mask(times, joules))
    front = front[np.argsort(times[front])]
    x, y = _unit(np.log(times[front])), _unit(np.log(joules[front]))
    knee = int(front[np.argmax(np.round(1.0 - x - y, 12))])  # rounded: the chord's ends must tie
    beaten = tuple((i, j) for i in range(len(settings)) if (j := _beater(settings, front.tolist(), i)) is not None)
    return Plane(settings, tuple(front.tolist()), beaten, knee)


def apart(one: Pooled, other: Pooled) -> bool:
    """Whether their times per sample, or their energies, certainly differ."""
    return any(
        found is not None and (found.low > 1.0 or found.high < 1.0) for found in _compared(one.stats, other.stats)
    )


def _beater(settings: Sequence[Pooled], front: Sequence[int], row: int) -> int | None:
    """Of the front, the first that certainly beats it in both."""
    own = settings[row].stats
    for other in front:
        if all(one is not None and one.high < 1.0 for one in _compared(settings[other].stats, own)):
            return other
    return None


def _compared(stats: PointStats, own: PointStats) -> tuple[Estimate | None, Estimate | None]:
    """Time and energy per sample, by those of ``own``."""
    per = own.samples / stats.samples
    return ratio(stats.e2e_s.times(per), own.e2e_s), ratio(_joules(stats), _joules(own))


def _joules(stats: PointStats) -> Estimate:
    """Per sample."""
    assert stats.energy_j is not None
    return stats.energy_j.times(1.0 / stats.samples)


def _unit(values: Floats) -> Floats:
    """Scaled to 0..1; all 0 where they are equal."""
    span = float(values.max() - values.min())
    scaled: Floats = (values - values.min()) / span if span > 0 else np.zeros_like(values)
    return scaled
