"""Compare rounds with baselines and an oracle by the true costs of the same boards and shares; a study's row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fedge.confidence_interval import mean_of_known
from fedge.decisions.candidate_modes import mask_above_floor
from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.mode_mix import find_best_split
from fedge.decisions.planning import load_planner
from fedge.decisions.planning.front_columns import find_least_energy_point
from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS, find_top_mode
from fedge.devices.mode_surface import ModeSurface
from fedge.experiment import PolicySpec
from fedge.pareto import build_front
from fedge.studies.fleet import fleet_costs
from fedge.studies.fleet.fleet_costs import (
    PIECES_PER_STEP,
    FleetCost,
    PresetWork,
    RoundClients,
    find_both_best_presets,
    list_preset_work,
)
from fedge.telemetry.savings import share_of_saving
from fedge.telemetry.store_records import RoundRow
from fedge.types import Front, FrontPoint, Measurement, PowerMode, Predictions, RoundGoal, RoundReport

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


class RoundAlternatives(Protocol):
    """The clients of a round, by whose true figures other ways to play it are priced."""

    def cost_at_maxn(self, *, waits_low: bool) -> FleetCost:
        """Return the cost of MAXN, with clients waiting in it or in their lowest mode."""

    def cost_as_planned(self, policy: PolicySpec, else_s: float, *, plausible: bool) -> FleetCost:
        """Return the cost of least energy within the deadlines that the policy's planner sets from the true fronts.

        The deadline is ``else_s`` if none is planned; with ``plausible``, implausible modes are left out.
        """

    def can_keep_limits(self, policy: PolicySpec) -> bool:
        """Return whether such a plan keeps the policy's limits."""

    def cost_within(self, length_s: float) -> FleetCost:
        """Return the cost of the round of least energy that is at most ``length_s`` long."""

    def cost_presets(self, policy: PolicySpec, maxn: FleetCost) -> tuple[FleetCost, FleetCost]:
        """Return the best presets within the policy's limit, and the best but MAXN."""


def compare_alternatives(
    ways: RoundAlternatives, policy: PolicySpec, chosen: FleetCost, **measured: Any
) -> RoundComparison:
    """Compare a round of cost ``chosen`` with its alternatives; ``measured`` are the other fields of the record."""
    maxn = ways.cost_at_maxn(waits_low=False)
    oracle, every = (ways.cost_as_planned(policy, chosen.round_s, plausible=fine) for fine in (True, False))
    preset, capped = ways.cost_presets(policy, maxn)
    aims: dict[str, Any] = {
        name: fleet_costs.compute_objective(policy, spent, maxn)
        for name, spent in (("objective", chosen), ("oracle_objective", oracle), ("every_objective", every))
    }
    return RoundComparison(
        chosen=chosen,
        oracle=oracle,
        every=every,
        at_length=ways.cost_within(max(oracle.round_s, chosen.round_s)),
        maxn=maxn,
        maxn_low=ways.cost_at_maxn(waits_low=True),
        preset=preset,
        capped=capped,
        limits_kept=ways.can_keep_limits(policy),
        **aims,
        **measured,
    )


def compute_late_s(deadline_s: float | None) -> float:
    """Return the end from which work counts as late, in seconds."""
    return math.inf if deadline_s is None else deadline_s * (1.0 + LATE_TOLERANCE)


@dataclass(frozen=True, slots=True, eq=False)
class BoardTruth:
    """True figures of a board: time and power of every mode, its presets (as nearest modes), its steps per round."""

    surface: ModeSurface
    presets: Mapping[str, PowerMode]
    steps: int
    plausible: NDArray[np.bool_]
    """Mask of the modes that the oracle may take: a measured table has rows that cannot be foreseen or reproduced."""

    @property
    def work_steps(self) -> float:
        """Steps of a round, the warm-up included."""
        return self.steps + WARM_UP_STEPS

    def list_presets(self) -> list[PresetWork]:
        rows = map(self.surface.find_row, self.presets.values())
        top = self.surface.find_row(find_top_mode(self.surface))
        return list_preset_work(self.surface, rows, self.work_steps, top)

    def filter_plausible_points(self, told: Front) -> Front:
        """Return the board's true front without implausible modes; MAXN always stays available."""
        if self.plausible.all():
            return told
        keep = self.plausible & mask_above_floor(self.surface.modes)
        keep[self.surface.find_row(told.maxn.mode)] = True
        kept = self.surface.select_rows(keep)
        warm, none = self.work_steps / self.steps, np.zeros(len(kept.modes))
        known = Predictions(
            kept.modes, step_s=kept.step_s * warm, power_w=kept.power_w, step_s_sd_log=none, power_w_sd_log=none
        )
        return build_front(
            known,
            steps=self.steps,
            idle_w=told.idle_w,
            link_s=told.link_s,
            maxn=told.maxn.mode,
            maxn_idle_w=told.maxn_idle_w,
            radio_j=told.radio_j,
            limit=None,
        )

    def compute_work(self, parts: Sequence[Measurement]) -> tuple[float, float]:
        """Return seconds and joules of the parts of a round: x_k of the package's head, at the part's own power."""
        surface, rows = self.surface, [self.surface.find_row(part.mode) for part in parts]
        warm = [WARM_UP_STEPS if part.warm_up_s > 0 else 0.0 for part in parts]
        switch_s = [0.0 if part.switch_s is None else MODE_SWITCH_S for part in parts]
        times_s = [
            (p.steps + w) * float(surface.step_s[row]) + s
            for p, w, s, row in zip(parts, warm, switch_s, rows, strict=True)
        ]
        joules = sum(time_s * float(surface.power_w[row]) for time_s, row in zip(times_s, rows, strict=True))
        return sum(times_s), joules


