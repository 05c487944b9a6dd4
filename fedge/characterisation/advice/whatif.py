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

from fedge.characterisation.advice.modelling import Fits, Modelled, modelled
from fedge.characterisation.advice.nexts import NEXTS
from fedge.characterisation.judging.effects import LEAST_CHANGE, label_of
from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.pooling import Pooled, by_workload, pooled
from fedge.characterisation.judging.ratios import ratio
from fedge.characterisation.judging.setting import ORDERED, UNORDERED, Value, in_words, value_of, without
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.judging.turned import Next
from fedge.characterisation.plans.plan import Plan
from fedge.types import Label

TURNED = tuple(knob for knob in (*ORDERED, *UNORDERED) if knob != "kind")
"""Knobs that somebody may turn and still do the same work."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Turn ``knob`` from ``now`` to ``then``: what ``quantity`` should be."""

    board: str
    workload: str
    kind: str
    knob: str
    now: Value
    then: Value
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


def what_if(stats: Sequence[PointStats], plan: Plan) -> tuple[Advice, ...]:
    """Advice for every board, workload and kind; of each setting that which saves most first, time before energy."""
    return advice_among(pooled(stats), plan)


def advice_among(points: Sequence[Pooled], plan: Plan) -> tuple[Advice, ...]:
    """The same of settings whose repeats are one already."""
    found: list[Advice] = []
    for group in by_workload(points).values():
        fits: Fits = {}
        for now in _turned_from(group, plan):
            own = _told(now, group, fits)
            found += sorted(own, key=lambda one: (one.quantity, -one.saving))
    return tuple(found)


def _told(now: Pooled, group: Sequence[Pooled], fits: Fits) -> list[Advice]:
    """For each knob and quantity the best value that was seen, and the best that the model expects to be better."""
    beside = list(_neighbours(now, group))
    quoted = _best([(one, LEAST_CHANGE) for one in _quoted(now, beside)])
    expected = _best(list(_expected(now, group, beside, fits)))
    better = [
        one
        for at, (one, error) in expected.items()
        if at not in quoted or one.saving - quoted[at][0].saving > max(error, LEAST_CHANGE)
    ]
    return [*(one for one, _ in quoted.values()), *better]


def _best(found: Sequence[tuple[Advice, float]]) -> dict[tuple[str, str], tuple[Advice, float]]:
    """By knob and quantity; of values that are alike up to their error the one that is nearest to the present one."""
    groups: dict[tuple[str, str], list[tuple[Advice, float]]] = defaultdict(list)
    for one, error in found:
        groups[one.knob, one.quantity].append((one, error))
    return {
        at: min((two for two in own if two[0].saving >= max(o.saving for o, _ in own) - LEAST_CHANGE), key=_far)
        for at, own in groups.items()
    }


def _far(found: tuple[Advice, float]) -> float:
    """How far a knob is turned; 0 for what has no order."""
    now, then = found[0].now, found[0].then
    return abs(float(then) - float(now)) if isinstance(now, int | float) and isinstance(then, int | float) else 0.0


def _turned_from(group: Sequence[Pooled], plan: Plan) -> list[Pooled]:
    """The setting with the most neighbours (of equals that which is most like the plan's base), and the fastest."""
    keys = [[(knob, without(one.point, knob)) for knob in TURNED] for one in group]
    seen = Counter(key for own in keys for key in own)

    def rank(i: int) -> tuple[int, int, int]:
        point = group[i].point
        alike = sum(getattr(point, knob, None) == value for knob, value in plan.base.items())
        return sum(seen[key] for key in keys[i]), alike, -point.workers

    most = max(range(len(group)), key=rank)
    fastest = min(range(len(group)), key=lambda i: group[i].stats.e2e_s.value / group[i].stats.samples)
    return [group[i] for i in dict.fromkeys((most, fastest))]


def _neighbours(now: Pooled, group: Sequence[Pooled]) -> Iterator[tuple[str, Pooled]]:
    """The knob, and the setting that differs in it alone."""
    for knob in TURNED:
        if value_of(now.point, knob) is None:
            continue
        own = without(now.point, knob)
        for one in group:
            if one is not now and value_of(one.point, knob) is not None and without(one.point, knob) == own:
                yield knob, one


def _quoted(now: Pooled, beside: Sequence[tuple[str, Pooled]]) -> Iterator[Advice]:
    """What the sweep has seen to help, for certain."""
    for knob, one in beside:
        per = now.stats.samples / one.stats.samples
        for quantity in ("e2e_s", "energy_j"):
            before, after = getattr(now.stats, quantity), getattr(one.stats, quantity)
            if before is None or after is None:
                continue
            after = after.times(per)
            found = ratio(after, before)
            if found is None or found.high >= 1.0 or found.value > 1.0 - LEAST_CHANGE:
                continue
            label = label_of(one.stats, quantity)
            low, high = (f"{100 * (1 - end):.0f}" for end in (found.high, found.low))
            span = low if low == high else f"{low} to {high}"
            why = f"this sweep has seen it: {span} % less (95 %, {label}){_cost(quantity, now, one, per)}"
            yield _advice(now, (knob, value_of(one.point, knob)), quantity, after, why=why, label=label)


def _cost(quantity: str, now: Pooled, one: Pooled, per: float) -> str:
    """What less energy costs in time, where it does."""
    longer = one.stats.e2e_s.value * per / now.stats.e2e_s.value - 1.0
    return f"; an epoch takes {100 * longer:.0f} % longer" if quantity == "energy_j" and longer > LEAST_CHANGE else ""


def _expected(
    now: Pooled, group: Sequence[Pooled], beside: Sequence[tuple[str, Pooled]], fits: Fits
) -> Iterator[tuple[Advice, float]]:
    """What the model expects of values that nobody measured, with its error."""
    measured = {(knob, value_of(one.point, knob)) for knob, one in beside}
    model = modelled(now, group, fits)
    for nexts in NEXTS:
        for one in nexts(model, group):
            if (one.knob, one.then) not in measured:
                yield from ((advice, one.error) for advice in _modelled(now, model, one))


def _modelled(now: Pooled, model: Modelled, then: Next) -> Iterator[Advice]:
    e2e_s = then.e2e_s or model.e2e_s(then.pipeline)
    why = f"{then.why} (the model's error: {100 * then.error:.0f} % of the epoch)"
    figures = {"e2e_s": (now.stats.e2e_s, e2e_s)}
    energy_j = _joules(now.stats, model, then, e2e_s)
    if energy_j is not None and now.stats.energy_j is not None:
        figures["energy_j"] = (now.stats.energy_j, energy_j)
    for quantity, (present, expected) in figures.items():
        if 1.0 - expected.value / present.value > max(then.error, LEAST_CHANGE):
            yield _advice(now, (then.knob, then.then), quantity, expected, why=why, label="estimated")


def _joules(now: PointStats, model: Modelled, then: Next, e2e_s: Estimate) -> Estimate | None:
    """An epoch's, by its time where the work stays the same, else by its time and the power; None if not foretold.

    Told only where all of the interval lies below what it is now: the power is that of another setting.
    """
    if then.same_work:
        return model.energy_j(e2e_s)
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


def _advice(
    now: Pooled, turned: tuple[str, Value | None], quantity: str, expected: Estimate, *, why: str, label: Label
) -> Advice:
    knob, then = turned
    point, value = now.point, value_of(now.point, knob)
    present: Estimate = getattr(now.stats, quantity)
    return Advice(
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
        setting=in_words(point),
    )
