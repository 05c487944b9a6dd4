"""Effects of single knobs, as ratios of points that differ in one knob alone, and the findings about them.

Values of an ordered knob (workers, batch size, prefetch, cores and clocks) are compared with their neighbours, those of
other knobs with each other. Repeats of a setting are pooled first (``pool_repeats``). Each board is compared with
itself, and the ratios of boards of a kind are averaged. A power mode counts as four knobs: a pair of modes is an effect
if they differ in one of them.

For every board, workload and kind, a knob's effects are grouped by the values of the other knobs. The finding states
one group (that with the most values, then with the largest change), its evidence the others. Workers are stated step by
step; of other ordered knobs the first value is compared with the last, and a minimum of energy between them is stated.
Only certain effects (``KnobEffect.certain``) are stated, and "no effect" only if the interval supports it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from fedge.characterisation.findings import (
    QUANTITY_NAMES,
    TOTAL_QUANTITIES,
    FindingFigure,
    FindingStatement,
    SweepFinding,
    describe_step,
    format_interval,
    format_quantity,
    write_change,
)
from fedge.characterisation.point_statistics import PointStats, PooledSetting
from fedge.characterisation.sweep_plan import (
    CLOCK_FORMATS,
    MODE_KNOBS,
    ORDERED_KNOBS,
    REFERENCE_VALUES,
    UNORDERED_KNOBS,
    KnobValue,
    describe_other_knobs,
    get_knob_value,
    kind_of_board,
    without_knob,
)
from fedge.confidence_interval import Estimate, estimate_ratio, geometric_mean
from fedge.groups import group_by
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
    """Return a field of ``PointStats`` or one of ``DERIVED_QUANTITIES``, or None if it was not metered."""
    if quantity in DERIVED_QUANTITIES:
        return DERIVED_QUANTITIES[quantity](stats)
    found: Estimate | None = getattr(stats, quantity)
    return found


def _value_sort_key(value: KnobValue | None) -> tuple[str, float, str]:
    return ("", float(value), "") if isinstance(value, int | float) else ("s", 0.0, str(value))


def _group_along(points: Sequence[PooledSetting], knob: str) -> Iterator[list[PooledSetting]]:
    """Yield settings that differ in a knob alone, in the order of its values, the reference value first."""
    # Without workers nothing is fetched ahead, so that prefetch has no effect.
    points = [one for one in points if knob != "prefetch" or one.point.workers]
    known = (one for one in points if get_knob_value(one.point, knob) is not None)
    for group in group_by(known, lambda one: without_knob(one.point, knob)).values():
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


FINDING_KIND_BY_KNOB = {"cpu_mhz": "cpu", "gpu_mhz": "gpu", "mem_mhz": "memory", "kind": "inference"}
_FIRST_EPOCH_QUANTITIES = ("first_stall_s", "first_e2e_s", "e2e_s")
TITLE_QUANTITIES: dict[str, tuple[str, ...]] = {
    "workers": ("stall_s", "e2e_s", "energy_j"),
    "prefetch": ("stall_s", "e2e_s", "energy_j"),
    "batch_size": ("step_compute_s", "sample_s", "sample_j"),
    "storage": _FIRST_EPOCH_QUANTITIES,
    "cache": _FIRST_EPOCH_QUANTITIES,
    "pinned": ("copy_s", "e2e_s", "energy_j"),
    "kind": ("compute_s", "e2e_s", "energy_j"),
}
"""Quantities that a finding may state, by knob; for others stall, compute, time, power and energy."""
_DEFAULT_QUANTITIES = ("stall_s", "compute_s", "e2e_s", "power_w", "energy_j")
MAX_STEPS = 3
"""Maximum number of steps of workers that are stated, and of other settings in the evidence."""
MAX_UNORDERED_STEPS = 2
"""Maximum number of pairs of values of an unordered knob that are stated."""
UNCLEAR, NOTHING = 0.001, 0.1
"""Strength of an uncertain effect, and of certainly no effect, which still answers a question of the plan; defaults
that rank both below real effects."""
CLOCK_WEIGHT = 0.6
"""Weight of effects of a power mode's knobs; a default below 1, since slower work at a lower clock is expected."""