def compute_true_cost(reports: Mapping[str, RoundReport], truths: Mapping[str, BoardTruth]) -> FleetCost:
    """Return the true cost of the modes in which boards worked, probes included: E and R of the package's head."""
    links = {board: report.link for board, report in reports.items()}
    clients = RoundClients.from_boards(
        {board: link.down_s + link.up_s for board, link in links.items()},
        {board: link.radio_j for board, link in links.items()},
    )
    work_s, work_j = np.array([truths[board].compute_work(report.parts) for board, report in reports.items()]).T
    idle_w = np.array([report.idle_w for report in reports.values()])
    return clients.cost(work_s, work_j - idle_w * work_s, idle_w)


@dataclass(frozen=True, slots=True, eq=False)
class TrueBoards:
    """The boards of a round by their truths and true fronts, with the joules of their radios: ``RoundAlternatives``.

    Like the boards, the oracle may change the mode once within a round and pays ``MODE_SWITCH_S`` for it. It is never
    understated: its steps are counted in halves, so that the warm-up may fall into either mode, and the change is
    priced at the least power of its modes.
    """

    truths: Mapping[str, BoardTruth]
    fronts: Mapping[str, Front]
    """Those of all modes."""
    plausible: Mapping[str, Front]
    radio_j: Mapping[str, float]

    @classmethod
    def from_reports(cls, reports: Mapping[str, RoundReport], truths: Mapping[str, BoardTruth]) -> Self:
        """Return the boards that report a true front."""
        told = {board: report.true_front for board, report in reports.items() if report.true_front is not None}
        plausible = {board: truths[board].filter_plausible_points(front) for board, front in told.items()}
        return cls(truths, told, plausible, {board: reports[board].link.radio_j for board in told})

    @property
    def clients(self) -> RoundClients:
        return RoundClients.from_boards({board: front.link_s for board, front in self.fronts.items()}, self.radio_j)

    def cost_at_maxn(self, *, waits_low: bool) -> FleetCost:
        fronts = self.plausible.values()
        figures = [(f.maxn.work_s, f.maxn.work_j, f.idle_w if waits_low else f.maxn_idle_w) for f in fronts]
        return self._cost(figures)

    def cost_as_planned(self, policy: PolicySpec, else_s: float, *, plausible: bool) -> FleetCost:
        return self._cost(self.plan_work(policy, else_s, plausible=plausible).values())

    def plan_work(self, policy: PolicySpec, else_s: float, *, plausible: bool) -> dict[str, BoardFigures]:
        fronts = self.plausible if plausible else self.fronts
        goals, _ = _plan_goals(fronts, policy)
        found = {}
        for board, front in fronts.items():
            own = goals[board]
            within = dataclasses.replace(front, points=_select_points_within_power(front, own) or front.points)
            end_s = else_s if own.deadline_s is None else own.deadline_s
            found[board] = find_least_energy_work(within, self.truths[board].steps, end_s)
        return found

    def can_keep_limits(self, policy: PolicySpec) -> bool:
        """Return whether a plan keeps the policy's limits, and every board its share of the power."""
        goals, feasible = _plan_goals(self.plausible, policy)
        return feasible and all(
            _select_points_within_power(front, goals[board]) for board, front in self.plausible.items() if front.points
        )

    def cost_within(self, length_s: float) -> FleetCost:
        fronts = self.plausible.items()
        return self._cost(find_least_energy_work(front, self.truths[b].steps, length_s) for b, front in fronts)

    def cost_presets(self, policy: PolicySpec, maxn: FleetCost) -> tuple[FleetCost, FleetCost]:
        options = [self.truths[board].list_presets() for board in self.fronts]
        return find_both_best_presets(self.clients, options, policy, maxn)

    def _cost(self, figures: Iterable[BoardFigures]) -> FleetCost:
        work_s, work_j, waiting_w = np.array(list(figures)).T
        return self.clients.cost(work_s, work_j - waiting_w * work_s, waiting_w)


