"""Effects of single knobs: ratios of points that differ in one knob alone, with confidence intervals.

Values of an ordered knob (workers, batch size, prefetch, cores and clocks) are compared with their neighbours, those of
other knobs with each other. Repeats of a setting are pooled first (``pooled_settings``). Each board is compared with
itself, and the ratios of boards of a kind are averaged. A power mode counts as four knobs: a pair of modes is an effect
if they differ in one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from fedge.characterisation.confidence_interval import Estimate, estimate_ratio, geometric_mean
from fedge.characterisation.point_knobs import (
    ORDERED_KNOBS,
    REFERENCE_VALUES,
    UNORDERED_KNOBS,
    KnobValue,
    describe_other_knobs,
    get_knob_value,
    kind_of_board,
    without_knob,
)
from fedge.characterisation.point_statistics import PointStats, PooledSetting
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.types import Label, weakest_label

MIN_CHANGE = 0.02
"""Relative change below which an effect is ignored; a default, about the difference between two runs of one point."""
DERIVED_QUANTITIES: dict[str, Callable[[PointStats], Estimate | None]] = {
    "step_compute_s": lambda one: one.compute_s.scale(1.0 / one.steps),
    "step_stall_s": lambda one: one.stall_s.scale(1.0 / one.steps),
    "sample_s": lambda one: one.e2e_s.scale(1.0 / one.samples),
    "sample_j": lambda one: one.energy_j.scale(1.0 / one.samples) if one.energy_j else None,
}
"""Quantities per minibatch and per sample, computed from those of an epoch."""
TOTAL_QUANTITIES = ("e2e_s", "sample_s", "energy_j", "sample_j")
"""If none of these changes, a knob has no effect."""
_EPOCH_QUANTITIES = ("e2e_s", "stall_s", "compute_s", "overhead_s", "energy_j", "power_w")
COMPARED_QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "batch_size": ("sample_s", "sample_j", "step_compute_s", "step_stall_s", "power_w"),
    "storage": (*_EPOCH_QUANTITIES, "first_e2e_s", "first_stall_s"),
    "cache": (*_EPOCH_QUANTITIES, "first_e2e_s", "first_stall_s"),
    "workers": (*_EPOCH_QUANTITIES, "first_stall_s"),
    "pinned": (*_EPOCH_QUANTITIES, "copy_s"),
}
"""Compared quantities by knob; ``_EPOCH_QUANTITIES`` for other knobs."""


@dataclass(frozen=True, slots=True)
class KnobEffect:
    """The effect on ``quantity`` of changing ``knob`` from ``before`` to ``after``, with everything else equal."""

    knob: str
    """A field of ``SweepPoint``, or a knob of the mode: ``cores``, ``cpu_mhz``, ``gpu_mhz``, ``mem_mhz``."""
    before: KnobValue
    after: KnobValue
    quantity: str
    """A field of ``PointStats``, or one of ``DERIVED_QUANTITIES``."""
    before_value: float
    after_value: float
    ratio: Estimate
    """After divided by before, with its 95 % interval."""
    share: float
    """The difference relative to the whole before: to the epoch's time, energy or power."""
    held: str
    """Description of the other knobs."""
    board: str
    """The board, or its kind if several boards were averaged."""
    workload: str
    kind: str
    """``train`` or ``infer``; for the knob ``kind``, the first of the two."""
    certain: bool
    """Whether the interval excludes 1 and the change is at least ``MIN_CHANGE``."""
    nothing: bool
    """Whether the whole interval lies within ``MIN_CHANGE`` of 1."""
    points: tuple[str, ...]
    """Keys of the points behind it."""
    label: Label

    @property
    def relative_change(self) -> float:
        """The relative change: -0.67 is 67 % less."""
        return self.ratio.value - 1.0


@dataclass(frozen=True, slots=True)
class _Pair:
    before: PooledSetting
    after: PooledSetting


Pairing = Callable[[Sequence[PooledSetting], str], Iterable[tuple[PooledSetting, PooledSetting]]]
"""Selects the pairs to compare from settings that differ in a knob alone, in its order."""


def compute_pooled_effects(points: Sequence[PooledSetting]) -> tuple[KnobEffect, ...]:
    """Compute all effects between settings, by board, workload, kind and knob, in the order of the knob's values."""
    return _collect_effects(points, (*ORDERED_KNOBS, *UNORDERED_KNOBS), _pair_neighbours)


def compute_effects_from_first(points: Sequence[PooledSetting]) -> tuple[KnobEffect, ...]:
    """Compute the certain effects from an ordered knob's lowest value to later ones, but not to the next."""
    return tuple(one for one in _collect_effects(points, ORDERED_KNOBS, _pair_with_first) if one.certain)