KnobStep = dict[str, KnobEffect]
"""The effects of one step of a knob, by quantity."""
KnobChain = dict[tuple[KnobValue, KnobValue], KnobStep]
"""All steps of a knob with everything else equal."""


def find_knob_findings(effects: Sequence[KnobEffect], firsts: Sequence[KnobEffect] = ()) -> list[SweepFinding]:
    """Make one finding per board, workload, kind and knob."""
    spans = _group_chains(firsts)
    return [_make_finding(place[-1], chains, spans.get(place, {})) for place, chains in _group_chains(effects).items()]


def _group_chains(effects: Sequence[KnobEffect]) -> dict[tuple[str, str, str, str], dict[str, KnobChain]]:
    """Group effects by board, workload, kind and knob, then by the values of the other knobs."""
    groups: dict[tuple[str, str, str, str], dict[str, KnobChain]] = defaultdict(dict)
    for effect in effects:
        settings = groups[effect.board, effect.workload, effect.kind, effect.knob]
        settings.setdefault(effect.held, {}).setdefault((effect.before, effect.after), {})[effect.quantity] = effect
    return groups


def _make_finding(knob: str, settings: dict[str, KnobChain], spans: dict[str, KnobChain]) -> SweepFinding:
    (same, chain), *others = sorted(
        settings.items(), key=lambda one: (-len(one[1]), -max(map(_step_strength, one[1].values())))
    )
    steps = list(chain.values())
    steps = steps if knob == "workers" else sorted(steps, key=lambda step: -_step_strength(step))
    span = spans.get(same, {})
    whole = span.get((next(iter(chain))[0], list(chain)[-1][1]), {}) if knob in ORDERED_KNOBS else {}
    covers = knob != "workers" and bool(whole) and bool(select_title_effects(whole, knob))
    statements = (
        [*_state_step(whole, knob, first=True), *_state_least_energy(knob, list(chain.values()))] if covers else []
    )
    for step in [] if covers else steps[: MAX_STEPS if knob in ORDERED_KNOBS else MAX_UNORDERED_STEPS]:
        statements += _state_step(step, knob, first=not statements)
    quantities = TITLE_QUANTITIES.get(knob, _DEFAULT_QUANTITIES)
    near = [e for step in steps for e in step.values() if e.quantity in (*quantities, "e2e_s")]
    far = [e for step in span.values() for e in step.values() if e.quantity in quantities]
    stated = [e for step in ([whole] if covers else steps[:MAX_STEPS]) for e in select_title_effects(step, knob)]
    effect = next(iter(steps[0].values()))
    return SweepFinding(
        kind=FINDING_KIND_BY_KNOB.get(knob, knob),
        statements=tuple(statements),
        evidence=(
            *map(_describe_effect, sorted([*far, *near], key=lambda e: e not in stated)),
            *_describe_other_settings(knob, effect, [own for _, own in others]),
        ),
        strength=(CLOCK_WEIGHT if knob in MODE_KNOBS else 1.0)
        * max(map(_step_strength, [*steps, *([whole] if whole else [])])),
        points=tuple(dict.fromkeys(key for effect in near for key in effect.points)),
        label=weakest_label([effect.label for effect in near]),
        boards=(effect.board,),
        workloads=(effect.workload,),
        work="" if knob == "kind" else effect.kind,
    )


def select_title_effects(step: KnobStep, knob: str) -> list[KnobEffect]:
    """Return the certain effects of a step that matter to the whole, in the order of ``TITLE_QUANTITIES``."""
    quantities = TITLE_QUANTITIES.get(knob, _DEFAULT_QUANTITIES)
    certain = [step[name] for name in quantities if name in step]
    certain = [one for one in certain if one.certain and abs(one.share) >= MIN_CHANGE]
    firsts = {one.before_value for one in certain if one.quantity == "first_e2e_s"}
    # If only the first epoch was measured, both quantities are the same; state one.
    return [one for one in certain if one.quantity != "e2e_s" or one.before_value not in firsts]


