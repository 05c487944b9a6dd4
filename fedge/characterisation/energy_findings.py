"""The time-energy plane: Pareto front, dominated settings and knee, and findings about power modes and pipelining."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.characterisation.confidence_interval import Estimate, estimate_ratio
from fedge.characterisation.findings import (
    FindingFigure,
    FindingStatement,
    SweepFinding,
    format_count,
    format_interval,
    format_quantity,
    format_seconds,
)
from fedge.characterisation.knob_effects import MIN_CHANGE, quantity_label
from fedge.characterisation.point_knobs import MODE_KNOBS, describe_differences, describe_other_knobs
from fedge.characterisation.point_statistics import PointStats, PooledSetting, group_by_workload
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.pareto import front_mask
from fedge.types import Floats, PowerMode, weakest_label


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


def find_mode_tradeoffs(points: Sequence[PooledSetting]) -> list[SweepFinding]:
    """Compare power modes with everything else equal, then all settings of a workload on the time-energy plane."""
    found: list[SweepFinding] = []
    for group in group_by_workload(points).values():
        settings: dict[SweepPoint, list[PooledSetting]] = defaultdict(list)
        for one in group:
            if one.point.mode is not None:
                settings[replace(one.point, mode=None, repeat=0)].append(one)
        finding = _compare_modes(max(settings.values(), key=len, default=[]))
        found += [finding] if finding else []
        plane = compute_plane(group)
        if plane is not None and len(plane.settings) > 2:
            found.append(_make_plane_finding(plane))
    return found


def _compare_modes(modes: Sequence[PooledSetting]) -> SweepFinding | None:
    """Compare the top mode with the one of least energy; None if that is not certain."""
    known = [one for one in modes if one.stats.energy_j is not None]
    top = next((one for one in known if all(_is_at_least(one.point.mode, other.point.mode) for other in known)), None)
    if top is None or len(known) < 2:
        return None
    cheapest = min(known, key=_epoch_energy_j)
    if cheapest is top:
        return _make_top_mode_finding(top, [one for one in known if one is not top])
    joules, times = _quantity_ratio(cheapest, top, "energy_j"), _quantity_ratio(cheapest, top, "e2e_s")
    if joules is None or times is None or not _is_saving(joules):
        return None
    return _make_cheaper_mode_finding(top, cheapest, joules, times)


def _epoch_energy_j(one: PooledSetting) -> float:
    return one.stats.energy_j.value if one.stats.energy_j else 0.0


def _is_saving(ratio: Estimate) -> bool:
    return ratio.high < 1.0 and 1.0 - ratio.value >= MIN_CHANGE


def _is_at_least(one: PowerMode | None, other: PowerMode | None) -> bool:
    return all(getattr(one, knob) >= getattr(other, knob) for knob in MODE_KNOBS)


def _quantity_ratio(after: PooledSetting, before: PooledSetting, name: str) -> Estimate | None:
    a, b = getattr(after.stats, name), getattr(before.stats, name)
    return None if a is None or b is None else estimate_ratio(a, b)


def _make_cheaper_mode_finding(
    top: PooledSetting, cheapest: PooledSetting, joules: Estimate, times: Estimate
) -> SweepFinding:
    is_certain = (times.low > 1.0 or times.high < 1.0) and abs(times.value - 1.0) >= MIN_CHANGE
    ratios = [(joules, "energy_j"), *([(times, "e2e_s")] if is_certain else [])]
    one, other = cheapest.point.mode, top.point.mode
    knobs = [knob for knob in MODE_KNOBS if getattr(one, knob) != getattr(other, knob)]
    template, terms = "cheaper-mode", {"mode": f"mode {one}"}
    if len(knobs) == 1:
        (knob,) = knobs
        template, terms = "cheaper-clock", {"knob": knob, "before": getattr(other, knob), "after": getattr(one, knob)}
    statement = FindingStatement(template, terms, tuple(FindingFigure.from_ratio(*ratio) for ratio in ratios))
    unclear = FindingStatement("time-unclear", {"interval": format_interval(times)})
    return _make_finding(
        "energy",
        (top, cheapest),
        statements=(statement,) if is_certain else (statement, unclear),
        evidence=(
            f"Energy: {_describe_ratio(top, cheapest, joules, 'energy_j')}.",
            f"Time: {_describe_ratio(top, cheapest, times, 'e2e_s')}.",
            f"The top mode is {other}; both with {describe_other_knobs(top.point, 'mode')}.",
        ),
        strength=1.0 - joules.value,
    )


def _describe_ratio(before: PooledSetting, after: PooledSetting, ratio: Estimate, name: str) -> str:
    values = (format_quantity(getattr(one.stats, name).value, name) for one in (before, after))
    return f"{' -> '.join(values)}, {format_interval(ratio)} (95 %)"


def _make_finding(
    kind: str,
    settings: Sequence[PooledSetting],
    *,
    statements: tuple[FindingStatement, ...],
    evidence: Sequence[str],
    strength: float,
) -> SweepFinding:
    """Make a finding about settings of one board and workload, with the label of their energy."""
    point = settings[0].point
    return SweepFinding(
        kind=kind,
        statements=statements,
        evidence=tuple(evidence),
        strength=strength,
        points=tuple(key for one in settings for key in one.points),
        label=weakest_label([quantity_label(one.stats, "energy_j") for one in settings]),
        boards=(point.board,),
        workloads=(point.workload,),
        work=point.kind,
    )


def _make_top_mode_finding(top: PooledSetting, others: Sequence[PooledSetting]) -> SweepFinding | None:
    """Report that the top mode takes the least energy, if it certainly does against every other mode."""
    ratios = [found for one in others if (found := _quantity_ratio(one, top, "energy_j"))]
    if len(ratios) < len(others) or any(one.low <= 1.0 for one in ratios):
        return None
    count = len(others) + 1
    return _make_finding(
        "energy",
        (top, *others),
        statements=(FindingStatement("top-mode", {"mode": str(top.point.mode), "count": count}),),
        evidence=[
            f"{one.point.mode}: {_describe_ratio(top, one, ratio, 'energy_j')}."
            for one, ratio in zip(others, ratios, strict=True)
        ],
        strength=(TWO_MODES_WEIGHT if count == 2 else 1.0) * (1.0 - 1.0 / min(one.value for one in ratios)),
    )


def _make_plane_finding(plane: TimeEnergyPlane) -> SweepFinding:
    knee, total, dominated = plane.settings[plane.knee], len(plane.settings), len(plane.dominated)
    among = [one.point for one in plane.settings]
    named = {*plane.front, *(i for pair in plane.dominated[:MAX_DOMINATED] for i in pair)}
    names = {i: describe_differences(among[i], among) or describe_other_knobs(among[i], "") for i in named}
    similar = sum(not certainly_differ(each, knee) for each in plane.settings if each is not knee)
    remark = f"{format_count(similar, 'other')} may be as good" if similar else ""
    return _make_finding(
        "plane",
        [knee, *(plane.settings[i] for i in plane.front if i != plane.knee)],
        statements=(
            FindingStatement("knee", {"setting": names[plane.knee]}, remark=remark),
            FindingStatement("dominated", {"count": dominated or "none", "total": total}),
        ),
        evidence=(
            *(f"On the front: {names[i]}: {_format_costs(plane.settings[i])}." for i in plane.front),
            *(f"Dominated: {names[i]} by {names[j]}." for i, j in plane.dominated[:MAX_DOMINATED]),
        ),
        strength=MIN_CHANGE * (1 + dominated / total),
    )


def _format_costs(one: PooledSetting) -> str:
    """Format time and energy per 1000 samples, since epochs may be cut."""
    per = 1000.0 / one.stats.samples
    joules = format_quantity(_epoch_energy_j(one) * per, "energy_j")
    return f"{format_seconds(one.stats.e2e_s.value * per)} and {joules} per 1,000 samples"


def find_pipelining_savings(points: Sequence[PooledSetting]) -> list[SweepFinding]:
    """Find how much energy loader workers save against loading in the training process; the largest per workload."""
    groups: dict[SweepPoint, list[PooledSetting]] = defaultdict(list)
    for one in points:
        if one.stats.energy_j is not None:
            groups[replace(one.point, workers=0, repeat=0)].append(one)
    largest: dict[tuple[str, str, str], SweepFinding] = {}
    for group in groups.values():
        alone = next((one for one in group if one.point.workers == 0), None)
        best = min((one for one in group if one.point.workers), key=_epoch_energy_j, default=None)
        joules = _quantity_ratio(best, alone, "energy_j") if alone and best else None
        if alone is None or best is None or joules is None or not _is_saving(joules):
            continue
        finding, place = _make_pipelining_finding(alone, best, joules), (best.point.board, best.point.workload)
        other = largest.get((*place, best.point.kind))
        if other is None or other.strength < finding.strength:
            largest[(*place, best.point.kind)] = finding
    return list(largest.values())


def _make_pipelining_finding(alone: PooledSetting, best: PooledSetting, joules: Estimate) -> SweepFinding:
    point = best.point
    terms = {"work": "training" if point.kind == "train" else "inference"}
    figures = (FindingFigure.from_ratio(joules, "energy_j"),)
    return _make_finding(
        "pipelining",
        (alone, best),
        statements=(FindingStatement("pipelining", terms, figures, format_count(point.workers, "worker")),),
        evidence=(
            f"Energy, workers 0 -> {point.workers}: {_describe_ratio(alone, best, joules, 'energy_j')}.",
            f"Both with {describe_other_knobs(point, 'workers')}.",
        ),
        strength=PIPELINING_WEIGHT * (1.0 - joules.value),
    )
