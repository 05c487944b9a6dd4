"""Tuning advice: values to change each knob to, their measured or expected benefit, and the reason.

For every board, workload and kind, advice starts from two settings: the one with the most neighbours that differ in one
knob, and the fastest one. Of the measured values of a knob, the best is quoted. Values without measurements are
predicted (``setting_model``), and reported only if the expected gain exceeds both the model's error and the measured
gain from the same knob.
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
from fedge.characterisation.point_statistics import PointStats, PooledSetting, group_by_workload
from fedge.characterisation.setting_model import KnobChange, PipelineFits, SettingModel, fit_setting_model
from fedge.characterisation.sweep_plan import CharacterisationPlan
from fedge.types import Label

TUNABLE_KNOBS = tuple(knob for knob in (*ORDERED_KNOBS, *UNORDERED_KNOBS) if knob != "kind")
"""Knobs that leave the work itself unchanged."""


@dataclass(frozen=True, slots=True)
class TuningAdvice:
    """Change ``knob`` from ``now`` to ``then``, with the resulting ``quantity``."""

    board: str
    workload: str
    kind: str
    knob: str
    now: KnobValue
    then: KnobValue
    quantity: str
    """``e2e_s`` or ``energy_j``, per epoch of equally many samples."""
    present: float
    expected: Estimate
    """With ``n`` = 0, a prediction with the model's error as its interval; else a measured value."""
    why: str
    label: Label
    """``measured`` only if the sweep has measured exactly this setting."""
    point: str
    """Key of the starting point."""
    setting: str
    """Description of the starting point."""

    @property
    def saving(self) -> float:
        """Saved share of the present value; negative if it grows."""
        return 1.0 - self.expected.value / self.present if self.present > 0 else 0.0


def compute_pooled_advice(points: Sequence[PooledSetting], plan: CharacterisationPlan) -> tuple[TuningAdvice, ...]:
    """Compute advice for every board, workload and kind; the plan's base breaks ties between starting settings.

    Returns:
        Per starting setting, first time and then energy, each by decreasing saving.
    """
    found: list[TuningAdvice] = []
    for group in group_by_workload(points).values():
        fits: PipelineFits = {}
        for now in _select_starting_settings(group, plan):
            own = _advise_setting(now, group, fits)
            found += sorted(own, key=lambda one: (one.quantity, -one.saving))
    return tuple(found)


def _advise_setting(now: PooledSetting, group: Sequence[PooledSetting], fits: PipelineFits) -> list[TuningAdvice]:
    """Return, per knob and quantity, the best measured value and the best prediction that exceeds it."""
    neighbours = list(_list_neighbours(now, group))
    quoted = _select_best([(one, MIN_CHANGE) for one in _advise_from_measurements(now, neighbours)])
    expected = _select_best(list(_advise_from_model(now, group, neighbours, fits)))
    better = [
        one
        for at, (one, error) in expected.items()
        if at not in quoted or one.saving - quoted[at][0].saving > max(error, MIN_CHANGE)
    ]
    return [*(one for one, _ in quoted.values()), *better]


def _select_best(found: Sequence[tuple[TuningAdvice, float]]) -> dict[tuple[str, str], tuple[TuningAdvice, float]]:
    """Select the best advice by knob and quantity; of equals up to ``MIN_CHANGE``, the nearest to the present value."""
    groups: dict[tuple[str, str], list[tuple[TuningAdvice, float]]] = defaultdict(list)
    for one, error in found:
        groups[one.knob, one.quantity].append((one, error))
    return {
        at: min((two for two in own if two[0].saving >= max(o.saving for o, _ in own) - MIN_CHANGE), key=_knob_distance)
        for at, own in groups.items()
    }


def _knob_distance(found: tuple[TuningAdvice, float]) -> float:
    """Return the distance between two values of a knob; 0 for knobs without an order."""
    now, then = found[0].now, found[0].then
    return abs(float(then) - float(now)) if isinstance(now, int | float) and isinstance(then, int | float) else 0.0


def _select_starting_settings(group: Sequence[PooledSetting], plan: CharacterisationPlan) -> list[PooledSetting]:
    """Return the setting with the most neighbours (of equals, the nearest to the plan's base) and the fastest one."""
    keys = [[(knob, without_knob(one.point, knob)) for knob in TUNABLE_KNOBS] for one in group]
    counts = Counter(key for own in keys for key in own)

    def rank(i: int) -> tuple[int, int, int]:
        point = group[i].point
        alike = sum(getattr(point, knob, None) == value for knob, value in plan.base.items())
        return sum(counts[key] for key in keys[i]), alike, -point.workers

    most = max(range(len(group)), key=rank)
    fastest = min(range(len(group)), key=lambda i: group[i].stats.e2e_s.value / group[i].stats.samples)
    return [group[i] for i in dict.fromkeys((most, fastest))]


