"""All findings of a sweep: where an epoch's time goes, and the findings of the other modules, merged and ranked."""

from __future__ import annotations

from collections.abc import Sequence

from fedge.characterisation.confidence_interval import Estimate, estimate_ratio
from fedge.characterisation.energy_findings import find_mode_tradeoffs, find_pipelining_savings
from fedge.characterisation.findings import (
    SHARE_NAMES,
    FindingFigure,
    FindingStatement,
    SweepFinding,
    format_count,
    format_seconds,
    merge_findings,
    rank_findings,
    render_finding,
)
from fedge.characterisation.knob_effects import KnobEffect
from fedge.characterisation.knob_findings import find_knob_findings
from fedge.characterisation.point_knobs import describe_differences, describe_setting
from fedge.characterisation.point_statistics import PointStats, PooledSetting, group_by_workload
from fedge.characterisation.reliability import find_doubtful_points, find_variability
from fedge.characterisation.sweep_plan import SweepPoint

MAX_PARTS = 3
"""Maximum number of parts of an epoch in a title."""
COMPUTES, DESCRIBED = 0.1, 0.5
"""Weights of the share of computing, and of the stall in the worst setting, which other findings address; defaults
for the ranking."""
MIN_STALL_SHARE = 0.1
"""Share of an epoch from which the setting with the largest stall is reported; a default."""


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
    single = [
        *find_knob_findings(effects, firsts),
        *find_time_shares(points),
        *find_mode_tradeoffs(points),
        *find_pipelining_savings(points),
    ]
    every = [*merge_findings(single), *find_variability(stats), *find_doubtful_points(stats)]
    return rank_findings([render_finding(one) for one in every])


def find_time_shares(points: Sequence[PooledSetting]) -> list[SweepFinding]:
    """Find, per workload and board, the parts of an epoch in the fastest setting and in the one that stalls most."""
    found: list[SweepFinding] = []
    for group in group_by_workload(points).values():
        among = [one.point for one in group]
        fastest = min(group, key=lambda one: one.stats.e2e_s.value / one.stats.samples)
        waiting = max(group, key=lambda one: one.stats.stall_s.value / one.stats.e2e_s.value)
        others = _count_rivals(fastest, [one for one in group if one is not fastest])
        rivals = f"{format_count(others, 'other')} may be as fast" if others else ""
        setting = "the fastest setting" if len(group) > 1 else "an epoch"
        found.append(_make_share_finding(fastest, setting, among, weight=1.0, rivals=rivals))
        if waiting is not fastest and _epoch_share(waiting.stats, "stall_s").value >= MIN_STALL_SHARE:
            found.append(_make_share_finding(waiting, "the setting that waits most", among, weight=DESCRIBED))
    return found


def _count_rivals(fastest: PooledSetting, others: Sequence[PooledSetting]) -> int:
    """Return how many others are not certainly slower."""
    own = fastest.stats
    ratios = [estimate_ratio(one.stats.e2e_s.scale(own.samples / one.stats.samples), own.e2e_s) for one in others]
    return sum(one is None or one.low <= 1.0 for one in ratios)


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
    return SweepFinding(
        kind="bound",
        statements=(FindingStatement("bound", {"setting": setting, "bound": bound}, figures, remark),),
        evidence=(
            *(_describe_part(stats, name, part) for name, part in shares.items()),
            f"{format_count(stats.minibatches, 'minibatch')}, {of}: {describe_setting(stats.point)}.",
        ),
        strength=weight * shares["stall_s"].value if largest == "stall_s" else COMPUTES * shares[largest].value,
        points=one.points,
        label=stats.label,
        boards=(stats.point.board,),
        workloads=(stats.point.workload,),
        work=stats.point.kind,
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
