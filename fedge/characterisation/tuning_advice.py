"""What to turn next: each knob's next values, what they should bring by the pipeline model or did bring, and why.

For every board, workload and kind one turns from the setting that the sweep turned from (of which most others differ
in one knob), and from the fastest one. What the sweep has seen is quoted, once for each knob: its best value. Values
that it has not seen are the model's (``modelling``), which says nothing where it expects less than its own error, or
no more than what was seen of the same knob.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedge.characterisation.confidence_interval import Estimate, estimate_ratio
from fedge.characterisation.knob_effects import MIN_CHANGE, quantity_label
from fedge.characterisation.next_knob_values import PROPOSERS
from fedge.characterisation.point_knobs import (
    ORDERED_KNOBS,
    UNORDERED_KNOBS,
    KnobValue,
    describe_setting,
    get_knob_value,
    without_knob,
)
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.pooled_settings import PooledSetting, group_by_workload, pool_repeats
from fedge.characterisation.setting_model import KnobChange, PipelineFits, SettingModel, fit_setting_model
from fedge.characterisation.sweep_plan import CharacterisationPlan
from fedge.types import Label

TUNABLE_KNOBS = tuple(knob for knob in (*ORDERED_KNOBS, *UNORDERED_KNOBS) if knob != "kind")
"""Knobs that somebody may turn and still do the same work."""


@dataclass(frozen=True, slots=True)
class TuningAdvice:
    """Turn ``knob`` from ``now`` to ``then``: what ``quantity`` should be."""

    board: str
    workload: str
    kind: str
    knob: str
    now: KnobValue
    then: KnobValue
    quantity: str
    """``e2e_s`` or ``energy_j``, per epoch of as many samples."""
    present: float
    expected: Estimate
    """``n`` = 0: the model's, whose interval is its own error, else that of measured epochs."""
    why: str
    label: Label
    """``measured`` only where the sweep has measured just that."""
    point: str
    """The key of the point from which one turns."""
    setting: str
    """That point in words."""

    @property
    def saving(self) -> float:
        """The part of the present figure that is saved; negative where it grows."""
        return 1.0 - self.expected.value / self.present if self.present > 0 else 0.0


def compute_advice(stats: Sequence[PointStats], plan: CharacterisationPlan) -> tuple[TuningAdvice, ...]:
    """Advice for every board, workload and kind; of each setting that which saves most first, time before energy."""
    return compute_pooled_advice(pool_repeats(stats), plan)


def compute_pooled_advice(points: Sequence[PooledSetting], plan: CharacterisationPlan) -> tuple[TuningAdvice, ...]:
    """The same of settings whose repeats are one already."""
    found: list[TuningAdvice] = []
    for group in group_by_workload(points).values():
        fits: PipelineFits = {}
        for now in _select_starting_settings(group, plan):
            own = _advise_setting(now, group, fits)
            found += sorted(own, key=lambda one: (one.quantity, -one.saving))
    return tuple(found)


def _advise_setting(now: PooledSetting, group: Sequence[PooledSetting], fits: PipelineFits) -> list[TuningAdvice]:
    """For each knob and quantity the best value that was seen, and the best that the model expects to be better."""
    beside = list(_list_neighbours(now, group))
    quoted = _select_best([(one, MIN_CHANGE) for one in _advise_from_measurements(now, beside)])
    expected = _select_best(list(_advise_from_model(now, group, beside, fits)))
    better = [
        one
        for at, (one, error) in expected.items()
        if at not in quoted or one.saving - quoted[at][0].saving > max(error, MIN_CHANGE)
    ]
    return [*(one for one, _ in quoted.values()), *better]


def _select_best(found: Sequence[tuple[TuningAdvice, float]]) -> dict[tuple[str, str], tuple[TuningAdvice, float]]:
    """By knob and quantity; of values that are alike up to their error the one that is nearest to the present one."""
    groups: dict[tuple[str, str], list[tuple[TuningAdvice, float]]] = defaultdict(list)
    for one, error in found:
        groups[one.knob, one.quantity].append((one, error))
    return {
        at: min((two for two in own if two[0].saving >= max(o.saving for o, _ in own) - MIN_CHANGE), key=_knob_distance)
        for at, own in groups.items()
    }


def _knob_distance(found: tuple[TuningAdvice, float]) -> float:
    """How far a knob is turned; 0 for what has no order."""
    now, then = found[0].now, found[0].then
    return abs(float(then) - float(now)) if isinstance(now, int | float) and isinstance(then, int | float) else 0.0


def _select_starting_settings(group: Sequence[PooledSetting], plan: CharacterisationPlan) -> list[PooledSetting]:
    """The setting with the most neighbours (of equals that which is most like the plan's base), and the fastest."""
    keys = [[(knob, without_knob(one.point, knob)) for knob in TUNABLE_KNOBS] for one in group]
    seen = Counter(key for own in keys for key in own)

    def rank(i: int) -> tuple[int, int, int]:
        point = group[i].point
        alike = sum(getattr(point, knob, None) == value for knob, value in plan.base.items())
        return sum(seen[key] for key in keys[i]), alike, -point.workers

    most = max(range(len(group)), key=rank)
    fastest = min(range(len(group)), key=lambda i: group[i].stats.e2e_s.value / group[i].stats.samples)
    return [group[i] for i in dict.fromkeys((most, fastest))]


