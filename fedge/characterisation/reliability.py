"""Variability and reliability: how much a setting varies between repeats and boards, and which points are doubtful."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from fedge.characterisation.confidence_interval import combine_errors, student_t
from fedge.characterisation.finding_draft import SweepFinding
from fedge.characterisation.finding_text import format_count, format_percent, format_quantity
from fedge.characterisation.knob_effects import quantity_label, weakest_label
from fedge.characterisation.point_knobs import describe_setting, kind_of_board
from fedge.characterisation.point_measurement import DISTURBED_CORES
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.steadiness import MIN_DRIFT
from fedge.characterisation.sweep_plan import SweepPoint
from fedge.types import Label

VARIABILITY_QUANTITIES = ("e2e_s", "energy_j")


@dataclass(frozen=True, slots=True)
class Variability:
    """The variation of one setting."""

    scope: Literal["within", "between"]
    """Between repeats on one board, or between boards of a kind (each board's mean over its repeats)."""
    board: str
    """The board; with scope ``between``, its kind."""
    workload: str
    setting: str
    """Description of the setting."""
    quantity: str
    """``e2e_s`` or ``energy_j``."""
    values: tuple[float, ...]
    names: tuple[str, ...]
    """Per value, the number of the repeat (from 1) or the board."""
    cv: float
    """Coefficient of variation: standard deviation divided by the mean."""
    spread: float
    """(max - min) / min."""
    label: Label
    points: tuple[str, ...]


def compute_variability(stats: Sequence[PointStats]) -> tuple[Variability, ...]:
    """Compute the variation of every repeated setting, and of every setting measured on several boards of a kind.

    Args:
        stats: Statistics of all points.

    Returns:
        One entry per setting, quantity and scope that has at least two values.
    """
    found: list[Variability] = []
    settings: dict[SweepPoint, dict[str, list[PointStats]]] = defaultdict(lambda: defaultdict(list))
    for one in sorted(stats, key=lambda s: (s.point.board, s.point.repeat)):
        point = replace(one.point, board=kind_of_board(one.point.board), repeat=0)
        settings[point][one.point.board].append(one)
    for point, boards in settings.items():
        for quantity in VARIABILITY_QUANTITIES:
            for board, own in boards.items():
                found += _measure_variability(
                    "within",
                    board=board,
                    point=point,
                    quantity=quantity,
                    groups={str(one.point.repeat + 1): [one] for one in own},
                )
            found += _measure_variability("between", board=point.board, point=point, quantity=quantity, groups=boards)
    return tuple(found)


def _measure_variability(
    scope: Literal["within", "between"],
    board: str,
    point: SweepPoint,
    quantity: str,
    groups: Mapping[str, list[PointStats]],
) -> list[Variability]:
    """Return at most one entry: over the means of groups with a known quantity, if two exist and all are positive."""
    means: dict[str, float] = {}
    for name, group in groups.items():
        known = [found.value for one in group if (found := getattr(one, quantity)) is not None]
        if known:
            means[name] = sum(known) / len(known)
    values = np.array(list(means.values()))
    if len(values) < 2 or values.min() <= 0:
        return []
    return [
        Variability(
            scope=scope,
            board=board,
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
    ]


REPEAT_CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True)
class DifferingRepeats:
    """A setting whose repeats differ by more than their minibatches explain."""

    points: tuple[str, ...]
    """Keys of all repeats."""
    spread: float
    """(max - min) / min of the repeats' epoch times."""

    @property
    def note(self) -> str:
        """The difference in words."""
        return f"repeats differ by {100 * self.spread:.0f} %, more than their minibatches explain"


def find_differing_repeats(stats: Sequence[PointStats]) -> tuple[DifferingRepeats, ...]:
    """Find the settings whose repeats differ significantly.

    Args:
        stats: Statistics of all points.

    Returns:
        Settings with two repeats whose epoch times differ by more than ``MIN_DRIFT`` and by more than chance among
            their
        minibatches explains (99 %, Bonferroni-corrected for the number of pairs).
    """
    groups: dict[SweepPoint, list[PointStats]] = defaultdict(list)
    for one in stats:
        groups[replace(one.point, repeat=0)].append(one)
    return tuple(
        DifferingRepeats(tuple(one.key for one in group), _epoch_time_spread(group))
        for group in groups.values()
        if len(group) > 1 and _repeats_differ(group)
    )


def add_repeat_notes(stats: Sequence[PointStats]) -> tuple[PointStats, ...]:
    """Return the points with a note added to every repeat of a setting whose repeats differ."""
    notes = {key: one.note for one in find_differing_repeats(stats) for key in one.points}
    return tuple(
        replace(one, notes=(*one.notes, notes[one.key])) if notes and one.key in notes else one for one in stats
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
SETTINGS, POINTS, NAMED = 5, 20, 8
"""Maximum numbers of settings, points, and values of a setting that are named."""


def find_variability(stats: Sequence[PointStats]) -> list[SweepFinding]:
    """Find, per board over its repeats and per kind over its boards, the setting that varies most.

    Args:
        stats: Statistics of all points.
    """
    groups: dict[tuple[str, str], list[Variability]] = defaultdict(list)
    for one in compute_variability(stats):
        groups[one.scope, one.board].append(one)
    odd = find_differing_repeats(stats)
    return [_make_variability_finding(group, odd) for group in groups.values()]


def _make_variability_finding(group: Sequence[Variability], odd: Sequence[DifferingRepeats]) -> SweepFinding:
    """Make the finding for one board or kind; ``odd`` are the settings whose repeats differ significantly."""
    named = {"e2e_s": "the epoch's time", "energy_j": "the energy"}
    most = {
        name: max(own, key=lambda one: one.spread)
        for name in named
        if (own := [one for one in group if one.quantity == name])
    }
    any_one = next(iter(most.values()))
    within = any_one.scope == "within"
    count = max(len(one.values) for one in group)
    board = any_one.board
    what = f"Over {count} repeats on {board}" if within else f"Between {count} boards of the kind {board}"
    by = " and ".join(f"{named[name]} by up to {format_percent(one.spread)}" for name, one in most.items())
    settings = {one.points for one in group}
    keys = {key for points in settings for key in points}
    own_odd = [one for one in odd if set(one.points) <= keys] if within else []
    where = "" if len(settings) == 1 else f"in {len(own_odd)} of {len(settings)} settings "
    more = f", {where}more than the minibatches explain" if own_odd else ""
    strength = max(one.spread for one in most.values())
    return SweepFinding(
        title=f"{what} {by.replace(' by', ' differs by', 1)}{more} ({weakest_label([one.label for one in group])}).",
        evidence=tuple(
            _describe_spread(one)
            for name in most
            for one in sorted((o for o in group if o.quantity == name), key=lambda one: -one.spread)[:SETTINGS]
        ),
        strength=min(strength, 1.0),
        kind=f"varies-{any_one.scope}",
        points=tuple(dict.fromkeys(key for one in most.values() for key in one.points)),
        board=board,
        label=weakest_label([one.label for one in group]),
    )


def _describe_spread(one: Variability) -> str:
    each = zip(one.names, one.values, strict=True)
    word = "repeat " if one.scope == "within" else ""
    figures = ", ".join(f"{word}{name} {format_quantity(value, one.quantity)}" for name, value in each)
    if len(one.values) > NAMED:
        least, mean, most = (
            format_quantity(value, one.quantity)
            for value in (min(one.values), sum(one.values) / len(one.values), max(one.values))
        )
        figures = f"{len(one.values)} {'repeats' if word else 'boards'} from {least} to {most}, mean {mean}"
    return (
        f"{one.workload}, {one.setting}: {figures}; (largest - least) / least {format_percent(one.spread)}, "
        f"coefficient of "
        f"variation {format_percent(one.cv)}."
    )


def find_doubtful_points(stats: Sequence[PointStats]) -> list[SweepFinding]:
    """Find points that were throttled, did not reach a steady state, or ran beside other programs.

    Args:
        stats: Statistics of all points.

    Returns:
        At most one finding for each of the three reasons.
    """
    throttled = [one for one in stats if one.throttled]
    unsettled = [one for one in stats if not one.settled]
    protects = "slowed by the board to protect itself (throttling)"
    depends = "not settled: the figures depend on when one looked"
    others = {one.key: one.parameters.get("others_cores", 0.0) for one in stats}
    disturbed = [one for one in stats if others[one.key] > DISTURBED_CORES]
    beside = "measured while other programs kept cores busy: measure again on a quiet machine"
    busy = [f": {others[one.key]:.1f} cores" for one in disturbed]
    found = (
        _make_doubt_finding("throttled", marked=throttled, of=len(stats), said=protects, whys=[""] * len(throttled)),
        _make_doubt_finding(
            "unsettled",
            marked=unsettled,
            of=len(stats),
            said=depends,
            whys=[f": {one.unsettled_reason}" for one in unsettled],
        ),
        _make_doubt_finding("disturbed", marked=disturbed, of=len(stats), said=beside, whys=busy),
    )
    return [one for one in found if one]


def _make_doubt_finding(
    kind: str, marked: Sequence[PointStats], of: int, said: str, whys: Sequence[str]
) -> SweepFinding | None:
    if not marked:
        return None
    return SweepFinding(
        title=f"{len(marked)} of {format_count(of, 'point')} {'was' if len(marked) == 1 else 'were'} {said}.",
        evidence=tuple(
            f"{one.key} ({one.point.workload} on {one.point.board}, {describe_setting(one.point)}){why}."
            for one, why in list(zip(marked, whys, strict=True))[:POINTS]
        ),
        strength=DOUBT_WEIGHT * len(marked) / of,
        kind=kind,
        points=tuple(one.key for one in marked),
        label=weakest_label([one.label for one in marked]),
    )
