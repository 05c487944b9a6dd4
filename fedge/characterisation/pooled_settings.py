"""Pooling of a setting's repeats: their mean, with an interval that reflects how epochs and repeats differ.

Two epochs, or two repeats, say little about their scatter. The scatter is therefore pooled over all settings of a board
(pooled standard deviation), relative to the epoch for parts of its time and to the mean for everything else. A
setting's variance is the largest of that among epochs, that among repeats, and that of its own minibatches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fedge.characterisation.confidence_interval import (
    Estimate,
    combine_errors,
    make_estimate,
    make_unbounded_estimate,
    widen_by_scatter,
)
from fedge.characterisation.point_measurement import PART_FIELDS
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.sweep_plan import SweepPoint

ESTIMATE_FIELDS = tuple(one.name for one in fields(PointStats) if str(one.type).startswith("Estimate"))


LATER_EPOCH_FIELDS = {"first_e2e_s": "e2e_s", "first_stall_s": "stall_s"}


@dataclass(frozen=True, slots=True)
class PooledSetting:
    """A setting's statistics over its repeats; ``stats.point`` is the first repeat."""

    stats: PointStats
    points: tuple[str, ...]
    """Keys of all repeats."""

    @property
    def point(self) -> SweepPoint:
        """The first repeat."""
        return self.stats.point


def pool_repeats(stats: Sequence[PointStats]) -> tuple[PooledSetting, ...]:
    """Pool the repeats of each setting and board, in the order of the first repeats.

    Args:
        stats: Statistics of points of any boards and workloads.
    """
    groups: dict[SweepPoint, list[PointStats]] = defaultdict(list)
    for one in sorted(stats, key=lambda s: s.point.repeat):
        groups[replace(one.point, repeat=0)].append(one)
    scatters = {
        (board, name): _epoch_and_repeat_scatter(
            [group for point, group in groups.items() if point.board == board], name
        )
        for board in {point.board for point in groups}
        for name in ESTIMATE_FIELDS
    }
    return tuple(
        _pool_setting(group, {name: scatters[point.board, name] for name in ESTIMATE_FIELDS})
        for point, group in groups.items()
    )


def group_by_workload(points: Sequence[PooledSetting]) -> dict[tuple[str, str, str], list[PooledSetting]]:
    """Group settings by board, workload and kind."""
    groups: dict[tuple[str, str, str], list[PooledSetting]] = defaultdict(list)
    for one in points:
        groups[one.point.board, one.point.workload, one.point.kind].append(one)
    return groups


@dataclass(frozen=True, slots=True)
class _Scatter:
    """A relative standard deviation and its degrees of freedom; (0, 0) if unknown."""

    sd: float
    freedom: int


def _epoch_and_repeat_scatter(groups: Sequence[Sequence[PointStats]], name: str) -> tuple[_Scatter, _Scatter]:
    """Return the scatter among epochs and among repeats; first epochs are taken to scatter as later ones."""
    like = LATER_EPOCH_FIELDS.get(name, name)
    epochs = [
        ([e.value for e in _list_epoch_estimates(one, like)], _reference_value([one], like))
        for group in groups
        for one in group
    ]
    repeats = [
        ([f.value for one in group if (f := getattr(one, name)) is not None], _reference_value(group, name))
        for group in groups
    ]
    return _pool_scatter(epochs), _pool_scatter(repeats)


def _pool_scatter(families: Sequence[tuple[Sequence[float], float]]) -> _Scatter:
    squares, freedom = 0.0, 0
    for values, unit in families:
        if len(values) > 1 and unit > 0:
            mean = sum(values) / len(values)
            squares += sum((value - mean) ** 2 for value in values) / unit**2
            freedom += len(values) - 1
    return _Scatter(math.sqrt(squares / freedom), freedom) if freedom else _Scatter(0.0, 0)


def _reference_value(group: Sequence[PointStats], name: str) -> float:
    """Return the value that the scatter is relative to."""
    whole = "first_e2e_s" if name.startswith("first_") else "e2e_s"
    by = whole if name in {*PART_FIELDS, "first_stall_s"} else name
    known = [found.value for one in group if (found := getattr(one, by)) is not None]
    return sum(known) / len(known) if known else 0.0


def _pool_setting(group: Sequence[PointStats], scatters: dict[str, tuple[_Scatter, _Scatter]]) -> PooledSetting:
    first = group[0]
    figures: dict[str, Any] = {name: _pool_field(group, name, *scatters[name]) for name in ESTIMATE_FIELDS}
    return PooledSetting(
        replace(
            first,
            **figures,
            minibatches=sum(one.minibatches for one in group),
            outliers=sum(one.outliers for one in group),
            settled=all(one.settled for one in group),
            throttled=any(one.throttled for one in group),
        ),
        tuple(one.key for one in group),
    )


def _pool_field(group: Sequence[PointStats], name: str, epochs: _Scatter, repeats: _Scatter) -> Estimate | None:
    known = [found for one in group if (found := getattr(one, name)) is not None]
    if not known:
        return None
    mean, unit = sum(one.value for one in known) / len(known), _reference_value(group, name)
    epochs_seen = [found for one in group for found in _list_epoch_estimates(one, name)]
    among = [
        (scatter.sd * unit / math.sqrt(many), float(scatter.freedom))
        for scatter, many in ((epochs, len(epochs_seen)), (repeats, len(known)))
        if scatter.freedom
    ]
    largest = max(among, default=None)
    if not all(one.is_bounded for one in epochs_seen):
        return (
            make_unbounded_estimate(mean) if largest is None else make_estimate(mean, largest[0], int(largest[1]) + 1)
        )
    within = combine_errors([(one.standard_error / len(epochs_seen), one.n - 1) for one in epochs_seen])
    se, freedom = within if largest is None else widen_by_scatter(within, largest)
    return make_estimate(mean, se, int(freedom) + 1)


def _list_epoch_estimates(one: PointStats, name: str) -> tuple[Estimate, ...]:
    """Return the estimates of each epoch; for a figure of the first epoch, that one alone."""
    if name in one.by_epoch:
        return one.by_epoch[name]
    found: Estimate | None = getattr(one, name)
    return () if found is None else (found,)