BoardFigures = tuple[float, float, float]
"""Seconds and joules of a board's work in a round, and its power in watts while it waits."""


def _plan_goals(fronts: Mapping[str, Front], policy: PolicySpec) -> tuple[dict[str, RoundGoal], bool]:
    """Return every board's goal as the policy's planner sets it, and whether the plan is feasible."""
    planner, goal = load_planner(policy.name), RoundGoal(policy.name, 0, policy.deadline_s, policy.limits)
    if planner is None:
        return dict.fromkeys(fronts, goal), True
    plan = planner(fronts, tuple(fronts), goal)
    return {board: plan.goals.get(board, goal) for board in fronts}, plan.feasible


def _select_points_within_power(front: Front, goal: RoundGoal) -> tuple[FrontPoint, ...]:
    """Return the points that draw no more than the board's share of the power."""
    power_w = goal.limits.get("power_w", math.inf) * (1.0 + LIMIT_ROUNDING)
    return tuple(point for point in front.points if point.work_j <= power_w * point.work_s)


def find_least_energy_work(front: Front, steps: int, deadline_s: float) -> BoardFigures:
    """Return the work of least energy above idling that ends by ``deadline_s``, in one mode of ``front`` or in two.

    Exact for ``PIECES_PER_STEP`` parts of a step. If no point ends in time, the fastest point is returned.
    """
    points = front.points or (front.maxn,)
    pieces = PIECES_PER_STEP * (steps + WARM_UP_STEPS)
    work_s, work_j = (np.array([getattr(point, name) for point in points]) for name in ("work_s", "work_j"))
    above_j = work_j - front.idle_w * work_s
    switch_j = MODE_SWITCH_S * float((above_j / work_s).min())
    room_s = deadline_s - front.link_s
    split = find_best_split(
        work_s / pieces, above_j / pieces, pieces, room_s, switch_s=MODE_SWITCH_S, switch_j=switch_j
    )
    if split is None or split.steps == 0:
        alone = find_least_energy_point(front, deadline_s)
        return alone.work_s, alone.work_j, front.idle_w
    return split.work_s, split.work_j + front.idle_w * split.work_s, front.idle_w


def compare_round(
    row: RoundRow, reports: Mapping[str, RoundReport], truths: Mapping[str, BoardTruth], policy: PolicySpec
) -> RoundComparison:
    """Compare one round with baselines and the oracle by the true costs; boards without a true front are left out.

    The oracle plans like the policy, from true fronts. If the policy's rounds are not planned, it spends the least
    energy in the round's own length.
    """
    chosen, late_s = compute_true_cost(reports, truths), compute_late_s(row.deadline_s)
    return compare_alternatives(
        TrueBoards.from_reports(reports, truths),
        policy,
        chosen,
        round=row.round,
        deadline_s=row.deadline_s,
        played_s=row.round_s,
        played_j=row.energy_j,
        missed=sum(busy_s > late_s for busy_s in chosen.busy_s.values()),
        missed_played=sum(report.busy_s > late_s for report in reports.values()),
    )


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
        found[f"{prefix}round_s"] = mean_of_known([one.round_s for one in spent])
        found[f"{prefix}energy_j"] = mean_of_known([one.energy_j for one in spent])
    found["played_round_s"] = mean_of_known([one.played_s for one in rounds])
    found["played_energy_j"] = mean_of_known([one.played_j for one in rounds])
    beyond = sum(not one.limits_kept for one in rounds)
    own = [None if beyond else one.objective for one in rounds]
    found["objective_gap_pct"] = _gap_pct(own, [one.oracle_objective for one in rounds])
    found["objective_gap_all_rows_pct"] = _gap_pct(own, [one.every_objective for one in rounds])
    saved = _difference(found["maxn_energy_j"], found["energy_j"])
    oracle = _difference(found["maxn_energy_j"], found["oracle_energy_j"])
    most = _difference(found["maxn_energy_j"], mean_of_known([one.at_length.energy_j for one in rounds]))
    found["saving_pct"] = _percent(saved, found["maxn_energy_j"])
    found["oracle_saving_pct"] = _percent(oracle, found["maxn_energy_j"])
    share = None if beyond else _share(saved, most, found["maxn_energy_j"])
    found["saving_share_pct"] = None if share is None else 100.0 * share
    found["limits_out_of_reach"] = beyond
    found["deadlines"] = sum(one.deadlines for one in rounds)
    found["deadlines_missed"] = sum(one.missed for one in rounds)
    found["deadlines_missed_played"] = sum(one.missed_played for one in rounds)
    return found


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
