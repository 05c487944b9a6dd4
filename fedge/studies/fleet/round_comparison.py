"""Compare rounds with baselines and an oracle by the true costs of the same boards and shares; a study's row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedge.experiment import PolicySpec
from fedge.studies.fleet import fleet_costs
from fedge.studies.fleet.fleet_costs import (
    BoardTruth,
    FleetCost,
    build_round_clients,
    can_keep_limits,
    compute_true_cost,
    cost_at_maxn,
    cost_waiting_in_lowest_mode,
    exclude_maxn,
    filter_plausible_points,
    find_both_best_presets,
    find_least_energy_work,
    list_preset_work,
    plan_oracle_work,
    stack_presets,
)
from fedge.telemetry.savings import share_of_saving
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
        work = plan_oracle_work(self.fronts, self.steps, policy, else_s)
        return cost_waiting_in_lowest_mode(self.fronts, self.radio_j, work)

    def plan_within(self, length_s: float) -> FleetCost:
        """Return the cost of the round of least energy that is at most ``length_s`` long."""
        work = {b: find_least_energy_work(front, self.steps[b], length_s) for b, front in self.fronts.items()}
        return cost_waiting_in_lowest_mode(self.fronts, self.radio_j, work)


def compare_round(
    row: RoundRow, reports: Mapping[str, RoundReport], truths: Mapping[str, BoardTruth], policy: PolicySpec
) -> RoundComparison:
    """Compare one round with baselines and the oracle by the true costs; boards without a true front are left out.

    The oracle plans like the policy, from true fronts. If the policy's rounds are not planned, it spends the least
    energy in the round's own length.
    """
    told = {board: report.true_front for board, report in reports.items() if report.true_front is not None}
    steps, radio_j = {b: truths[b].steps for b in told}, {b: reports[b].link.radio_j for b in told}
    fronts = {board: filter_plausible_points(front, truths[board]) for board, front in told.items()}
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
        maxn_low=cost_at_maxn(fronts, radio_j, waits_low=True),
        preset=preset,
        capped=capped,
        missed=sum(busy_s > late_s for busy_s in chosen.busy_s.values()),
        missed_played=sum(report.busy_s > late_s for report in reports.values()),
        objective=fleet_costs.compute_objective(policy, chosen, maxn),
        oracle_objective=fleet_costs.compute_objective(policy, best, maxn),
        every_objective=fleet_costs.compute_objective(policy, every, maxn),
        limits_kept=can_keep_limits(fronts, policy),
    )


def _cost_presets(
    boards: _OracleInputs, truths: Mapping[str, BoardTruth], policy: PolicySpec, maxn: FleetCost
) -> tuple[FleetCost, FleetCost]:
    """Return the best presets within the policy's limit, and the best but MAXN."""
    options = [list_preset_work(truths[board]) for board in boards.fronts]
    tables = stack_presets(options), stack_presets([exclude_maxn(of_board) for of_board in options])
    return find_both_best_presets(build_round_clients(boards.fronts, boards.radio_j), tables, policy, maxn)


SETTLED_FROM = 10
"""Rounds before this one are counted as learning."""


@dataclass(frozen=True, slots=True, eq=False)
class FleetRun:
    """One run of a policy with a seed: its compared rounds, and the modes that boards had measured after each."""

    policy: str
    seed: int
    rounds: tuple[RoundComparison, ...]
    explored: tuple[float, ...]
    """Mean over the boards of the number of modes measured so far, after every round."""
    engine: str = "coordinator"
    """``coordinator``: every board by itself. ``columns``: boards of a kind share one posterior."""

    @property
    def row(self) -> dict[str, str | int | float | None]:
        """Figures of all rounds, then of those of learning (suffix ``_learning``) and those after (``_settled``)."""
        learning = [one for one in self.rounds if one.round < SETTLED_FROM]
        settled = [one for one in self.rounds if one.round >= SETTLED_FROM]
        return {
            "policy": self.policy,
            "seed": self.seed,
            "engine": self.engine,
            "rounds": len(self.rounds),
            **summarize_rounds(self.rounds),
            "modes_explored_mean": self.explored[-1],
            **{f"{name}_learning": value for name, value in summarize_rounds(learning).items()},
            **{f"{name}_settled": value for name, value in summarize_rounds(settled).items()},
        }


