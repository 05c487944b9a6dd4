"""Findings about where an epoch's time goes: waiting, computing, copying, overhead."""

from __future__ import annotations

from collections.abc import Sequence

from fedge.characterisation.findings.draft import Clause, Draft
from fedge.characterisation.findings.words import counted, seconds, share
from fedge.characterisation.judging.estimate import Estimate
from fedge.characterisation.judging.pooling import Pooled, by_workload
from fedge.characterisation.judging.ratios import ratio
from fedge.characterisation.judging.setting import in_words, telling
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.point import Point

_PARTS = {"stall_s": "waiting for data", "compute_s": "computing", "copy_s": "copying", "overhead_s": "overhead"}
_BOUND = {"stall_s": "stall", "compute_s": "compute", "copy_s": "copy", "overhead_s": "overhead"}
SHOWN = 3
"""So many parts are in a title."""
COMPUTES, DESCRIBED = 0.1, 0.5
"""What the share of computing counts, and the stall of the worst setting, which other findings mend; chosen by us."""
MUCH_STALL = 0.1
"""From this share of the epoch on the setting that waits most is told of; chosen by us."""


def where_time_goes(points: Sequence[Pooled]) -> list[Draft]:
    """For every workload and board: its fastest setting, and the one that waits most."""
    found: list[Draft] = []
    for group in by_workload(points).values():
        among = [one.point for one in group]
        fastest = min(group, key=lambda one: one.stats.e2e_s.value / one.stats.samples)
        waiting = max(group, key=lambda one: one.stats.stall_s.value / one.stats.e2e_s.value)
        rivals = _rivals(fastest, [one for one in group if one is not fastest])
        which = "At the fastest setting{aside} an" if len(group) > 1 else "An"
        found.append(_goes(fastest, which, among, 1.0, rivals))
        if waiting is not fastest and _share(waiting.stats, "stall_s").value >= MUCH_STALL:
            found.append(_goes(waiting, "At the setting that waits most{aside} an", among, DESCRIBED))
    return found


def _rivals(fastest: Pooled, others: Sequence[Pooled]) -> str:
    """How many others are not certainly slower, in words; empty where all are."""
    own = fastest.stats
    compared = [ratio(one.stats.e2e_s.times(own.samples / one.stats.samples), own.e2e_s) for one in others]
    alike = sum(one is None or one.low <= 1.0 for one in compared)
    return f"{counted(alike, 'other')} may be as fast" if alike else ""


def _goes(one: Pooled, which: str, among: Sequence[Point], weight: float, rivals: str = "") -> Draft:
    stats = one.stats
    shares = {name: _share(stats, name) for name in _PARTS}
    order = sorted(shares, key=lambda name: -shares[name].value)
    largest = order[0]
    bound = f"is {_BOUND[largest]}-bound:" if shares[largest].low > 0.5 else "has"
    aside = "; ".join(words for words in (telling(stats.point, among), rivals) if words)
    figures = tuple(share(shares[name], _PARTS[name]) for name in order[:SHOWN])
    of = f"{counted(len(one.points), 'point')} of {counted(len(stats.epochs), 'epoch')}"
    return Draft(
        clauses=(Clause(f"{which} epoch {bound}", figures, aside=f" ({aside})" if aside else "", form="share"),),
        evidence=(
            *(_evidence(stats, name, part) for name, part in shares.items()),
            f"{counted(stats.minibatches, 'minibatch')}, {of}: {in_words(stats.point)}.",
        ),
        strength=weight * shares["stall_s"].value if largest == "stall_s" else COMPUTES * shares[largest].value,
        kind="bound",
        points=one.points,
        label=stats.label,
        boards=(stats.point.board,),
        workloads=(stats.point.workload,),
        work=stats.point.kind,
    )


def _evidence(stats: PointStats, name: str, of_epoch: Estimate) -> str:
    part, whole = seconds(getattr(stats, name).value), seconds(stats.e2e_s.value)
    return f"{_PARTS[name].capitalize()}: {part} of {whole} per epoch, {_range(of_epoch)} (95 %), {stats.label}."


def _share(stats: PointStats, name: str) -> Estimate:
    """A part of the epoch; the epoch's own error is in the part already."""
    return getattr(stats, name).times(1.0 / stats.e2e_s.value)  # type: ignore[no-any-return]


def _range(of_epoch: Estimate) -> str:
    if not of_epoch.bounded:
        return "of unknown scatter"
    return f"{100 * max(of_epoch.low, 0):.1f} to {100 * min(of_epoch.high, 1):.1f} %"