def _state_step(step: KnobStep, knob: str, *, first: bool) -> list[FindingStatement]:
    """Return the statements of one step; an uncertain effect is only stated as the ``first`` of a finding."""
    effect = next(iter(step.values()))
    terms = {"knob": knob, "before": effect.before, "after": effect.after}
    certain = select_title_effects(step, knob)
    if certain:
        figures = tuple(FindingFigure.from_ratio(one.ratio, one.quantity) for one in certain)
        later = step.get("e2e_s") if knob == "storage" else None
        same_later = later is not None and later.nothing and later not in certain
        return [FindingStatement("change", terms, figures), *([FindingStatement("same-later")] if same_later else [])]
    if has_no_effect(step):
        return [FindingStatement("no-effect", terms)]
    unclear = _find_unclear_effect(step)
    quantity = QUANTITY_NAMES[unclear.quantity] if unclear else "epoch"
    remark = format_interval(unclear.ratio) if unclear else ""
    return [FindingStatement("unclear", {**terms, "quantity": quantity}, remark=remark)] if first else []


def _state_least_energy(knob: str, steps: Sequence[KnobStep]) -> list[FindingStatement]:
    """State where the energy is least, if that is certain and between the first and the last value."""
    for name in ("energy_j", "sample_j"):
        for step, after in pairwise(steps):
            one, other = step.get(name), after.get(name)
            if one and other and one.certain and other.certain and one.relative_change < 0 < other.relative_change:
                value = CLOCK_FORMATS.get(knob, f"{knob.replace('_', ' ')} {{}}").format(one.after)
                return [FindingStatement("least", {"quantity": QUANTITY_NAMES[name], "value": value})]
    return []


def _find_unclear_effect(step: KnobStep) -> KnobEffect | None:
    """Return the effect on the first total that may have changed."""
    totals = (step[name] for name in (*TOTAL_QUANTITIES, "first_e2e_s") if name in step)
    return next((effect for effect in totals if not effect.nothing), None)


def has_no_effect(step: KnobStep) -> bool:
    """Return whether time, and energy if metered, certainly stay within ``MIN_CHANGE``."""
    return any(name in step for name in TOTAL_QUANTITIES) and _find_unclear_effect(step) is None


def _step_strength(step: KnobStep) -> float:
    """Return a step's effect on time or energy, symmetrical in increases and decreases; power alone does not count."""
    certain = select_title_effects(step, next(iter(step.values())).knob)
    if not certain:
        return NOTHING if has_no_effect(step) else UNCLEAR
    totals = [one.ratio.value for one in certain if one.quantity in (*TOTAL_QUANTITIES, "first_e2e_s")]
    whole = [1.0 - min(ratio, 1.0 / ratio) for ratio in totals if ratio > 0]
    parts = [min(abs(one.share), 1.0) for one in certain if one.quantity.endswith("_s")]
    return max((UNCLEAR, *(whole or parts)))


def _describe_effect(effect: KnobEffect) -> str:
    """Describe one effect: the step, both values, the interval, the setting."""
    name = QUANTITY_NAMES[effect.quantity]
    before, after = (format_quantity(v, effect.quantity) for v in (effect.before_value, effect.after_value))
    return (
        f"{name[0].upper()}{name[1:]} {before} -> {after}, {format_interval(effect.ratio)} (95 %), "
        f"{describe_step(effect.knob, effect.before, effect.after)}, {effect.label}; {effect.held}."
    )


def _describe_other_settings(knob: str, effect: KnobEffect, others: Sequence[KnobChain]) -> tuple[str, ...]:
    """Describe the same step in other settings, one sentence each, the largest effect first."""
    same = [chain[effect.before, effect.after] for chain in others if (effect.before, effect.after) in chain]
    largest = sorted(same, key=lambda one: -_step_strength(one))[:MAX_STEPS]
    return tuple(f"With {next(iter(other.values())).held}: {_describe_step(other, knob)}." for other in largest)


def _describe_step(step: KnobStep, knob: str) -> str:
    certain = select_title_effects(step, knob)
    if certain:
        return ", ".join(write_change(FindingFigure.from_ratio(one.ratio, one.quantity)) for one in certain)
    unclear = _find_unclear_effect(step)
    interval = f" ({format_interval(unclear.ratio)})" if unclear else ""
    return "no effect" if has_no_effect(step) else f"unclear{interval}"
