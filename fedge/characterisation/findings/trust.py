"""Findings about how far figures may be trusted: what varies by itself, throttling, points that had not settled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fedge.characterisation.findings.finding import Finding
from fedge.characterisation.findings.words import counted, figure_in_words, percent
from fedge.characterisation.judging.effects import worst
from fedge.characterisation.judging.repeats import Apart, apart
from fedge.characterisation.judging.setting import in_words
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.judging.variability import Variability, variability
from fedge.characterisation.seen import DISTURBED_CORES

CASTS_DOUBT = 0.5
"""Strength of what casts doubt on figures, times the share of the points that it is about; chosen by us."""
SETTINGS, POINTS, NAMED = 5, 20, 8
"""So many settings, points, and values of a setting are named."""


def what_varies(stats: Sequence[PointStats]) -> list[Finding]:
    """For every board over its repeats, and for every kind of boards, how far the setting that varies most does."""
    groups: dict[tuple[str, str], list[Variability]] = defaultdict(list)
    for one in variability(stats):
        groups[one.scope, one.board].append(one)
    odd = apart(stats)
    return [_varies(group, odd) for group in groups.values()]


def _varies(group: Sequence[Variability], odd: Sequence[Apart]) -> Finding:
    """``odd`` are the settings whose repeats differ by more than their minibatches explain."""
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
    by = " and ".join(f"{named[name]} by up to {percent(one.spread)}" for name, one in most.items())
    settings = {one.points for one in group}
    keys = {key for points in settings for key in points}
    own_odd = [one for one in odd if set(one.points) <= keys] if within else []
    where = "" if len(settings) == 1 else f"in {len(own_odd)} of {len(settings)} settings "
    more = f", {where}more than the minibatches explain" if own_odd else ""
    strength = max(one.spread for one in most.values())
    return Finding(
        title=f"{what} {by.replace(' by', ' differs by', 1)}{more} ({worst([one.label for one in group])}).",
        evidence=tuple(
            _spread(one)
            for name in most
            for one in sorted((o for o in group if o.quantity == name), key=lambda one: -one.spread)[:SETTINGS]
        ),
        strength=min(strength, 1.0),
        kind=f"varies-{any_one.scope}",
        points=tuple(dict.fromkeys(key for one in most.values() for key in one.points)),
        board=board,
        label=worst([one.label for one in group]),
    )


def _spread(one: Variability) -> str:
    each = zip(one.names, one.values, strict=True)
    word = "repeat " if one.scope == "within" else ""
    figures = ", ".join(f"{word}{name} {figure_in_words(value, one.quantity)}" for name, value in each)
    if len(one.values) > NAMED:
        least, mean, most = (
            figure_in_words(value, one.quantity)
            for value in (min(one.values), sum(one.values) / len(one.values), max(one.values))
        )
        figures = f"{len(one.values)} {'repeats' if word else 'boards'} from {least} to {most}, mean {mean}"
    return (
        f"{one.workload}, {one.setting}: {figures}; (largest - least) / least {percent(one.spread)}, coefficient of "
        f"variation {percent(one.cv)}."
    )


def doubts(stats: Sequence[PointStats]) -> list[Finding]:
    """Throttling, points that had not settled, and those beside which other programs worked."""
    throttled = [one for one in stats if one.throttled]
    unsettled = [one for one in stats if not one.settled]
    protects = "slowed by the board to protect itself (throttling)"
    depends = "not settled: the figures depend on when one looked"
    others = {one.key: one.parameters.get("others_cores", 0.0) for one in stats}
    disturbed = [one for one in stats if others[one.key] > DISTURBED_CORES]
    beside = "measured while other programs kept cores busy: measure again on a quiet machine"
    busy = [f": {others[one.key]:.1f} cores" for one in disturbed]
    found = (
        _doubt("throttled", throttled, len(stats), protects, [""] * len(throttled)),
        _doubt("unsettled", unsettled, len(stats), depends, [f": {one.unsettled}" for one in unsettled]),
        _doubt("disturbed", disturbed, len(stats), beside, busy),
    )
    return [one for one in found if one]


def _doubt(kind: str, marked: Sequence[PointStats], of: int, said: str, whys: Sequence[str]) -> Finding | None:
    if not marked:
        return None
    return Finding(
        title=f"{len(marked)} of {counted(of, 'point')} {'was' if len(marked) == 1 else 'were'} {said}.",
        evidence=tuple(
            f"{one.key} ({one.point.workload} on {one.point.board}, {in_words(one.point)}){why}."
            for one, why in list(zip(marked, whys, strict=True))[:POINTS]
        ),
        strength=CASTS_DOUBT * len(marked) / of,
        kind=kind,
        points=tuple(one.key for one in marked),
        label=worst([one.label for one in marked]),
    )