def _list_neighbours(now: PooledSetting, group: Sequence[PooledSetting]) -> Iterator[tuple[str, PooledSetting]]:
    """The knob, and the setting that differs in it alone."""
    for knob in TUNABLE_KNOBS:
        if get_knob_value(now.point, knob) is None:
            continue
        own = without_knob(now.point, knob)
        for one in group:
            if one is not now and get_knob_value(one.point, knob) is not None and without_knob(one.point, knob) == own:
                yield knob, one


def _advise_from_measurements(
    now: PooledSetting, beside: Sequence[tuple[str, PooledSetting]]
) -> Iterator[TuningAdvice]:
    """What the sweep has seen to help, for certain."""
    for knob, one in beside:
        per = now.stats.samples / one.stats.samples
        for quantity in ("e2e_s", "energy_j"):
            before, after = getattr(now.stats, quantity), getattr(one.stats, quantity)
            if before is None or after is None:
                continue
            after = after.times(per)
            found = estimate_ratio(after, before)
            if found is None or found.high >= 1.0 or found.value > 1.0 - MIN_CHANGE:
                continue
            label = quantity_label(one.stats, quantity)
            low, high = (f"{100 * (1 - end):.0f}" for end in (found.high, found.low))
            span = low if low == high else f"{low} to {high}"
            why = f"this sweep has seen it: {span} % less (95 %, {label}){_describe_time_cost(quantity, now, one, per)}"
            yield _make_advice(now, (knob, get_knob_value(one.point, knob)), quantity, after, why=why, label=label)


def _describe_time_cost(quantity: str, now: PooledSetting, one: PooledSetting, per: float) -> str:
    """What less energy costs in time, where it does."""
    longer = one.stats.e2e_s.value * per / now.stats.e2e_s.value - 1.0
    return f"; an epoch takes {100 * longer:.0f} % longer" if quantity == "energy_j" and longer > MIN_CHANGE else ""


def _advise_from_model(
    now: PooledSetting, group: Sequence[PooledSetting], beside: Sequence[tuple[str, PooledSetting]], fits: PipelineFits
) -> Iterator[tuple[TuningAdvice, float]]:
    """What the model expects of values that nobody measured, with its error."""
    measured = {(knob, get_knob_value(one.point, knob)) for knob, one in beside}
    model = fit_setting_model(now, group, fits)
    for nexts in PROPOSERS:
        for one in nexts(model, group):
            if (one.knob, one.then) not in measured:
                yield from ((advice, one.error) for advice in _advise_change(now, model, one))


def _advise_change(now: PooledSetting, model: SettingModel, then: KnobChange) -> Iterator[TuningAdvice]:
    e2e_s = then.e2e_s or model.predict_e2e_s(then.pipeline)
    why = f"{then.why} (the model's error: {100 * then.error:.0f} % of the epoch)"
    figures = {"e2e_s": (now.stats.e2e_s, e2e_s)}
    energy_j = _predict_energy_j(now.stats, model, then, e2e_s)
    if energy_j is not None and now.stats.energy_j is not None:
        figures["energy_j"] = (now.stats.energy_j, energy_j)
    for quantity, (present, expected) in figures.items():
        if 1.0 - expected.value / present.value > max(then.error, MIN_CHANGE):
            yield _make_advice(now, (then.knob, then.then), quantity, expected, why=why, label="estimated")


def _predict_energy_j(now: PointStats, model: SettingModel, then: KnobChange, e2e_s: Estimate) -> Estimate | None:
    """An epoch's, by its time where the work stays the same, else by its time and the power; None if not foretold.

    Told only where all of the interval lies below what it is now: the power is that of another setting.
    """
    if then.same_work:
        return model.predict_energy_j(e2e_s)
    if then.power is None or now.energy_j is None:
        return None
    joules, whole_s = now.energy_j.value, now.e2e_s.value
    value, low, high = (
        joules * seconds / whole_s * factor
        for seconds, factor in (
            (e2e_s.value, then.power.value),
            (e2e_s.low, then.power.low),
            (e2e_s.high, then.power.high),
        )
    )
    return Estimate(value, low, high, 0) if high <= joules else None


def _make_advice(
    now: PooledSetting,
    turned: tuple[str, KnobValue | None],
    quantity: str,
    expected: Estimate,
    *,
    why: str,
    label: Label,
) -> TuningAdvice:
    knob, then = turned
    point, value = now.point, get_knob_value(now.point, knob)
    present: Estimate = getattr(now.stats, quantity)
    return TuningAdvice(
        board=point.board,
        workload=point.workload,
        kind=point.kind,
        knob=knob,
        now="" if value is None else value,
        then="" if then is None else then,
        quantity=quantity,
        present=present.value,
        expected=expected,
        why=why,
        label=label,
        point=point.key,
        setting=describe_setting(point),
    )
