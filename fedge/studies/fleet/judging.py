"""One round judged by the truth: what was chosen, and what others would have chosen for the same boards and shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedge.experiment import PolicySpec
from fedge.studies.fleet import aims, oracle, presets
from fedge.studies.fleet.costs import Spent, Truth, worth
from fedge.studies.fleet.maxn import at_maxn, at_maxn_waiting_low
from fedge.telemetry.rows import RoundRow
from fedge.types import Front, RoundReport

LATE = 0.01
"""A deadline is missed by more than this share of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """One round of a run: what was chosen, and what others would have chosen for the same boards and shares."""

    round: int
    deadline_s: float | None
    played_s: float
    played_j: float
    """The round's length and energy as it was measured, noise and outliers included."""
    chosen: Spent
    oracle: Spent
    every: Spent
    """The oracle that may take implausible modes too."""
    at_length: Spent
    """The oracle with at least as long a round as was taken: the least energy that it could have had."""
    maxn: Spent
    maxn_low: Spent
    """All boards at MAXN, waiting in their lowest mode."""
    preset: Spent
    """Every board in its best preset within the policy's limit on the round's length, MAXN among them."""
    capped: Spent
    """Every board in its best preset but MAXN, however long the round gets."""
    missed: int
    missed_played: int
    """Boards that end more than ``LATE`` after the deadline: by what was chosen, and as it was measured."""
    objective: float | None
    oracle_objective: float | None
    every_objective: float | None
    """What the policy minimises, of what was chosen and of the oracles; None for a policy that minimises nothing."""
    limits_kept: bool = True
    """Whether the oracle's plan keeps the policy's limits; where it does not, boards and oracle give in elsewhere."""


@dataclass(frozen=True, slots=True, eq=False)
class _Boards:
    """The boards of a round as the oracle sees them: true fronts, minibatches, joules of the radio."""

    fronts: Mapping[str, Front]
    steps: Mapping[str, int]
    radio_j: Mapping[str, float]

    def planned(self, policy: PolicySpec, else_s: float) -> Spent:
        """The round as the policy's own planner would have it."""
        work = oracle.planned(self.fronts, self.steps, policy, else_s)
        return oracle.waiting_low(self.fronts, self.radio_j, work)

    def within(self, length_s: float) -> Spent:
        """The round of least energy that is at most ``length_s`` long."""
        work = {b: oracle.least_energy(front, self.steps[b], length_s) for b, front in self.fronts.items()}
        return oracle.waiting_low(self.fronts, self.radio_j, work)


def judge(row: RoundRow, reports: Mapping[str, RoundReport], truths: Mapping[str, Truth], policy: PolicySpec) -> Judged:
    """One round judged by the truth; ``reports`` are of emulated boards, ``row`` is what the server wrote of it.

    The oracle plans like the policy, from true fronts. Where the policy's rounds are not planned, the oracle spends the
    least energy in the round's own length.
    """
    told = {board: report.true_front for board, report in reports.items() if report.true_front is not None}
    steps, radio_j = {b: truths[b].steps for b in told}, {b: reports[b].link.radio_j for b in told}
    fronts = {board: oracle.plausible(front, truths[board]) for board, front in told.items()}
    boards = _Boards(fronts, steps, radio_j)
    chosen, maxn = worth(reports, truths), at_maxn(fronts, radio_j)
    best = boards.planned(policy, chosen.round_s)
    every = _Boards(told, steps, radio_j).planned(policy, chosen.round_s)
    late_s = math.inf if row.deadline_s is None else row.deadline_s * (1.0 + LATE)
    preset, capped = _presets(boards, truths, policy, maxn)
    return Judged(
        round=row.round,
        deadline_s=row.deadline_s,
        played_s=row.round_s,
        played_j=row.energy_j,
        chosen=chosen,
        oracle=best,
        at_length=boards.within(max(best.round_s, chosen.round_s)),
        every=every,
        maxn=maxn,
        maxn_low=at_maxn_waiting_low(fronts, radio_j),
        preset=preset,
        capped=capped,
        missed=sum(busy_s > late_s for busy_s in chosen.busy_s.values()),
        missed_played=sum(report.busy_s > late_s for report in reports.values()),
        objective=aims.objective(policy, chosen, maxn),
        oracle_objective=aims.objective(policy, best, maxn),
        every_objective=aims.objective(policy, every, maxn),
        limits_kept=oracle.keeps_limits(fronts, policy),
    )


def _presets(boards: _Boards, truths: Mapping[str, Truth], policy: PolicySpec, maxn: Spent) -> tuple[Spent, Spent]:
    """The best presets within the policy's limit, and the best but MAXN, by what the policy aims at."""

    def aim(spent: Spent) -> float:
        return aims.aim(policy, spent, maxn)

    options = {board: presets.pinned(front, truths[board]) for board, front in boards.fronts.items()}
    capped = {board: presets.capped(of_board) for board, of_board in options.items()}
    return (
        presets.best_presets(options, boards.radio_j, aims.longest_s(policy, maxn.round_s), aim),
        presets.best_presets(capped, boards.radio_j, math.inf, aim),
    )
