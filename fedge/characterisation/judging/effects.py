"""What one knob does: pairs of points that differ in it alone, as ratios with their confidence intervals.

Values of an ordered knob (workers, batch size, prefetch, cores and clocks) are compared with their neighbours, those of
the others with each other. Repeats of a setting are one (``pooling``); of boards of a kind every board is compared with
itself, and their ratios are taken together. A mode's knobs are four: a pair of modes is an effect where they differ in
one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.pooling import Pooled, pooled
from fedge.characterisation.judging.ratios import middle, ratio
from fedge.characterisation.judging.setting import (
    FIRST,
    ORDERED,
    UNORDERED,
    Value,
    held,
    kind_of_board,
    value_of,
    without,
)
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.point import Point
from fedge.types import Label

LEAST_CHANGE = 0.02
"""A smaller change does not matter; chosen by us."""
DERIVED: dict[str, Callable[[PointStats], Estimate | None]] = {
    "step_compute_s": lambda one: one.compute_s.times(1.0 / one.steps),
    "step_stall_s": lambda one: one.stall_s.times(1.0 / one.steps),
    "sample_s": lambda one: one.e2e_s.times(1.0 / one.samples),
    "sample_j": lambda one: one.energy_j.times(1.0 / one.samples) if one.energy_j else None,
}
"""Per minibatch (seconds after the start and with it) and per sample, from the figures of an epoch."""
_EPOCH = ("e2e_s", "stall_s", "compute_s", "overhead_s", "energy_j", "power_w")
QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "batch_size": ("sample_s", "sample_j", "step_compute_s", "step_stall_s", "power_w"),
    "storage": (*_EPOCH, "first_e2e_s", "first_stall_s"),
    "cache": (*_EPOCH, "first_e2e_s", "first_stall_s"),
    "workers": (*_EPOCH, "first_stall_s"),
    "pinned": (*_EPOCH, "copy_s"),
}
"""What is compared; for other knobs ``_EPOCH``."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What turning ``knob`` from ``before`` to ``after`` does to ``quantity``, all else the same."""

    knob: str
    """A field of ``Point``, or one of the mode's: ``cores``, ``cpu_mhz``, ``gpu_mhz``, ``mem_mhz``."""
    before: Value
    after: Value
    quantity: str
    """A figure of ``PointStats``, or one of ``DERIVED``."""
    before_value: float
    after_value: float
    ratio: Estimate
    """After by before, with its 95 % interval."""
    share: float
    """The difference as a part of the whole before: of the epoch's time, energy or power."""
    held: str
    """What else was the same, in words."""
    board: str
    """The board, or its kind where boards of a kind were taken together."""
    workload: str
    kind: str
    """``train`` or ``infer``; of the knob ``kind`` the first one."""
    certain: bool
    """The interval excludes 1 and the change is at least ``LEAST_CHANGE``."""
    nothing: bool
    """The whole interval lies within ``LEAST_CHANGE`` of 1."""
    points: tuple[str, ...]
    """The keys of the points behind it."""
    label: Label

    @property
    def change(self) -> float:
        """Relative: -0.67 is 67 % less."""
        return self.ratio.value - 1.0


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two settings of one board."""

    before: Pooled
    after: Pooled


Pairing = Callable[[Sequence[Pooled], str], Iterable[tuple[Pooled, Pooled]]]
"""Of the settings that differ in a knob alone, in its order: those that are compared."""


def effects_of(stats: Sequence[PointStats]) -> tuple[Effect, ...]:
    """Every effect, by board, workload and knob, in the order of the values."""
    return effects_among(pooled(stats))


def effects_among(points: Sequence[Pooled]) -> tuple[Effect, ...]:
    """The same of settings whose repeats are one already."""
    return _effects(points, (*ORDERED, *UNORDERED), _neighbours)


def effects_from_first(points: Sequence[Pooled]) -> tuple[Effect, ...]:
    """Certain effects of an ordered knob from its least value to every later one but the next (batch 1 to 16)."""
    return tuple(one for one in _effects(points, ORDERED, _from_first) if one.certain)


def _effects(points: Sequence[Pooled], knobs: Sequence[str], pairing: Pairing) -> tuple[Effect, ...]:
    found: list[Effect] = []
    for knob in knobs:
        pairs: dict[tuple[object, ...], list[_Pair]] = defaultdict(list)
        for pair in _pairs(points, knob, pairing):
            before = pair.before.point
            values = value_of(before, knob), value_of(pair.after.point, knob)
            pairs[(_setting(before, knob), *map(_order, values))].append(pair)
        for group in pairs.values():
            point = group[0].before.point
            same = held(point, knob)
            for quantity in QUANTITIES.get(knob, _EPOCH):
                effect = _effect(group, knob, quantity, same)
                if effect is not None:
                    found.append(effect)
    return tuple(sorted(found, key=lambda e: (e.board, e.workload, e.kind)))


def figure(stats: PointStats, quantity: str) -> Estimate | None:
    """One of a point's figures by name; None where it was not metered."""
    if quantity in DERIVED:
        return DERIVED[quantity](stats)
    found: Estimate | None = getattr(stats, quantity)
    return found


