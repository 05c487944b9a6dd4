"""The time-energy plane: Pareto front, dominated settings and knee, and findings about power modes and pipelining."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.characterisation.confidence_interval import Estimate, estimate_ratio
from fedge.characterisation.finding_draft import Clause, FindingDraft
from fedge.characterisation.finding_text import (
    describe_knob_change,
    format_count,
    format_interval,
    format_quantity,
    format_seconds,
    make_certain_change,
)
from fedge.characterisation.knob_effects import MIN_CHANGE, quantity_label, weakest_label
from fedge.characterisation.point_knobs import MODE_KNOBS, describe_differences, describe_other_knobs
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.pooled_settings import PooledSetting, group_by_workload
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.pareto import front_mask
from fedge.types import Floats, PowerMode


@dataclass(frozen=True, slots=True)
class TimeEnergyPlane:
    """Settings of one board and workload by time and energy per sample; indices refer to ``settings``."""

    settings: tuple[PooledSetting, ...]
    """Those with known energy."""
    front: tuple[int, ...]
    """The Pareto front from the fastest to the cheapest."""
    dominated: tuple[tuple[int, int], ...]
    """Pairs of a setting and another one that certainly takes less time and less energy."""
    knee: int
    """The setting of the front farthest below the chord between its ends, in normalised logarithms."""


def compute_plane(points: Sequence[PooledSetting]) -> TimeEnergyPlane | None:
    """Compute the time-energy plane.

    Args:
        points: Settings of one board and workload with pooled repeats.

    Returns:
        The plane, or None if fewer than two settings have a known energy.
    """
    settings = tuple(one for one in points if one.stats.energy_j is not None and one.stats.energy_j.value > 0)
    if len(settings) < 2:
        return None
    times = np.array([one.stats.e2e_s.value / one.stats.samples for one in settings])
    joules = np.array([_sample_energy_j(one.stats).value for one in settings])
    front = np.flatnonzero(front_mask(times, joules))
    front = front[np.argsort(times[front])]
    x, y = _normalise(np.log(times[front])), _normalise(np.log(joules[front]))
    knee = int(front[np.argmax(np.round(1.0 - x - y, 12))])  # rounded, so that the chord's ends tie
    beaten = tuple(
        (i, j) for i in range(len(settings)) if (j := _find_dominating(settings, front.tolist(), i)) is not None
    )
    return TimeEnergyPlane(settings, tuple(front.tolist()), beaten, knee)


def certainly_differ(one: PooledSetting, other: PooledSetting) -> bool:
    """Return whether times per sample, or energies per sample, certainly differ."""
    return any(
        found is not None and (found.low > 1.0 or found.high < 1.0)
        for found in _per_sample_ratios(one.stats, other.stats)
    )


def _find_dominating(settings: Sequence[PooledSetting], front: Sequence[int], row: int) -> int | None:
    """Return the first setting of the front that is certainly better in time and energy, or None."""
    own = settings[row].stats
    for other in front:
        if all(one is not None and one.high < 1.0 for one in _per_sample_ratios(settings[other].stats, own)):
            return other
    return None


def _per_sample_ratios(stats: PointStats, own: PointStats) -> tuple[Estimate | None, Estimate | None]:
    """Return time and energy per sample relative to those of ``own``."""
    per = own.samples / stats.samples
    return estimate_ratio(stats.e2e_s.scale(per), own.e2e_s), estimate_ratio(
        _sample_energy_j(stats), _sample_energy_j(own)
    )


def _sample_energy_j(stats: PointStats) -> Estimate:
    """Return the energy per sample."""
    assert stats.energy_j is not None
    return stats.energy_j.scale(1.0 / stats.samples)


def _normalise(values: Floats) -> Floats:
    """Scale values to 0..1; all 0 if they are equal."""
    span = float(values.max() - values.min())
    scaled: Floats = (values - values.min()) / span if span > 0 else np.zeros_like(values)
    return scaled


MAX_DOMINATED = 10
"""Maximum number of dominated settings that are named."""
TWO_MODES_WEIGHT = 0.1
"""Weight of the finding that the top one of two modes is the cheapest; low, since the finding about their clocks
says so."""
PIPELINING_WEIGHT = 0.5
"""Weight of the energy saved by pipelining; reduced, since the findings about workers contain a part of it."""


def find_mode_tradeoffs(points: Sequence[PooledSetting]) -> list[FindingDraft]:
    """Compare power modes with everything else equal, then all settings of a workload on the time-energy plane.

    Args:
        points: Settings with pooled repeats.
    """
    found: list[FindingDraft] = []
    for group in group_by_workload(points).values():
        settings: dict[SweepPoint, list[PooledSetting]] = defaultdict(list)
        for one in group:
            if one.point.mode is not None:
                settings[replace(one.point, mode=None, repeat=0)].append(one)
        several = [own for own in settings.values() if len(own) > 1]
        if several:
            found += _draft_top_mode(max(several, key=len))
        plane = compute_plane(group)
        if plane is not None and len(plane.settings) > 2:
            found.append(_draft_plane(plane))
    return found


def _draft_top_mode(modes: Sequence[PooledSetting]) -> list[FindingDraft]:
    """Compare the top mode with the one of least energy; no finding if that is not certain."""
    known = [one for one in modes if one.stats.energy_j is not None]
    top = next((one for one in known if all(_is_at_least(one.point.mode, other.point.mode) for other in known)), None)
    cheapest = min(known, key=_epoch_energy_j, default=None)
    if top is None or cheapest is None or len(known) < 2:
        return []
    if cheapest is top:
        return _draft_top_cheapest(top, [one for one in known if one is not top])
    joules, times = _quantity_ratio(cheapest, top, "energy_j"), _quantity_ratio(cheapest, top, "e2e_s")
    if joules is None or times is None or not _is_saving(joules):
        return []
    return [_draft_cheaper_mode(top, cheapest, joules, times)]


def _epoch_energy_j(one: PooledSetting) -> float:
    return one.stats.energy_j.value if one.stats.energy_j else 0.0


def _is_saving(ratio: Estimate) -> bool:
    return ratio.high < 1.0 and 1.0 - ratio.value >= MIN_CHANGE


def _is_at_least(one: PowerMode | None, other: PowerMode | None) -> bool:
    return all(getattr(one, knob) >= getattr(other, knob) for knob in MODE_KNOBS)


def _quantity_ratio(after: PooledSetting, before: PooledSetting, name: str) -> Estimate | None:
    a, b = getattr(after.stats, name), getattr(before.stats, name)
    return None if a is None or b is None else estimate_ratio(a, b)


def _format_figure(one: PooledSetting, name: str) -> str:
    return format_quantity(getattr(one.stats, name).value, name)


def _draft_cheaper_mode(top: PooledSetting, cheapest: PooledSetting, joules: Estimate, times: Estimate) -> FindingDraft:
    sure = (times.low > 1.0 or times.high < 1.0) and abs(times.value - 1.0) >= MIN_CHANGE
    figures = [make_certain_change(joules, "energy_j"), *([make_certain_change(times, "e2e_s")] if sure else [])]
    unsure = Clause("The epoch's time", statement="changes by {aside}", aside=format_interval(times))
    return _make_draft(
        "energy",
        (top, cheapest),
        clauses=(Clause(_describe_mode_change(cheapest, top), tuple(figures)), *([] if sure else [unsure])),
        evidence=(
            (
                f"Energy: {_format_figure(top, 'energy_j')} and {_format_figure(cheapest, 'energy_j')}, so "
                f"{format_interval(joules)} (95 %)."
            ),
            (
                f"Time: {_format_figure(top, 'e2e_s')} and {_format_figure(cheapest, 'e2e_s')}, so "
                f"{format_interval(times)} (95 %)."
            ),
            f"The top mode is {top.point.mode}; both with {describe_other_knobs(top.point, 'mode')}.",
        ),
        strength=1.0 - joules.value,
    )


def _describe_mode_change(cheapest: PooledSetting, top: PooledSetting) -> str:
    """Describe the change of mode, by its clock if the modes differ in one clock alone."""
    one, other = cheapest.point.mode, top.point.mode
    differ = [knob for knob in MODE_KNOBS if getattr(one, knob) != getattr(other, knob)]
    if len(differ) == 1:
        return (
            f"{describe_knob_change(differ[0], getattr(other, differ[0]), getattr(one, differ[0]))}, all else at "
            f"the top,"
        )
    return f"Mode {one} instead of the top mode"


def _make_draft(
    kind: str, settings: Sequence[PooledSetting], *, clauses: Sequence[Clause], evidence: Sequence[str], strength: float
) -> FindingDraft:
    """Make a draft about settings of one board and workload, with the label of their energy."""
    point = settings[0].point
    return FindingDraft(
        clauses=tuple(clauses),
        evidence=tuple(evidence),
        strength=strength,
        kind=kind,
        points=tuple(key for one in settings for key in one.points),
        label=weakest_label([quantity_label(one.stats, "energy_j") for one in settings]),
        boards=(point.board,),
        workloads=(point.workload,),
        work=point.kind,
    )


def _draft_top_cheapest(top: PooledSetting, others: Sequence[PooledSetting]) -> list[FindingDraft]:
    """Report that the top mode takes the least energy, if it certainly does against every other mode."""
    ratios = [found for one in others if (found := _quantity_ratio(one, top, "energy_j"))]
    if len(ratios) < len(others) or any(one.low <= 1.0 for one in ratios):
        return []
    each = zip(others, ratios, strict=True)
    count = len(others) + 1
    return [
        _make_draft(
            "energy",
            (top, *others),
            clauses=(Clause(f"Of {count} modes the top one, {top.point.mode},", statement="takes the least energy"),),
            evidence=[
                f"{one.point.mode}: {_format_figure(one, 'energy_j')}, so {format_interval(r)} (95 %)."
                for one, r in each
            ],
            strength=(TWO_MODES_WEIGHT if count == 2 else 1.0) * (1.0 - 1.0 / min(one.value for one in ratios)),
        )
    ]


def _draft_plane(plane: TimeEnergyPlane) -> FindingDraft:
    knee, count, beaten = plane.settings[plane.knee], len(plane.settings), len(plane.dominated)
    among = [one.point for one in plane.settings]
    named = {plane.knee, *plane.front, *(i for pair in plane.dominated[:MAX_DOMINATED] for i in pair)}
    name = {
        i: describe_differences(plane.settings[i].point, among) or describe_other_knobs(plane.settings[i].point, "")
        for i in named
    }
    one = (
        f"{beaten} of {count} settings",
        f"{'takes' if beaten == 1 else 'take'} more time and more energy than another",
    )
    none = f"Of {count} settings none", "certainly takes more time and more energy than another"
    subject, said = one if beaten else none
    alike = sum(not certainly_differ(each, knee) for each in plane.settings if each is not knee)
    return _make_draft(
        "plane",
        [knee, *(plane.settings[i] for i in plane.front if i != plane.knee)],
        clauses=(
            Clause(
                "The best compromise of time and energy (the knee of the front)",
                statement=f"is {name[plane.knee]}{{aside}}",
                aside=f" ({format_count(alike, 'other')} cannot be told from it)" if alike else "",
            ),
            Clause(subject, statement=said),
        ),
        evidence=(
            *(f"On the front: {name[i]}: {_format_costs(plane.settings[i])}." for i in plane.front),
            *(f"{_capitalise(name[i])} is beaten by {name[j]}." for i, j in plane.dominated[:MAX_DOMINATED]),
        ),
        strength=MIN_CHANGE * (1 + beaten / count),
    )


def _capitalise(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _format_costs(one: PooledSetting) -> str:
    """Format time and energy per 1000 samples, since epochs may be cut."""
    stats = one.stats
    assert stats.energy_j is not None
    per = 1000.0 / stats.samples
    joules = format_quantity(stats.energy_j.value * per, "energy_j")
    return f"{format_seconds(stats.e2e_s.value * per)} and {joules} per 1,000 samples"


def find_pipelining_savings(points: Sequence[PooledSetting]) -> list[FindingDraft]:
    """Find how much energy loader workers save against loading in the training process; the largest per workload.

    Args:
        points: Settings with pooled repeats.
    """
    groups: dict[SweepPoint, list[PooledSetting]] = defaultdict(list)
    for one in points:
        if one.stats.energy_j is not None:
            groups[replace(one.point, workers=0, repeat=0)].append(one)
    found: dict[tuple[str, str, str], FindingDraft] = {}
    for group in groups.values():
        alone = next((one for one in group if one.point.workers == 0), None)
        best = min((one for one in group if one.point.workers), key=_epoch_energy_j, default=None)
        joules = _quantity_ratio(best, alone, "energy_j") if alone and best else None
        if alone is None or best is None or joules is None or not _is_saving(joules):
            continue
        point = best.point
        finding, place = _draft_pipelining(alone, best, joules), (point.board, point.workload, point.kind)
        if place not in found or found[place].strength < finding.strength:
            found[place] = finding
    return list(found.values())


def _draft_pipelining(alone: PooledSetting, best: PooledSetting, joules: Estimate) -> FindingDraft:
    workers = "1 worker" if best.point.workers == 1 else f"{best.point.workers} workers"
    figures = f"{_format_figure(alone, 'energy_j')} without workers, {_format_figure(best, 'energy_j')} with {workers}"
    work = "training" if best.point.kind == "train" else "inference"
    return _make_draft(
        "pipelining",
        (alone, best),
        clauses=(
            Clause(
                f"Loading beside the {work}{{aside}}", (make_certain_change(joules, "energy_j"),), aside=f" ({workers})"
            ),
        ),
        evidence=(
            f"The energy: {figures}, so {format_interval(joules)} (95 %).",
            f"Both with {describe_other_knobs(best.point, 'workers')}.",
        ),
        strength=PIPELINING_WEIGHT * (1.0 - joules.value),
    )
