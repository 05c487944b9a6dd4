"""All findings of a sweep: parts of epochs, modes, the time-energy plane, loader workers, variability, reliability."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from fedge.characterisation.findings import (
    SHARE_NAMES,
    FindingFigure,
    FindingStatement,
    SweepFinding,
    format_interval,
    format_percent,
    format_quantity,
    format_seconds,
    make_finding,
    merge_findings,
    rank_findings,
    render_finding,
)
from fedge.characterisation.knob_effects import MIN_CHANGE, KnobEffect, find_knob_findings, get_quantity, quantity_label
from fedge.characterisation.point_measurement import DISTURBED_CORES
from fedge.characterisation.point_statistics import (
    PointStats,
    PooledSetting,
    group_by_workload,
    group_repeats,
)
from fedge.characterisation.stability import MIN_DRIFT
from fedge.characterisation.sweep_plan import (
    MODE_KNOBS,
    SweepPoint,
    describe_differences,
    describe_other_knobs,
    describe_setting,
    kind_of_board,
)
from fedge.confidence_interval import Estimate, combine_errors, estimate_ratio, student_t
from fedge.errors import format_count
from fedge.groups import group_by
from fedge.pareto import front_mask
from fedge.types import Floats, Label, PowerMode, weakest_label

VARIABILITY_QUANTITIES = ("e2e_s", "energy_j")


@dataclass(frozen=True, slots=True)
class Variability:
    """The variation of one setting.

    Attributes:
        scope: Between repeats on one board (``within``), or between boards of a kind (each board's mean).
        board: The board; with scope ``between``, its kind.
        quantity: ``e2e_s`` or ``energy_j``.
        values: The compared values in seconds or joules.
        names: Per value, the number of the repeat (from 1) or the board.
        cv: Coefficient of variation: standard deviation divided by the mean.
        spread: (max - min) / min.
    """

    scope: Literal["within", "between"]
    board: str
    workload: str
    setting: str
    quantity: str
    values: tuple[float, ...]
    names: tuple[str, ...]
    cv: float
    spread: float
    label: Label
    points: tuple[str, ...]


def compute_variability(stats: Sequence[PointStats]) -> tuple[Variability, ...]:
    """Compute the variation of every setting that was repeated, or measured on several boards of a kind."""
    found: list[Variability | None] = []
    ordered = sorted(stats, key=lambda one: (one.point.board, one.point.repeat))
    settings = group_by(ordered, lambda one: replace(one.point, board=kind_of_board(one.point.board), repeat=0))
    for point, group in settings.items():
        boards = group_by(group, lambda one: one.point.board)
        for quantity in VARIABILITY_QUANTITIES:
            for board, own in boards.items():
                repeats = {str(one.point.repeat + 1): [one] for one in own}
                found.append(_measure_variability("within", replace(point, board=board), quantity, repeats))
            found.append(_measure_variability("between", point, quantity, boards))
    return tuple(one for one in found if one is not None)


def _measure_variability(
    scope: Literal["within", "between"], point: SweepPoint, quantity: str, groups: Mapping[str, list[PointStats]]
) -> Variability | None:
    """Return the variation of the means of groups with a known quantity; None unless two exist and all are positive."""
    means: dict[str, float] = {}
    for name, group in groups.items():
        known = [value.value for one in group if (value := getattr(one, quantity)) is not None]
        if known:
            means[name] = sum(known) / len(known)
    values = np.array(list(means.values()))
    if len(values) < 2 or values.min() <= 0:
        return None
    return Variability(
        scope=scope,
        board=point.board,
        workload=point.workload,
        setting=describe_setting(point),
        quantity=quantity,
        values=tuple(means.values()),
        names=tuple(means),
        cv=float(values.std(ddof=1) / values.mean()),
        spread=float(values.max() / values.min() - 1.0),
        label=weakest_label([quantity_label(one, quantity) for group in groups.values() for one in group]),
        points=tuple(one.key for group in groups.values() for one in group),
    )


REPEAT_CONFIDENCE = 0.99


def find_differing_repeats(stats: Sequence[PointStats]) -> dict[tuple[str, ...], float]:
    """Find settings with two repeats whose epoch times differ significantly; return their spread by the points' keys.

    They differ by more than ``MIN_DRIFT``, and by more than chance among their minibatches explains (99 %,
    Bonferroni-corrected for the number of pairs).
    """
    differing = filter(_repeats_differ, group_repeats(stats).values())
    return {tuple(one.key for one in own): _epoch_time_spread(own) for own in differing}


def add_repeat_notes(stats: Sequence[PointStats]) -> tuple[PointStats, ...]:
    """Return the points with a note added to every repeat of a setting whose repeats differ."""
    spreads = {key: spread for points, spread in find_differing_repeats(stats).items() for key in points}
    text = "repeats differ by {:.0f} %, more than their minibatches explain"
    return tuple(
        replace(one, notes=(*one.notes, text.format(100 * spreads[one.key]))) if one.key in spreads else one
        for one in stats
    )


def _epoch_time_spread(group: Sequence[PointStats]) -> float:
    times = [one.e2e_s.value for one in group]
    return max(times) / min(times) - 1.0 if min(times) > 0 else 0.0


def _repeats_differ(group: Sequence[PointStats]) -> bool:
    if _epoch_time_spread(group) <= MIN_DRIFT:
        return False
    known = [(one.e2e_s.value, *of) for one in group if (of := _within_repeat_error(one)) is not None]
    pairs = list(combinations(known, 2))
    sure = 1.0 - (1.0 - REPEAT_CONFIDENCE) / max(len(pairs), 1)
    for (a, se_a, of_a), (b, se_b, of_b) in pairs:
        se, freedom = combine_errors([(se_a, of_a), (se_b, of_b)])
        if abs(a - b) > max(student_t(math.floor(freedom), sure) * se, MIN_DRIFT * min(a, b)):
            return True
    return False


def _within_repeat_error(one: PointStats) -> tuple[float, float] | None:
    """Return standard error and degrees of freedom of a repeat's epoch time by its minibatches, or None."""
    epochs = one.by_epoch.get("e2e_s", ())
    if not epochs or not all(epoch.is_bounded for epoch in epochs):
        return None
    return combine_errors([(epoch.standard_error / len(epochs), epoch.n - 1) for epoch in epochs])


DOUBT_WEIGHT = 0.5
"""Strength of a finding about doubtful points, per share of the points; a default that ranks it below a knob with
an equally large effect."""
MAX_SETTINGS, MAX_POINTS, MAX_VALUES = 5, 20, 8
"""Maximum numbers of settings, points, and values of a setting that are named."""


def find_variability(stats: Sequence[PointStats]) -> list[SweepFinding]:
    """Find, per board over its repeats and per kind over its boards, the setting that varies most."""
    groups = group_by(compute_variability(stats), lambda one: (one.scope, one.board))
    differing = find_differing_repeats(stats)
    return [_make_variability_finding(group, differing) for group in groups.values()]


def _make_variability_finding(group: Sequence[Variability], differing: Collection[tuple[str, ...]]) -> SweepFinding:
    """Make the finding for one board or kind; ``differing`` are the settings whose repeats differ significantly."""
    ordered = {
        name: sorted((one for one in group if one.quantity == name), key=lambda one: -one.spread)
        for name in VARIABILITY_QUANTITIES
    }
    most = [own[0] for own in ordered.values() if own]
    settings = {one.points for one in group}
    keys = {key for points in settings for key in points}
    count = sum(set(points) <= keys for points in differing) if most[0].scope == "within" else 0
    where = f"in {count} of {len(settings)} settings " if len(settings) > 1 else ""
    statement = FindingStatement(
        f"varies-{most[0].scope}",
        {"count": max(len(one.values) for one in group)},
        tuple(FindingFigure(one.quantity, one.spread, one.spread) for one in most),
        remark=f"{where}more than the minibatches explain" if count else "",
    )
    return SweepFinding(
        kind=f"varies-{most[0].scope}",
        statements=(statement,),
        evidence=tuple(_describe_spread(one) for own in ordered.values() for one in own[:MAX_SETTINGS]),
        strength=min(max(one.spread for one in most), 1.0),
        points=tuple(dict.fromkeys(key for one in most for key in one.points)),
        label=weakest_label([one.label for one in group]),
        boards=(most[0].board,),
    )


def _describe_spread(one: Variability) -> str:
    noun = "repeat" if one.scope == "within" else "board"
    texts = [format_quantity(value, one.quantity) for value in one.values]
    figures = ", ".join(f"{noun} {name} {text}" for name, text in zip(one.names, texts, strict=True))
    if len(texts) > MAX_VALUES:
        ends = (min(one.values), max(one.values), sum(one.values) / len(one.values))
        least, most, mean = (format_quantity(value, one.quantity) for value in ends)
        figures = f"{len(texts)} {noun}s from {least} to {most}, mean {mean}"
    return (
        f"{one.workload}, {one.setting}: {figures}; (largest - least) / least {format_percent(one.spread)}, "
        f"coefficient of variation {format_percent(one.cv)}."
    )


def find_doubtful_points(stats: Sequence[PointStats]) -> list[SweepFinding]:
    """Find points that were throttled, not steady, or beside other programs; one finding for each reason."""
    others = {one.key: one.parameters.get("others_cores", 0.0) for one in stats}
    reasons = {
        "throttled": {one.key: "" for one in stats if one.throttled},
        "unsettled": {one.key: f": {one.unsettled_reason}" for one in stats if not one.settled},
        "disturbed": {key: f": {cores:.1f} cores" for key, cores in others.items() if cores > DISTURBED_CORES},
    }
    return [_make_doubt_finding(kind, stats, why) for kind, why in reasons.items() if why]


def _make_doubt_finding(kind: str, stats: Sequence[PointStats], reasons: Mapping[str, str]) -> SweepFinding:
    marked = [one for one in stats if one.key in reasons]
    return SweepFinding(
        kind=kind,
        statements=(FindingStatement(kind, {"count": len(marked), "total": len(stats)}),),
        evidence=tuple(
            f"{one.key} ({one.point.workload} on {one.point.board}, {describe_setting(one.point)}){reasons[one.key]}."
            for one in marked[:MAX_POINTS]
        ),
        strength=DOUBT_WEIGHT * len(marked) / len(stats),
        points=tuple(one.key for one in marked),
        label=weakest_label([one.label for one in marked]),
    )


MAX_PARTS = 3
"""Maximum number of parts of an epoch in a title."""
COMPUTES, DESCRIBED = 0.1, 0.5
"""Weights of the share of computing, and of the stall in the worst setting, which other findings address; defaults
for the ranking."""
MIN_STALL_SHARE = 0.1
"""Share of an epoch from which the setting with the largest stall is reported; a default."""
MAX_DOMINATED = 10
"""Maximum number of dominated settings that are named."""
TWO_MODES_WEIGHT = 0.1
"""Weight of the finding that the top one of two modes is the cheapest; low, since the finding about their clocks
says so."""
PIPELINING_WEIGHT = 0.5
"""Weight of the energy saved by pipelining; reduced, since the findings about workers contain a part of it."""


def compute_pooled_findings(
    stats: Sequence[PointStats],
    points: Sequence[PooledSetting],
    effects: Sequence[KnobEffect],
    firsts: Sequence[KnobEffect],
) -> tuple[SweepFinding, ...]:
    """Compute all findings by decreasing importance.

    ``points`` are the pooled repeats of ``stats``, ``effects`` and ``firsts`` those of ``knob_effects``.
    """
    groups = group_by_workload(points).values()
    single = [
        *find_knob_findings(effects, firsts),
        *(found for group in groups for found in _find_time_shares(group)),
        *(found for group in groups for found in _find_mode_tradeoffs(group)),
        *_find_pipelining_savings(points),
    ]
    every = [*merge_findings(single), *find_variability(stats), *find_doubtful_points(stats)]
    return rank_findings([render_finding(one) for one in every])


def _find_time_shares(group: Sequence[PooledSetting]) -> Iterator[SweepFinding]:
    """Find the parts of an epoch in the fastest setting of a workload and board, and in the one that stalls most."""
    among = [one.point for one in group]
    fastest = min(group, key=lambda one: one.stats.e2e_s.value / one.stats.samples)
    waiting = max(group, key=lambda one: _epoch_share(one.stats, "stall_s").value)
    ratios = [_compare(one, fastest, "sample_s") for one in group if one is not fastest]
    rivals = sum(one is None or one.low <= 1.0 for one in ratios)
    remark = f"{format_count(rivals, 'other')} may be as fast" if rivals else ""
    setting = "the fastest setting" if len(group) > 1 else "an epoch"
    yield _make_share_finding(fastest, setting, among, weight=1.0, rivals=remark)
    if waiting is not fastest and _epoch_share(waiting.stats, "stall_s").value >= MIN_STALL_SHARE:
        yield _make_share_finding(waiting, "the setting that waits most", among, weight=DESCRIBED)


def _make_share_finding(
    one: PooledSetting, setting: str, among: Sequence[SweepPoint], *, weight: float, rivals: str = ""
) -> SweepFinding:
    stats = one.stats
    shares = {name: _epoch_share(stats, name) for name in SHARE_NAMES}
    order = sorted(shares, key=lambda name: -shares[name].value)
    largest = order[0]
    bound = f"{largest.removesuffix('_s')}-bound" if shares[largest].low > 0.5 else "bound by several parts"
    figures = tuple(FindingFigure.from_share(shares[name], name) for name in order[:MAX_PARTS])
    remark = "; ".join(filter(None, (describe_differences(stats.point, among), rivals)))
    of = f"{format_count(len(one.points), 'point')} of {format_count(len(stats.epochs), 'epoch')}"
    return make_finding(
        "bound",
        [one],
        FindingStatement("bound", {"setting": setting, "bound": bound}, figures, remark),
        evidence=(
            *(_describe_part(stats, name, part) for name, part in shares.items()),
            f"{format_count(stats.minibatches, 'minibatch')}, {of}: {describe_setting(stats.point)}.",
        ),
        strength=weight * shares["stall_s"].value if largest == "stall_s" else COMPUTES * shares[largest].value,
        label=stats.label,
    )


def _describe_part(stats: PointStats, name: str, share: Estimate) -> str:
    part, whole = format_seconds(getattr(stats, name).value), format_seconds(stats.e2e_s.value)
    span = "of unknown scatter"
    if share.is_bounded:
        span = f"{100 * max(share.low, 0):.1f} to {100 * min(share.high, 1):.1f} % (95 %)"
    return f"{SHARE_NAMES[name].capitalize()}: {part} of {whole} per epoch, {span}, {stats.label}."


def _epoch_share(stats: PointStats, name: str) -> Estimate:
    """Return a part of the epoch relative to the whole, whose own error is contained in the part already."""
    part: Estimate = getattr(stats, name)
    return part.scale(1.0 / stats.e2e_s.value)


def _find_mode_tradeoffs(group: Sequence[PooledSetting]) -> Iterator[SweepFinding]:
    """Compare power modes with everything else equal, then all settings on the time-energy plane."""
    metered = (one for one in group if one.point.mode is not None and one.stats.energy_j is not None)
    alike = group_by(metered, lambda one: replace(one.point, mode=None, repeat=0))
    known = max(alike.values(), key=len, default=[])
    top = next((one for one in known if all(_is_at_least(one.point.mode, other.point.mode) for other in known)), None)
    if top is not None and len(known) > 1:
        cheapest = min(known, key=_epoch_energy_j)
        others = [one for one in known if one is not top]
        yield from _state_top_mode(top, others) if cheapest is top else _state_cheaper_mode(top, cheapest)
    plane = compute_plane(group)
    if plane is not None and len(plane.settings) > 2:
        yield _make_plane_finding(plane)


def _is_at_least(one: PowerMode | None, other: PowerMode | None) -> bool:
    return all(getattr(one, knob) >= getattr(other, knob) for knob in MODE_KNOBS)


def _state_cheaper_mode(top: PooledSetting, cheapest: PooledSetting) -> Iterator[SweepFinding]:
    """State what the mode of least energy saves against the top one, if that is certain."""
    joules, times = (_compare(cheapest, top, name) for name in ("energy_j", "e2e_s"))
    if joules is None or times is None or not _is_saving(joules):
        return
    is_certain = (times.low > 1.0 or times.high < 1.0) and abs(times.value - 1.0) >= MIN_CHANGE
    ratios = [(joules, "energy_j"), *([(times, "e2e_s")] if is_certain else [])]
    one, other = cheapest.point.mode, top.point.mode
    knobs = [knob for knob in MODE_KNOBS if getattr(one, knob) != getattr(other, knob)]
    template, terms = "cheaper-mode", {"mode": f"mode {one}"}
    if len(knobs) == 1:
        (knob,) = knobs
        template, terms = "cheaper-clock", {"knob": knob, "before": getattr(other, knob), "after": getattr(one, knob)}
    statement = FindingStatement(template, terms, tuple(FindingFigure.from_ratio(*ratio) for ratio in ratios))
    unclear = () if is_certain else (FindingStatement("time-unclear", {"interval": format_interval(times)}),)
    yield _make_energy_finding(
        "energy",
        (top, cheapest),
        statement,
        *unclear,
        evidence=(
            f"Energy: {_describe_ratio(top, cheapest, joules, 'energy_j')}.",
            f"Time: {_describe_ratio(top, cheapest, times, 'e2e_s')}.",
            f"The top mode is {other}; both with {describe_other_knobs(top.point, 'mode')}.",
        ),
        strength=1.0 - joules.value,
    )


def _state_top_mode(top: PooledSetting, others: Sequence[PooledSetting]) -> Iterator[SweepFinding]:
    """State that the top mode takes the least energy, if it certainly does against every other mode."""
    ratios = [found for one in others if (found := _compare(one, top, "energy_j"))]
    if len(ratios) < len(others) or any(one.low <= 1.0 for one in ratios):
        return
    count = len(others) + 1
    yield _make_energy_finding(
        "energy",
        (top, *others),
        FindingStatement("top-mode", {"mode": str(top.point.mode), "count": count}),
        evidence=[
            f"{one.point.mode}: {_describe_ratio(top, one, ratio, 'energy_j')}."
            for one, ratio in zip(others, ratios, strict=True)
        ],
        strength=(TWO_MODES_WEIGHT if count == 2 else 1.0) * (1.0 - 1.0 / min(one.value for one in ratios)),
    )


def _find_pipelining_savings(points: Sequence[PooledSetting]) -> Iterable[SweepFinding]:
    """Find how much energy loader workers save against loading in the training process; the largest per workload."""
    metered = (one for one in points if one.stats.energy_j is not None)
    largest: dict[tuple[object, ...], SweepFinding] = {}
    for group in group_by(metered, lambda one: replace(one.point, workers=0, repeat=0)).values():
        alone = next((one for one in group if one.point.workers == 0), None)
        best = min((one for one in group if one.point.workers), key=_epoch_energy_j, default=None)
        joules = _compare(best, alone, "energy_j") if alone and best else None
        if alone is None or best is None or joules is None or not _is_saving(joules):
            continue
        point, strength = best.point, PIPELINING_WEIGHT * (1.0 - joules.value)
        place = point.board, point.workload, point.kind
        if place in largest and largest[place].strength >= strength:
            continue
        terms = {"work": "training" if point.kind == "train" else "inference"}
        figures = (FindingFigure.from_ratio(joules, "energy_j"),)
        largest[place] = _make_energy_finding(
            "pipelining",
            (alone, best),
            FindingStatement("pipelining", terms, figures, format_count(point.workers, "worker")),
            evidence=(
                f"Energy, workers 0 -> {point.workers}: {_describe_ratio(alone, best, joules, 'energy_j')}.",
                f"Both with {describe_other_knobs(point, 'workers')}.",
            ),
            strength=strength,
        )
    return largest.values()


def _make_energy_finding(
    kind: str,
    settings: Sequence[PooledSetting],
    *statements: FindingStatement,
    evidence: Iterable[str],
    strength: float,
) -> SweepFinding:
    label = weakest_label([quantity_label(one.stats, "energy_j") for one in settings])
    return make_finding(kind, settings, *statements, evidence=evidence, strength=strength, label=label)


def _epoch_energy_j(one: PooledSetting) -> float:
    return one.stats.energy_j.value if one.stats.energy_j else 0.0


def _is_saving(ratio: Estimate) -> bool:
    return ratio.high < 1.0 and 1.0 - ratio.value >= MIN_CHANGE


def _compare(after: PooledSetting, before: PooledSetting, name: str) -> Estimate | None:
    a, b = get_quantity(after.stats, name), get_quantity(before.stats, name)
    return None if a is None or b is None else estimate_ratio(a, b)


def _describe_ratio(before: PooledSetting, after: PooledSetting, ratio: Estimate, name: str) -> str:
    values = (format_quantity(getattr(one.stats, name).value, name) for one in (before, after))
    return f"{' -> '.join(values)}, {format_interval(ratio)} (95 %)"


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
    """Compute the time-energy plane; None if fewer than two settings have a known energy."""
    settings = tuple(one for one in points if one.stats.energy_j is not None and one.stats.energy_j.value > 0)
    if len(settings) < 2:
        return None
    times = np.array([one.stats.e2e_s.value / one.stats.samples for one in settings])
    joules = np.array([_epoch_energy_j(one) * (1.0 / one.stats.samples) for one in settings])
    front = np.flatnonzero(front_mask(times, joules))
    front = front[np.argsort(times[front])]
    x, y = _normalise(np.log(times[front])), _normalise(np.log(joules[front]))
    knee = int(front[np.argmax(np.round(1.0 - x - y, 12))])  # rounded, so that the chord's ends tie
    rows: tuple[int, ...] = tuple(front.tolist())
    beaten = ((i, _find_dominating(settings, rows, one)) for i, one in enumerate(settings))
    return TimeEnergyPlane(settings, rows, tuple((i, j) for i, j in beaten if j is not None), knee)


def _find_dominating(settings: Sequence[PooledSetting], front: Sequence[int], own: PooledSetting) -> int | None:
    """Return the first setting of the front that is certainly better in time and energy, or None."""
    for other in front:
        ratios = [_compare(settings[other], own, name) for name in ("sample_s", "sample_j")]
        if all(one is not None and one.high < 1.0 for one in ratios):
            return other
    return None


def _normalise(values: Floats) -> Floats:
    """Scale values to 0..1; all 0 if they are equal."""
    span = float(values.max() - values.min())
    scaled: Floats = (values - values.min()) / span if span > 0 else np.zeros_like(values)
    return scaled


def _make_plane_finding(plane: TimeEnergyPlane) -> SweepFinding:
    knee, total, dominated = plane.settings[plane.knee], len(plane.settings), len(plane.dominated)
    among = [one.point for one in plane.settings]
    named = {*plane.front, *(i for pair in plane.dominated[:MAX_DOMINATED] for i in pair)}
    names = {i: describe_differences(among[i], among) or describe_other_knobs(among[i], "") for i in named}
    similar = sum(not _certainly_differ(each, knee) for each in plane.settings if each is not knee)
    remark = f"{format_count(similar, 'other')} may be as good" if similar else ""
    return _make_energy_finding(
        "plane",
        [knee, *(plane.settings[i] for i in plane.front if i != plane.knee)],
        FindingStatement("knee", {"setting": names[plane.knee]}, remark=remark),
        FindingStatement("dominated", {"count": dominated or "none", "total": total}),
        evidence=(
            *(f"On the front: {names[i]}: {_format_costs(plane.settings[i])}." for i in plane.front),
            *(f"Dominated: {names[i]} by {names[j]}." for i, j in plane.dominated[:MAX_DOMINATED]),
        ),
        strength=MIN_CHANGE * (1 + dominated / total),
    )


def _certainly_differ(one: PooledSetting, other: PooledSetting) -> bool:
    """Return whether times per sample, or energies per sample, certainly differ."""
    ratios = (_compare(one, other, name) for name in ("sample_s", "sample_j"))
    return any(found is not None and (found.low > 1.0 or found.high < 1.0) for found in ratios)


def _format_costs(one: PooledSetting) -> str:
    """Format time and energy per 1000 samples, since epochs may be cut."""
    per = 1000.0 / one.stats.samples
    joules = format_quantity(_epoch_energy_j(one) * per, "energy_j")
    return f"{format_seconds(one.stats.e2e_s.value * per)} and {joules} per 1,000 samples"
