"""Findings about time against energy: the cheapest mode, what others beat, the knee, what pipelining saves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from fedge.characterisation.findings.draft import Clause, Draft
from fedge.characterisation.findings.words import certain_change, counted, figure_in_words, interval, seconds, turning
from fedge.characterisation.judging.effects import LEAST_CHANGE, label_of, worst
from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.plane import Plane, apart, plane_of
from fedge.characterisation.judging.pooling import Pooled, by_workload
from fedge.characterisation.judging.ratios import ratio
from fedge.characterisation.judging.setting import MODE_KNOBS, held, telling
from fedge.characterisation.point import Point
from fedge.types import PowerMode

SHOWN = 10
"""So many beaten settings are named."""
OF_TWO = 0.1
"""What it counts that of two modes the top one is the cheapest, as the finding about their clocks says; by us."""
BESIDE_WORKERS = 0.5
"""What the energy that pipelining saves counts beside the findings about workers, which have it in part; by us."""


def planes(points: Sequence[Pooled]) -> list[Draft]:
    """Power modes against each other, all else the same; then all settings of a workload on the plane."""
    found: list[Draft] = []
    for group in by_workload(points).values():
        settings: dict[Point, list[Pooled]] = defaultdict(list)
        for one in group:
            if one.point.mode is not None:
                settings[replace(one.point, mode=None, repeat=0)].append(one)
        several = [own for own in settings.values() if len(own) > 1]
        if several:
            found += _top(max(several, key=len))
        plane = plane_of(group)
        if plane is not None and len(plane.settings) > 2:
            found.append(_plane(plane))
    return found


def _top(modes: Sequence[Pooled]) -> list[Draft]:
    """The top mode against the one that takes the least energy; none where that is not certain."""
    known = [one for one in modes if one.stats.energy_j is not None]
    top = next((one for one in known if all(_above(one.point.mode, other.point.mode) for other in known)), None)
    cheapest = min(known, key=_joules, default=None)
    if top is None or cheapest is None or len(known) < 2:
        return []
    if cheapest is top:
        return _top_is_cheapest(top, [one for one in known if one is not top])
    joules, times = _compared(cheapest, top, "energy_j"), _compared(cheapest, top, "e2e_s")
    if joules is None or times is None or not _saves(joules):
        return []
    return [_cheaper(top, cheapest, joules, times)]


def _joules(one: Pooled) -> float:
    return one.stats.energy_j.value if one.stats.energy_j else 0.0


def _saves(ratio: Estimate) -> bool:
    return ratio.high < 1.0 and 1.0 - ratio.value >= LEAST_CHANGE


def _above(one: PowerMode | None, other: PowerMode | None) -> bool:
    return all(getattr(one, knob) >= getattr(other, knob) for knob in MODE_KNOBS)


def _compared(after: Pooled, before: Pooled, name: str) -> Estimate | None:
    a, b = getattr(after.stats, name), getattr(before.stats, name)
    return None if a is None or b is None else ratio(a, b)


def _figure(one: Pooled, name: str) -> str:
    return figure_in_words(getattr(one.stats, name).value, name)


def _cheaper(top: Pooled, cheapest: Pooled, joules: Estimate, times: Estimate) -> Draft:
    sure = (times.low > 1.0 or times.high < 1.0) and abs(times.value - 1.0) >= LEAST_CHANGE
    figures = [certain_change(joules, "energy_j"), *([certain_change(times, "e2e_s")] if sure else [])]
    unsure = Clause("The epoch's time", said="changes by {aside}", aside=interval(times))
    return _draft(
        "energy",
        (top, cheapest),
        clauses=(Clause(_instead_of_top(cheapest, top), tuple(figures)), *([] if sure else [unsure])),
        evidence=(
            f"Energy: {_figure(top, 'energy_j')} and {_figure(cheapest, 'energy_j')}, so {interval(joules)} (95 %).",
            f"Time: {_figure(top, 'e2e_s')} and {_figure(cheapest, 'e2e_s')}, so {interval(times)} (95 %).",
            f"The top mode is {top.point.mode}; both with {held(top.point, 'mode')}.",
        ),
        strength=1.0 - joules.value,
    )


def _instead_of_top(cheapest: Pooled, top: Pooled) -> str:
    """Named by its clock where that is all in which the modes differ."""
    one, other = cheapest.point.mode, top.point.mode
    differ = [knob for knob in MODE_KNOBS if getattr(one, knob) != getattr(other, knob)]
    if len(differ) == 1:
        return f"{turning(differ[0], getattr(other, differ[0]), getattr(one, differ[0]))}, all else at the top,"
    return f"Mode {one} instead of the top mode"


def _draft(
    kind: str, settings: Sequence[Pooled], *, clauses: Sequence[Clause], evidence: Sequence[str], strength: float
) -> Draft:
    """About settings of one board and workload, and their energy."""
    point = settings[0].point
    return Draft(
        clauses=tuple(clauses),
        evidence=tuple(evidence),
        strength=strength,
        kind=kind,
        points=tuple(key for one in settings for key in one.points),
        label=worst([label_of(one.stats, "energy_j") for one in settings]),
        boards=(point.board,),
        workloads=(point.workload,),
        work=point.kind,
    )


def _top_is_cheapest(top: Pooled, others: Sequence[Pooled]) -> list[Draft]:
    """Told where it is certain of every other mode."""
    ratios = [found for one in others if (found := _compared(one, top, "energy_j"))]
    if len(ratios) < len(others) or any(one.low <= 1.0 for one in ratios):
        return []
    each = zip(others, ratios, strict=True)
    count = len(others) + 1
    return [
        _draft(
            "energy",
            (top, *others),
            clauses=(Clause(f"Of {count} modes the top one, {top.point.mode},", said="takes the least energy"),),
            evidence=[f"{one.point.mode}: {_figure(one, 'energy_j')}, so {interval(r)} (95 %)." for one, r in each],
            strength=(OF_TWO if count == 2 else 1.0) * (1.0 - 1.0 / min(one.value for one in ratios)),
        )
    ]


def _plane(plane: Plane) -> Draft:
    knee, count, beaten = plane.settings[plane.knee], len(plane.settings), len(plane.beaten)
    among = [one.point for one in plane.settings]
    named = {plane.knee, *plane.front, *(i for pair in plane.beaten[:SHOWN] for i in pair)}
    name = {i: telling(plane.settings[i].point, among) or held(plane.settings[i].point, "") for i in named}
    one = (
        f"{beaten} of {count} settings",
        f"{'takes' if beaten == 1 else 'take'} more time and more energy than another",
    )
    none = f"Of {count} settings none", "certainly takes more time and more energy than another"
    subject, said = one if beaten else none
    alike = sum(not apart(each, knee) for each in plane.settings if each is not knee)
    return _draft(
        "plane",
        [knee, *(plane.settings[i] for i in plane.front if i != plane.knee)],
        clauses=(
            Clause(
                "The best compromise of time and energy (the knee of the front)",
                said=f"is {name[plane.knee]}{{aside}}",
                aside=f" ({counted(alike, 'other')} cannot be told from it)" if alike else "",
            ),
            Clause(subject, said=said),
        ),
        evidence=(
            *(f"On the front: {name[i]}: {_costs(plane.settings[i])}." for i in plane.front),
            *(f"{_capital(name[i])} is beaten by {name[j]}." for i, j in plane.beaten[:SHOWN]),
        ),
        strength=LEAST_CHANGE * (1 + beaten / count),
    )


def _capital(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _costs(one: Pooled) -> str:
    """Per 1000 samples, as the plane has it: epochs may be cut."""
    stats = one.stats
    assert stats.energy_j is not None
    per = 1000.0 / stats.samples
    joules = figure_in_words(stats.energy_j.value * per, "energy_j")
    return f"{seconds(stats.e2e_s.value * per)} and {joules} per 1,000 samples"


def pipelining(points: Sequence[Pooled]) -> list[Draft]:
    """What loading beside the training saves in energy, against loading in it; a workload's largest saving."""
    groups: dict[Point, list[Pooled]] = defaultdict(list)
    for one in points:
        if one.stats.energy_j is not None:
            groups[replace(one.point, workers=0, repeat=0)].append(one)
    found: dict[tuple[str, str, str], Draft] = {}
    for group in groups.values():
        alone = next((one for one in group if one.point.workers == 0), None)
        best = min((one for one in group if one.point.workers), key=_joules, default=None)
        joules = _compared(best, alone, "energy_j") if alone and best else None
        if alone is None or best is None or joules is None or not _saves(joules):
            continue
        point = best.point
        finding, place = _pipelined(alone, best, joules), (point.board, point.workload, point.kind)
        if place not in found or found[place].strength < finding.strength:
            found[place] = finding
    return list(found.values())


def _pipelined(alone: Pooled, best: Pooled, joules: Estimate) -> Draft:
    workers = "1 worker" if best.point.workers == 1 else f"{best.point.workers} workers"
    figures = f"{_figure(alone, 'energy_j')} without workers, {_figure(best, 'energy_j')} with {workers}"
    work = "training" if best.point.kind == "train" else "inference"
    return _draft(
        "pipelining",
        (alone, best),
        clauses=(
            Clause(f"Loading beside the {work}{{aside}}", (certain_change(joules, "energy_j"),), aside=f" ({workers})"),
        ),
        evidence=(
            f"The energy: {figures}, so {interval(joules)} (95 %).",
            f"Both with {held(best.point, 'workers')}.",
        ),
        strength=BESIDE_WORKERS * (1.0 - joules.value),
    )