def _list_neighbours(now: PooledSetting, group: Sequence[PooledSetting]) -> Iterator[tuple[str, PooledSetting]]:
    """Yield each knob with the settings that differ in it alone."""
    for knob in TUNABLE_KNOBS:
        if get_knob_value(now.point, knob) is None:
            continue
        own = without_knob(now.point, knob)
        for one in group:
            if one is not now and get_knob_value(one.point, knob) is not None and without_knob(one.point, knob) == own:
                yield knob, one


def _advise_from_measurements(
    now: PooledSetting, neighbours: Sequence[tuple[str, PooledSetting]]
) -> Iterator[TuningAdvice]:
    """Yield the improvements that the sweep has measured with certainty."""
    for knob, one in neighbours:
        per = now.stats.samples / one.stats.samples
        for quantity in ("e2e_s", "energy_j"):
            before, after = getattr(now.stats, quantity), getattr(one.stats, quantity)
            if before is None or after is None:
                continue
            after = after.scale(per)
            found = estimate_ratio(after, before)
            if found is None or found.high >= 1.0 or found.value > 1.0 - MIN_CHANGE:
                continue
            label = quantity_label(one.stats, quantity)
            low, high = (f"{100 * (1 - end):.0f}" for end in (found.high, found.low))
            span = low if low == high else f"{low} to {high}"
            why = f"this sweep has seen it: {span} % less (95 %, {label}){_describe_time_cost(quantity, now, one, per)}"
            yield _make_advice(now, (knob, get_knob_value(one.point, knob)), quantity, after, why=why, label=label)


def _describe_time_cost(quantity: str, now: PooledSetting, one: PooledSetting, per: float) -> str:
    """Describe how much longer an epoch takes with less energy; empty if it does not."""
    longer = one.stats.e2e_s.value * per / now.stats.e2e_s.value - 1.0
    return f"; an epoch takes {100 * longer:.0f} % longer" if quantity == "energy_j" and longer > MIN_CHANGE else ""


def _advise_from_model(
    now: PooledSetting,
    group: Sequence[PooledSetting],
    neighbours: Sequence[tuple[str, PooledSetting]],
    fits: PipelineFits,
) -> Iterator[tuple[TuningAdvice, float]]:
    """Yield the predicted improvements by values without measurements, each with the model's error."""
    measured = {(knob, get_knob_value(one.point, knob)) for knob, one in neighbours}
    model = fit_setting_model(now, group, fits)
    for propose in PROPOSERS:
        for one in propose(model, group):
            if (one.knob, one.then) not in measured:
                error = model.error if one.error is None else one.error
                yield from ((advice, error) for advice in _advise_change(now, model, one, error))


def _advise_change(now: PooledSetting, model: SettingModel, then: KnobChange, error: float) -> Iterator[TuningAdvice]:
    e2e_s = then.e2e_s or model.predict_e2e_s(then.pipeline)
    why = f"{then.why} (the model's error: {100 * error:.0f} % of the epoch)"
    figures = {"e2e_s": e2e_s, "energy_j": _predict_energy_j(now.stats, model, then, e2e_s)}
    for quantity, expected in figures.items():
        present = getattr(now.stats, quantity)
        if expected is not None and 1.0 - expected.value / present.value > max(error, MIN_CHANGE):
            yield _make_advice(now, (then.knob, then.then), quantity, expected, why=why, label="estimated")


def _predict_energy_j(now: PointStats, model: SettingModel, then: KnobChange, e2e_s: Estimate) -> Estimate | None:
    """Predict an epoch's energy, by its time if the work stays the same, else by time and power.

    Returns:
        The energy, or None if it is not known or might exceed the present one, since the power is that of another
            setting.
    """
    if then.same_work:
        return model.predict_energy_j(e2e_s)
    if then.power is None or now.energy_j is None:
        return None
    joules, power = now.energy_j.value, then.power
    ends = ((e2e_s.value, power.value), (e2e_s.low, power.low), (e2e_s.high, power.high))
    value, low, high = (joules * seconds / now.e2e_s.value * factor for seconds, factor in ends)
    return Estimate(value, low, high, 0) if high <= joules else None


def _make_advice(
    now: PooledSetting,
    change: tuple[str, KnobValue | None],
    quantity: str,
    expected: Estimate,
    *,
    why: str,
    label: Label,
) -> TuningAdvice:
    knob, then = change
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