def _setting(point: Point, knob: str) -> Point:
    return replace(without(point, knob), board=kind_of_board(point.board))


def _order(value: Value | None) -> tuple[str, float, str]:
    return ("", float(value), "") if isinstance(value, int | float) else ("s", 0.0, str(value))


def _pairs(points: Sequence[Pooled], knob: str, pairing: Pairing) -> Iterator[_Pair]:
    groups: dict[Point, list[Pooled]] = defaultdict(list)
    for one in points:
        # without workers nothing is fetched ahead, whatever the prefetch is set to
        if value_of(one.point, knob) is not None and (knob != "prefetch" or one.point.workers):
            groups[without(one.point, knob)].append(one)
    for group in groups.values():
        own = sorted(
            group, key=lambda one: (value_of(one.point, knob) != FIRST.get(knob), _order(value_of(one.point, knob)))
        )
        yield from (_Pair(*two) for two in pairing(own, knob))


def _neighbours(own: Sequence[Pooled], knob: str) -> Iterable[tuple[Pooled, Pooled]]:
    return pairwise(own) if knob in ORDERED else combinations(own, 2)


def _from_first(own: Sequence[Pooled], knob: str) -> Iterable[tuple[Pooled, Pooled]]:
    return ((own[0], one) for one in own[2:])


def _effect(group: Sequence[_Pair], knob: str, quantity: str, same: str) -> Effect | None:
    """None where the quantity was not metered, or is nothing before."""
    both = [(figure(pair.before.stats, quantity), figure(pair.after.stats, quantity)) for pair in group]
    known = [(b, a, r) for b, a in both if b is not None and a is not None and (r := ratio(a, b)) is not None]
    if len(known) < len(group):
        return None
    found, point = middle([r for _, _, r in known]), group[0].before.point
    before_value = sum(b.value for b, _, _ in known) / len(group)
    after_value = sum(a.value for _, a, _ in known) / len(group)
    whole = sum(_whole(pair.before.stats, quantity) for pair in group) / len(group)
    several = any(pair.before.point.board != point.board for pair in group)
    return Effect(
        knob=knob,
        before=_present(value_of(point, knob)),
        after=_present(value_of(group[0].after.point, knob)),
        quantity=quantity,
        before_value=before_value,
        after_value=after_value,
        ratio=found,
        share=(after_value - before_value) / whole if whole > 0 else 0.0,
        held=same,
        board=kind_of_board(point.board) if several else point.board,
        workload=point.workload,
        kind=point.kind,
        certain=(found.low > 1.0 or found.high < 1.0) and abs(found.value - 1.0) >= LEAST_CHANGE,
        nothing=found.low >= 1.0 - LEAST_CHANGE and found.high <= 1.0 + LEAST_CHANGE,
        points=tuple(key for pair in group for key in (*pair.before.points, *pair.after.points)),
        label=worst([label_of(one.stats, quantity) for pair in group for one in (pair.before, pair.after)]),
    )


def worst(labels: Sequence[Label]) -> Label:
    """Of several the one that claims least."""
    order: tuple[Label, ...] = ("estimated", "calibrated", "measured")
    return min(labels, key=order.index, default="estimated")


def label_of(stats: PointStats, quantity: str) -> Label:
    """Of one of a point's figures."""
    return (stats.power_label or stats.label) if quantity in {"energy_j", "power_w", "sample_j"} else stats.label


def _present(value: Value | None) -> Value:
    return "" if value is None else value


def _whole(stats: PointStats, quantity: str) -> float:
    """What a difference in the quantity is a part of."""
    if quantity in {"energy_j", "power_w", "sample_j", "sample_s"}:
        found = figure(stats, quantity)
        return found.value if found else 0.0
    whole = stats.first_e2e_s if quantity.startswith("first_") else stats.e2e_s
    return whole.value / stats.steps if quantity.startswith("step_") else whole.value
