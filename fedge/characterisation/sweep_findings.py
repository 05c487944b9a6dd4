"""Findings of a sweep: where an epoch's time goes, and the collection and ranking of all other findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fedge.characterisation.confidence_interval import Estimate, estimate_ratio
from fedge.characterisation.energy_findings import find_mode_tradeoffs, find_pipelining_savings
from fedge.characterisation.finding_draft import (
    FINDING_KINDS,
    Clause,
    FindingDraft,
    SweepFinding,
    SweepScope,
    merge_drafts,
    write_finding,
)
from fedge.characterisation.finding_text import format_count, format_seconds, make_share
from fedge.characterisation.knob_effects import KnobEffect, compute_effects_from_first, compute_pooled_effects
from fedge.characterisation.knob_findings import find_knob_findings
from fedge.characterisation.point_knobs import describe_differences, describe_setting
from fedge.characterisation.point_statistics import PointStats
from fedge.characterisation.pooled_settings import PooledSetting, group_by_workload, pool_repeats
from fedge.characterisation.reliability import find_doubtful_points, find_variability
from fedge.characterisation.sweep_plan import CharacterisationPlan, SweepPoint

_PART_NAMES = {"stall_s": "waiting for data", "compute_s": "computing", "copy_s": "copying", "overhead_s": "overhead"}
_BOUND_NAMES = {"stall_s": "stall", "compute_s": "compute", "copy_s": "copy", "overhead_s": "overhead"}
MAX_PARTS = 3
"""Maximum number of parts of an epoch in a title."""
COMPUTES, DESCRIBED = 0.1, 0.5
"""Weights of the share of computing, and of the stall in the worst setting, which other findings address; defaults
for the ranking."""
MIN_STALL_SHARE = 0.1
"""Share of an epoch from which the setting with the largest stall is reported; a default."""


def find_time_shares(points: Sequence[PooledSetting]) -> list[FindingDraft]:
    """Find, per workload and board, the parts of an epoch in the fastest setting and in the one with the largest stall.

    Args:
        points: Settings with pooled repeats.
    """
    found: list[FindingDraft] = []
    for group in group_by_workload(points).values():
        among = [one.point for one in group]
        fastest = min(group, key=lambda one: one.stats.e2e_s.value / one.stats.samples)
        waiting = max(group, key=lambda one: one.stats.stall_s.value / one.stats.e2e_s.value)
        rivals = _describe_rivals(fastest, [one for one in group if one is not fastest])
        which = "At the fastest setting{aside} an" if len(group) > 1 else "An"
        found.append(_draft_time_shares(fastest, which=which, among=among, weight=1.0, rivals=rivals))
        if waiting is not fastest and _epoch_share(waiting.stats, "stall_s").value >= MIN_STALL_SHARE:
            found.append(_draft_time_shares(waiting, "At the setting that waits most{aside} an", among, DESCRIBED))
    return found


def _describe_rivals(fastest: PooledSetting, others: Sequence[PooledSetting]) -> str:
    """Describe how many others are not certainly slower; empty if all are."""
    own = fastest.stats
    compared = [estimate_ratio(one.stats.e2e_s.scale(own.samples / one.stats.samples), own.e2e_s) for one in others]
    alike = sum(one is None or one.low <= 1.0 for one in compared)
    return f"{format_count(alike, 'other')} may be as fast" if alike else ""


def _draft_time_shares(
    one: PooledSetting, which: str, among: Sequence[SweepPoint], weight: float, rivals: str = ""
) -> FindingDraft:
    stats = one.stats
    shares = {name: _epoch_share(stats, name) for name in _PART_NAMES}
    order = sorted(shares, key=lambda name: -shares[name].value)
    largest = order[0]
    bound = f"is {_BOUND_NAMES[largest]}-bound:" if shares[largest].low > 0.5 else "has"
    aside = "; ".join(words for words in (describe_differences(stats.point, among), rivals) if words)
    figures = tuple(make_share(shares[name], _PART_NAMES[name]) for name in order[:MAX_PARTS])
    of = f"{format_count(len(one.points), 'point')} of {format_count(len(stats.epochs), 'epoch')}"
    return FindingDraft(
        clauses=(Clause(f"{which} epoch {bound}", figures, aside=f" ({aside})" if aside else "", form="share"),),
        evidence=(
            *(_describe_part(stats, name, part) for name, part in shares.items()),
            f"{format_count(stats.minibatches, 'minibatch')}, {of}: {describe_setting(stats.point)}.",
        ),
        strength=weight * shares["stall_s"].value if largest == "stall_s" else COMPUTES * shares[largest].value,
        kind="bound",
        points=one.points,
        label=stats.label,
        boards=(stats.point.board,),
        workloads=(stats.point.workload,),
        work=stats.point.kind,
    )


def _describe_part(stats: PointStats, name: str, of_epoch: Estimate) -> str:
    part, whole = format_seconds(getattr(stats, name).value), format_seconds(stats.e2e_s.value)
    return (
        f"{_PART_NAMES[name].capitalize()}: {part} of {whole} per epoch, {_format_share_range(of_epoch)} (95 %), "
        f"{stats.label}."
    )


def _epoch_share(stats: PointStats, name: str) -> Estimate:
    """Return a part of the epoch relative to the whole, whose own error is contained in the part already."""
    return getattr(stats, name).scale(1.0 / stats.e2e_s.value)  # type: ignore[no-any-return]


def _format_share_range(of_epoch: Estimate) -> str:
    if not of_epoch.is_bounded:
        return "of unknown scatter"
    return f"{100 * max(of_epoch.low, 0):.1f} to {100 * min(of_epoch.high, 1):.1f} %"


REPEAT_WEIGHT = 0.6
"""Weight of each further finding of a kind relative to the one before it; a default that mixes kinds at the top."""


def rank_findings(found: Sequence[SweepFinding]) -> tuple[SweepFinding, ...]:
    """Return the findings by decreasing importance; ``strength`` becomes the value by which they are ordered."""
    left = sorted(found, key=lambda one: -one.strength)
    told: Counter[str] = Counter()
    order: list[SweepFinding] = []
    for one in left:
        order.append(replace(one, strength=one.strength * REPEAT_WEIGHT ** told[one.kind]))
        told[one.kind] += 1
    return tuple(sorted(order, key=lambda one: -one.strength))


__all__ = ["FINDING_KINDS", "SweepFinding", "compute_findings", "compute_pooled_findings"]


def compute_findings(stats: Sequence[PointStats], plan: CharacterisationPlan) -> tuple[SweepFinding, ...]:
    """Compute all findings of a sweep.

    Args:
        stats: Statistics of all points.
        plan: Not used.

    Returns:
        Findings by decreasing importance.
    """
    points = pool_repeats(stats)
    return compute_pooled_findings(stats, points, compute_pooled_effects(points), compute_effects_from_first(points))


def compute_pooled_findings(
    stats: Sequence[PointStats],
    points: Sequence[PooledSetting],
    effects: Sequence[KnobEffect],
    firsts: Sequence[KnobEffect],
) -> tuple[SweepFinding, ...]:
    """Compute all findings from intermediate results.

    Args:
        stats: Statistics of all points.
        points: The result of ``pool_repeats``.
        effects: The result of ``compute_pooled_effects``.
        firsts: The result of ``compute_effects_from_first``.

    Returns:
        Findings by decreasing importance.
    """
    everything = SweepScope(frozenset(one.point.board for one in stats), frozenset(one.point.workload for one in stats))
    drafts = [
        *find_knob_findings(effects, firsts),
        *find_time_shares(points),
        *find_mode_tradeoffs(points),
        *find_pipelining_savings(points),
    ]
    found = [write_finding(one, everything) for one in merge_drafts(drafts, everything)]
    return rank_findings([*found, *find_variability(stats), *find_doubtful_points(stats)])