def _collect_effects(points: Sequence[PooledSetting], knobs: Sequence[str], pairing: Pairing) -> tuple[KnobEffect, ...]:
    found: list[KnobEffect] = []
    for knob in knobs:
        pairs: dict[tuple[object, ...], list[_Pair]] = defaultdict(list)
        for pair in _make_pairs(points, knob, pairing):
            before = pair.before.point
            values = get_knob_value(before, knob), get_knob_value(pair.after.point, knob)
            pairs[(_effect_group_key(before, knob), *map(_value_sort_key, values))].append(pair)
        for group in pairs.values():
            point = group[0].before.point
            same = describe_other_knobs(point, knob)
            for quantity in COMPARED_QUANTITIES.get(knob, _EPOCH_QUANTITIES):
                effect = _make_effect(group, knob, quantity, same)
                if effect is not None:
                    found.append(effect)
    return tuple(sorted(found, key=lambda e: (e.board, e.workload, e.kind)))


def get_quantity(stats: PointStats, quantity: str) -> Estimate | None:
    """Return a quantity by name, or None if it was not metered.

    Args:
        stats: The point.
        quantity: A field of ``PointStats``, or one of ``DERIVED_QUANTITIES``.
    """
    if quantity in DERIVED_QUANTITIES:
        return DERIVED_QUANTITIES[quantity](stats)
    found: Estimate | None = getattr(stats, quantity)
    return found


def _effect_group_key(point: SweepPoint, knob: str) -> SweepPoint:
    return replace(without_knob(point, knob), board=kind_of_board(point.board))


def _value_sort_key(value: KnobValue | None) -> tuple[str, float, str]:
    return ("", float(value), "") if isinstance(value, int | float) else ("s", 0.0, str(value))


def _make_pairs(points: Sequence[PooledSetting], knob: str, pairing: Pairing) -> Iterator[_Pair]:
    groups: dict[SweepPoint, list[PooledSetting]] = defaultdict(list)
    for one in points:
        # Without workers nothing is fetched ahead, so that prefetch has no effect.
        if get_knob_value(one.point, knob) is not None and (knob != "prefetch" or one.point.workers):
            groups[without_knob(one.point, knob)].append(one)
    for group in groups.values():
        own = sorted(
            group,
            key=lambda one: (
                get_knob_value(one.point, knob) != REFERENCE_VALUES.get(knob),
                _value_sort_key(get_knob_value(one.point, knob)),
            ),
        )
        yield from (_Pair(*two) for two in pairing(own, knob))


def _pair_neighbours(own: Sequence[PooledSetting], knob: str) -> Iterable[tuple[PooledSetting, PooledSetting]]:
    return pairwise(own) if knob in ORDERED_KNOBS else combinations(own, 2)


def _pair_with_first(own: Sequence[PooledSetting], knob: str) -> Iterable[tuple[PooledSetting, PooledSetting]]:
    return ((own[0], one) for one in own[2:])


def _make_effect(group: Sequence[_Pair], knob: str, quantity: str, same: str) -> KnobEffect | None:
    """Return the mean effect of the pairs, or None if the quantity was not metered or is zero before."""
    both = [(get_quantity(pair.before.stats, quantity), get_quantity(pair.after.stats, quantity)) for pair in group]
    known = [(b, a, r) for b, a in both if b is not None and a is not None and (r := estimate_ratio(a, b)) is not None]
    if len(known) < len(group):
        return None
    found, point = geometric_mean([r for _, _, r in known]), group[0].before.point
    before_value = sum(b.value for b, _, _ in known) / len(group)
    after_value = sum(a.value for _, a, _ in known) / len(group)
    whole = sum(_reference_total(pair.before.stats, quantity) for pair in group) / len(group)
    several = any(pair.before.point.board != point.board for pair in group)
    return KnobEffect(
        knob=knob,
        before=_or_empty(get_knob_value(point, knob)),
        after=_or_empty(get_knob_value(group[0].after.point, knob)),
        quantity=quantity,
        before_value=before_value,
        after_value=after_value,
        ratio=found,
        share=(after_value - before_value) / whole if whole > 0 else 0.0,
        held=same,
        board=kind_of_board(point.board) if several else point.board,
        workload=point.workload,
        kind=point.kind,
        certain=(found.low > 1.0 or found.high < 1.0) and abs(found.value - 1.0) >= MIN_CHANGE,
        nothing=found.low >= 1.0 - MIN_CHANGE and found.high <= 1.0 + MIN_CHANGE,
        points=tuple(key for pair in group for key in (*pair.before.points, *pair.after.points)),
        label=weakest_label(
            [quantity_label(one.stats, quantity) for pair in group for one in (pair.before, pair.after)]
        ),
    )


def quantity_label(stats: PointStats, quantity: str) -> Label:
    """Return the label of one quantity: that of the power for energy and power, else that of the time."""
    return (stats.power_label or stats.label) if quantity in {"energy_j", "power_w", "sample_j"} else stats.label


def _or_empty(value: KnobValue | None) -> KnobValue:
    return "" if value is None else value


def _reference_total(stats: PointStats, quantity: str) -> float:
    """Return the total that a difference in the quantity is related to."""
    if quantity in {"energy_j", "power_w", "sample_j", "sample_s"}:
        found = get_quantity(stats, quantity)
        return found.value if found else 0.0
    whole = stats.first_e2e_s if quantity.startswith("first_") else stats.e2e_s
    return whole.value / stats.steps if quantity.startswith("step_") else whole.value
