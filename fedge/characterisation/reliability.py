"""Variability and reliability: how much a setting varies between repeats and boards, and which points are doubtful."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from fedge.characterisation.confidence_interval import combine_errors, student_t
from fedge.characterisation.findings import (
    FindingFigure,
    FindingStatement,
    SweepFinding,
    format_percent,
    format_quantity,
)
from fedge.characterisation.knob_effects import quantity_label
from fedge.characterisation.point_knobs import describe_setting, kind_of_board
from fedge.characterisation.point_measurement import DISTURBED_CORES
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.stability import MIN_DRIFT
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.types import Label, weakest_label

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
    settings: dict[SweepPoint, dict[str, list[PointStats]]] = defaultdict(lambda: defaultdict(list))
    for one in sorted(stats, key=lambda s: (s.point.board, s.point.repeat)):
        point = replace(one.point, board=kind_of_board(one.point.board), repeat=0)
        settings[point][one.point.board].append(one)
    for point, boards in settings.items():
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
    groups: dict[SweepPoint, list[PointStats]] = defaultdict(list)
    for one in stats:
        groups[replace(one.point, repeat=0)].append(one)
    return {tuple(one.key for one in own): _epoch_time_spread(own) for own in groups.values() if _repeats_differ(own)}


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
    groups: dict[tuple[str, str], list[Variability]] = defaultdict(list)
    for one in compute_variability(stats):
        groups[one.scope, one.board].append(one)
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
