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


_Pair = tuple[PooledSetting, PooledSetting]
"""A setting before and after a change of one knob."""


def compute_pooled_effects(points: Sequence[PooledSetting]) -> tuple[KnobEffect, ...]:
    """Compute all effects between settings, by board, workload, kind and knob, in the order of the knob's values."""
    neighbours = _collect_effects(points, ORDERED_KNOBS, pairwise)
    others = _collect_effects(points, UNORDERED_KNOBS, lambda own: combinations(own, 2))
    return _sort_effects([*neighbours, *others])


def compute_effects_from_first(points: Sequence[PooledSetting]) -> tuple[KnobEffect, ...]:
    """Compute the certain effects from an ordered knob's lowest value to later ones, but not to the next."""
    found = _collect_effects(points, ORDERED_KNOBS, lambda own: ((own[0], one) for one in own[2:]))
    return _sort_effects([one for one in found if one.certain])


def _sort_effects(effects: Sequence[KnobEffect]) -> tuple[KnobEffect, ...]:
    return tuple(sorted(effects, key=lambda one: (one.board, one.workload, one.kind)))


def _collect_effects(
    points: Sequence[PooledSetting],
    knobs: Sequence[str],
    pairing: Callable[[Sequence[PooledSetting]], Iterable[_Pair]],
) -> Iterator[KnobEffect]:
    """Yield the effects of knobs; ``pairing`` selects the pairs from settings that differ in a knob alone, in order."""
    for knob in knobs:
        pairs: dict[tuple[object, ...], list[_Pair]] = defaultdict(list)
        for group in _group_along(points, knob):
            for before, after in pairing(group):
                alike = replace(without_knob(before.point, knob), board=kind_of_board(before.point.board))
                pairs[alike, *(_value_sort_key(get_knob_value(one.point, knob)) for one in (before, after))].append(
                    (before, after)
                )
        for own in pairs.values():
            effects = (_make_effect(own, knob, name) for name in COMPARED_QUANTITIES.get(knob, _EPOCH_QUANTITIES))
            yield from filter(None, effects)


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


def _value_sort_key(value: KnobValue | None) -> tuple[str, float, str]:
    return ("", float(value), "") if isinstance(value, int | float) else ("s", 0.0, str(value))


def _group_along(points: Sequence[PooledSetting], knob: str) -> Iterator[list[PooledSetting]]:
    """Yield settings that differ in a knob alone, in the order of its values, the reference value first."""
    groups: dict[SweepPoint, list[PooledSetting]] = defaultdict(list)
    for one in points:
        # Without workers nothing is fetched ahead, so that prefetch has no effect.
        if get_knob_value(one.point, knob) is not None and (knob != "prefetch" or one.point.workers):
            groups[without_knob(one.point, knob)].append(one)
    for group in groups.values():
        values = {id(one): get_knob_value(one.point, knob) for one in group}
        first = REFERENCE_VALUES.get(knob)
        yield sorted(group, key=lambda one: (values[id(one)] != first, _value_sort_key(values[id(one)])))


def _make_effect(group: Sequence[_Pair], knob: str, quantity: str) -> KnobEffect | None:
    """Return the mean effect of the pairs, or None if the quantity was not metered or is zero before."""
    both = [(get_quantity(before.stats, quantity), get_quantity(after.stats, quantity)) for before, after in group]
    known = [(b, a, r) for b, a in both if b is not None and a is not None and (r := estimate_ratio(a, b)) is not None]
    if len(known) < len(group):
        return None
    ratio, (first, after) = geometric_mean([r for _, _, r in known]), group[0]
    before_value, after_value = (sum(one[end].value for one in known) / len(group) for end in (0, 1))
    whole = sum(_reference_total(before.stats, quantity) for before, _ in group) / len(group)
    several = any(before.point.board != first.point.board for before, _ in group)
    settings = [one for pair in group for one in pair]
    return KnobEffect(
        knob=knob,
        before=_or_empty(get_knob_value(first.point, knob)),
        after=_or_empty(get_knob_value(after.point, knob)),
        quantity=quantity,
        before_value=before_value,
        after_value=after_value,
        ratio=ratio,
        share=(after_value - before_value) / whole if whole > 0 else 0.0,
        held=describe_other_knobs(first.point, knob),
        board=kind_of_board(first.point.board) if several else first.point.board,
        workload=first.point.workload,
        kind=first.point.kind,
        certain=(ratio.low > 1.0 or ratio.high < 1.0) and abs(ratio.value - 1.0) >= MIN_CHANGE,
        nothing=ratio.low >= 1.0 - MIN_CHANGE and ratio.high <= 1.0 + MIN_CHANGE,
        points=tuple(key for one in settings for key in one.points),
        label=weakest_label([quantity_label(one.stats, quantity) for one in settings]),
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