def summarize_rounds(rounds: Sequence[RoundComparison]) -> dict[str, float | None]:
    """Return means per round, sums of missed deadlines, and shares in percent.

    The objective is w R / R_maxn + (1 - w) E / E_maxn for ``balanced``, with ``time_weight`` w; E for ``least-energy``,
    ``least-energy-within-deadline`` and ``energy-budget``; R for ``fastest`` and ``fastest-within-power``.

    Returns:
        Figures by name. A figure is None without rounds or without an objective; gap and share of saving are None too
        if a round's limits cannot be kept, because the oracle then is no reference.

        - ``round_s``, ``energy_j``: R and E, also with the prefix of a baseline.
        - ``played_round_s``, ``played_energy_j``: as measured by the boards, with noise.
        - ``objective_gap_pct``, ``objective_gap_all_rows_pct``: excess of the policy's objective over that of the
          oracle, and of the oracle of all rows.
        - ``saving_pct``, ``oracle_saving_pct``: (E_maxn - E) / E_maxn, and the oracle's.
        - ``saving_share_pct``: (E_maxn - E) / (E_maxn - E*), with E* the least energy within the longer of R and the
          oracle's round; None if nothing was saved, or less than 2 % can be.
        - ``limits_out_of_reach``: rounds in which even the oracle's plan exceeds the policy's limits.
        - ``deadlines``, ``deadlines_missed``, ``deadlines_missed_played``: board-rounds with a deadline; boards that
          were done more than 1 % after it; the same as measured.
    """
    ways = ("chosen", "oracle", "every", "maxn", "maxn_low", "preset", "capped")
    found: dict[str, float | None] = {}
    for way in ways:
        spent = [getattr(one, way) for one in rounds]
        prefix = {"chosen": "", "capped": "preset_but_maxn_", "every": "oracle_all_rows_"}.get(way, f"{way}_")
        found[f"{prefix}round_s"] = _mean([one.round_s for one in spent])
        found[f"{prefix}energy_j"] = _mean([one.energy_j for one in spent])
    found["played_round_s"] = _mean([one.played_s for one in rounds])
    found["played_energy_j"] = _mean([one.played_j for one in rounds])
    beyond = sum(not one.limits_kept for one in rounds)
    own = [None if beyond else one.objective for one in rounds]
    found["objective_gap_pct"] = _gap_pct(own, [one.oracle_objective for one in rounds])
    found["objective_gap_all_rows_pct"] = _gap_pct(own, [one.every_objective for one in rounds])
    saved = _difference(found["maxn_energy_j"], found["energy_j"])
    oracle = _difference(found["maxn_energy_j"], found["oracle_energy_j"])
    most = _difference(found["maxn_energy_j"], _mean([one.at_length.energy_j for one in rounds]))
    found["saving_pct"] = _percent(saved, found["maxn_energy_j"])
    found["oracle_saving_pct"] = _percent(oracle, found["maxn_energy_j"])
    share = None if beyond else _share(saved, most, found["maxn_energy_j"])
    found["saving_share_pct"] = None if share is None else 100.0 * share
    found["limits_out_of_reach"] = beyond
    found["deadlines"] = sum(one.deadlines for one in rounds)
    found["deadlines_missed"] = sum(one.missed for one in rounds)
    found["deadlines_missed_played"] = sum(one.missed_played for one in rounds)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _gap_pct(values: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """Return by how many percent one mean is above another."""
    own = [value for value in values if value is not None]
    their = [value for value in others if value is not None]
    return 100.0 * (sum(own) / sum(their) - 1.0) if own and sum(their) > 0 else None


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _share(saved: float | None, most: float | None, baseline: float | None) -> float | None:
    """Return a saving as a share of the largest, if that means something."""
    if saved is None or most is None or not baseline:
        return None
    return share_of_saving(saved / baseline, most / baseline).share


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None or whole <= 0 else 100.0 * part / whole
