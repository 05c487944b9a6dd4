"""Plain-language findings about a sweep, each with its evidence, in order of how much they matter."""

from __future__ import annotations

from collections.abc import Sequence

from fedge.characterisation.findings.breakdown import where_time_goes
from fedge.characterisation.findings.draft import Everything, finding_of
from fedge.characterisation.findings.finding import KINDS, Finding
from fedge.characterisation.findings.joining import joined
from fedge.characterisation.findings.ranking import ranked
from fedge.characterisation.findings.trading import pipelining, planes
from fedge.characterisation.findings.trust import doubts, what_varies
from fedge.characterisation.findings.turning import about_knobs
from fedge.characterisation.judging.effects import Effect, effects_among, effects_from_first
from fedge.characterisation.judging.pooling import Pooled, pooled
from fedge.characterisation.judging.statistics import PointStats
from fedge.characterisation.plans.plan import Plan

__all__ = ["KINDS", "Finding", "findings_among", "findings_of"]


def findings_of(stats: Sequence[PointStats], plan: Plan) -> tuple[Finding, ...]:
    """All findings, the one that matters most first."""
    points = pooled(stats)
    return findings_among(stats, points, effects_among(points), effects_from_first(points))


def findings_among(
    stats: Sequence[PointStats], points: Sequence[Pooled], effects: Sequence[Effect], firsts: Sequence[Effect]
) -> tuple[Finding, ...]:
    """The same where it is known already what ``pooled``, ``effects_among`` and ``effects_from_first`` find."""
    everything = Everything(frozenset(one.point.board for one in stats), frozenset(one.point.workload for one in stats))
    drafts = [*about_knobs(effects, firsts), *where_time_goes(points), *planes(points), *pipelining(points)]
    found = [finding_of(one, everything) for one in joined(drafts, everything)]
    return ranked([*found, *what_varies(stats), *doubts(stats)])
