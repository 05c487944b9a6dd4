"""Compare one round with baselines and an oracle by the true costs, for the same boards and shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedge.experiment import PolicySpec
from fedge.studies.fleet import fleet_baselines, fleet_costs, fleet_oracle
from fedge.studies.fleet.fleet_baselines import cost_at_maxn, cost_at_maxn_waiting_low
from fedge.studies.fleet.fleet_costs import BoardTruth, FleetCost, compute_true_cost
from fedge.telemetry.store_records import RoundRow
from fedge.types import Front, RoundReport

LATE_TOLERANCE = 0.01
"""Relative excess over a deadline from which it counts as missed."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundComparison:
    """The true cost of one round, and of the alternatives for the same boards and shares."""

    round: int
    deadline_s: float | None
    played_s: float
    played_j: float
    """Length and energy of the round as measured, noise and outliers included."""
    chosen: FleetCost
    oracle: FleetCost
    every: FleetCost
    """The oracle that may take implausible modes too."""
    at_length: FleetCost
    """The oracle with a round at least as long as the actual one: the least energy that was possible."""
    maxn: FleetCost
    maxn_low: FleetCost
    """All boards at MAXN, waiting in their lowest mode."""
    preset: FleetCost
    """Every board in its best preset, MAXN included, within the policy's limit on the round's length."""
    capped: FleetCost
    """Every board in its best preset but MAXN, with no limit on the round's length."""
    missed: int
    missed_played: int
    """Boards that end more than ``LATE_TOLERANCE`` after the deadline, by the true costs and as measured."""
    objective: float | None
    oracle_objective: float | None
    every_objective: float | None
    """The policy's objective, of the choice and of the oracles; None for a policy that minimises nothing."""
    limits_kept: bool = True
    """Whether the oracle's plan keeps the policy's limits; if not, its objective is no reference."""
    clients: int | None = None
    """Boards of the round, if costs are summed up by entries of the fleet; None if they are by board."""

    @property
    def deadlines(self) -> int:
        """Return the number of boards that had a deadline."""
        if self.deadline_s is None:
            return 0
        return len(self.chosen.busy_s) if self.clients is None else self.clients


@dataclass(frozen=True, slots=True, eq=False)
class _OracleInputs:
    """The boards of a round as the oracle sees them: true fronts, steps, joules of the radio."""

    fronts: Mapping[str, Front]
    steps: Mapping[str, int]
    radio_j: Mapping[str, float]

    def plan_by_policy(self, policy: PolicySpec, else_s: float) -> FleetCost:
        """Return the cost of the round as the policy's own planner would plan it."""
        work = fleet_oracle.plan_oracle_work(self.fronts, self.steps, policy, else_s)
        return fleet_oracle.cost_waiting_in_lowest_mode(self.fronts, self.radio_j, work)

    def plan_within(self, length_s: float) -> FleetCost:
        """Return the cost of the round of least energy that is at most ``length_s`` long."""
        work = {
            b: fleet_oracle.find_least_energy_work(front, self.steps[b], length_s) for b, front in self.fronts.items()
        }
        return fleet_oracle.cost_waiting_in_lowest_mode(self.fronts, self.radio_j, work)


def compare_round(
    row: RoundRow, reports: Mapping[str, RoundReport], truths: Mapping[str, BoardTruth], policy: PolicySpec
) -> RoundComparison:
    """Compare one round with baselines and the oracle by the true costs.

    The oracle plans like the policy, from true fronts. If the policy's rounds are not planned, it spends the least
    energy in the round's own length.

    Args:
        row: The server's record of the round.
        reports: Reports of emulated boards; those without a true front are left out.
        truths: The boards' true figures.
        policy: The policy of the run.
    """
    told = {board: report.true_front for board, report in reports.items() if report.true_front is not None}
    steps, radio_j = {b: truths[b].steps for b in told}, {b: reports[b].link.radio_j for b in told}
    fronts = {board: fleet_oracle.filter_plausible_points(front, truths[board]) for board, front in told.items()}
    boards = _OracleInputs(fronts, steps, radio_j)
    chosen, maxn = compute_true_cost(reports, truths), cost_at_maxn(fronts, radio_j)
    best = boards.plan_by_policy(policy, chosen.round_s)
    every = _OracleInputs(told, steps, radio_j).plan_by_policy(policy, chosen.round_s)
    late_s = math.inf if row.deadline_s is None else row.deadline_s * (1.0 + LATE_TOLERANCE)
    preset, capped = _cost_presets(boards, truths, policy, maxn)
    return RoundComparison(
        round=row.round,
        deadline_s=row.deadline_s,
        played_s=row.round_s,
        played_j=row.energy_j,
        chosen=chosen,
        oracle=best,
        at_length=boards.plan_within(max(best.round_s, chosen.round_s)),
        every=every,
        maxn=maxn,
        maxn_low=cost_at_maxn_waiting_low(fronts, radio_j),
        preset=preset,
        capped=capped,
        missed=sum(busy_s > late_s for busy_s in chosen.busy_s.values()),
        missed_played=sum(report.busy_s > late_s for report in reports.values()),
        objective=fleet_costs.compute_objective(policy, chosen, maxn),
        oracle_objective=fleet_costs.compute_objective(policy, best, maxn),
        every_objective=fleet_costs.compute_objective(policy, every, maxn),
        limits_kept=fleet_oracle.can_keep_limits(fronts, policy),
    )


def _cost_presets(
    boards: _OracleInputs, truths: Mapping[str, BoardTruth], policy: PolicySpec, maxn: FleetCost
) -> tuple[FleetCost, FleetCost]:
    """Return the best presets within the policy's limit, and the best but MAXN, by the policy's objective."""

    def aim(spent: FleetCost) -> float:
        return fleet_costs.compute_objective_or_balance(policy, spent, maxn)

    options = {board: fleet_baselines.list_preset_work(front, truths[board]) for board, front in boards.fronts.items()}
    capped = {board: fleet_baselines.exclude_maxn(of_board) for board, of_board in options.items()}
    return (
        fleet_baselines.find_best_presets(options, boards.radio_j, fleet_costs.max_round_s(policy, maxn.round_s), aim),
        fleet_baselines.find_best_presets(capped, boards.radio_j, math.inf, aim),
    )
