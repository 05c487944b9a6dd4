"""True cost of a round, its length and every board's energy without noise, and of its baselines and of the oracle.

Baselines: every board in its best nvpmodel preset, or at MAXN. The oracle: deadlines planned from the true fronts,
every board at least energy within its own, in one or two modes. Like the boards it may change the mode once within a
round and pays ``MODE_SWITCH_S`` for it. It is never understated: its steps are counted in halves, so that the warm-up
may fall into either mode, and the change is priced at the least power of its modes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.candidate_modes import mask_above_floor
from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.mode_mix import find_best_split
from fedge.decisions.planning import load_planner
from fedge.decisions.planning.fleet_planners import MAX_SLOWDOWN, TIME_WEIGHT
from fedge.decisions.planning.front_columns import find_least_energy_point
from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS, find_top_mode
from fedge.devices.mode_surface import ModeSurface
from fedge.experiment import PolicySpec
from fedge.pareto import build_front, find_nearest_row
from fedge.types import Floats, Front, FrontPoint, Measurement, PowerMode, Predictions, RoundGoal, RoundReport


@dataclass(frozen=True, slots=True)
class FleetCost:
    """The cost of a round.

    Attributes:
        round_s: Length of the round in seconds.
        energies_j: Energy by board, in joules.
        busy_s: End of each board's work and transfers after the round's start, in seconds.
    """

    round_s: float
    energies_j: Mapping[str, float]
    busy_s: Mapping[str, float]

    @property
    def energy_j(self) -> float:
        """Energy of all boards in joules."""
        return sum(self.energies_j.values())


@dataclass(frozen=True, slots=True, eq=False)
class RoundClients:
    """The c clients of a round whose cost is counted, by names: of boards, or of the fleet's entries.

    Attributes:
        place: Index of each client's name, shape (c,).
        link_s: Seconds of each client's transfers, shape (c,).
        radio_j: Energy of its radio in joules, shape (c,).
    """

    names: tuple[str, ...]
    place: NDArray[np.intp]
    link_s: Floats
    radio_j: Floats

    @classmethod
    def from_boards(cls, link_s: Mapping[str, float], radio_j: Mapping[str, float]) -> RoundClients:
        """Return the clients of which every one has a name of its own: those of ``link_s``, in its order."""
        joules = np.array([radio_j[board] for board in link_s])
        return cls(tuple(link_s), np.arange(len(link_s)), link_s=np.array(list(link_s.values())), radio_j=joules)

    def cost(self, work_s: Floats, above_j: Floats, waiting_w: Floats) -> FleetCost:
        """Return the cost of the round, which ends with the last client.

        Args:
            work_s: Seconds of each client's work, shape (c,).
            above_j: Its energy above waiting, in joules.
            waiting_w: Its power while it transfers and waits, in watts.
        """
        busy_s = self.link_s + work_s
        round_s = float(busy_s.max())
        joules = np.bincount(self.place, self.radio_j + above_j + waiting_w * round_s, len(self.names))
        latest_s = np.zeros(len(self.names))
        np.maximum.at(latest_s, self.place, busy_s)
        used = np.unique(self.place).tolist()
        return FleetCost(
            round_s,
            {self.names[place]: float(joules[place]) for place in used},
            {self.names[place]: float(latest_s[place]) for place in used},
        )


@dataclass(frozen=True, slots=True, eq=False)
class BoardTruth:
    """True figures of a board: time and power of every mode, its presets (as nearest modes), its steps per round."""

    surface: ModeSurface
    presets: Mapping[str, PowerMode]
    steps: int
    plausible: NDArray[np.bool_]
    """Mask of the modes that the oracle may take: a measured table has rows that cannot be foreseen or reproduced."""


def compute_true_cost(reports: Mapping[str, RoundReport], truths: Mapping[str, BoardTruth]) -> FleetCost:
    """Return the true cost of the modes in which boards worked, probes included: E and R of the package's head."""
    links = {board: report.link for board, report in reports.items()}
    clients = RoundClients.from_boards(
        {board: link.down_s + link.up_s for board, link in links.items()},
        {board: link.radio_j for board, link in links.items()},
    )
    work = [_compute_true_work(report.parts, truths[board].surface) for board, report in reports.items()]
    work_s, work_j = np.array(work).T
    idle_w = np.array([report.idle_w for report in reports.values()])
    return clients.cost(work_s, work_j - idle_w * work_s, idle_w)


def _compute_true_work(parts: Sequence[Measurement], surface: ModeSurface) -> tuple[float, float]:
    """Return seconds and joules of a board's parts of a round: x_k of the package's head, at the part's own power."""
    rows = [surface.find_row(part.mode) for part in parts]
    warm = [WARM_UP_STEPS if part.warm_up_s > 0 else 0.0 for part in parts]
    switch_s = [0.0 if part.switch_s is None else MODE_SWITCH_S for part in parts]
    times_s = [
        (p.steps + w) * float(surface.step_s[row]) + s for p, w, s, row in zip(parts, warm, switch_s, rows, strict=True)
    ]
    joules = sum(time_s * float(surface.power_w[row]) for time_s, row in zip(times_s, rows, strict=True))
    return sum(times_s), joules


ENERGY_POLICIES = ("least-energy", "least-energy-within-deadline", "energy-budget")
TIME_POLICIES = ("fastest", "fastest-within-power")


def compute_objective(policy: PolicySpec, spent: FleetCost, maxn: FleetCost) -> float | None:
    """Return the policy's objective, w R/R_maxn + (1-w) E/E_maxn, E (J) or R (s), or None if it minimises nothing."""
    known = ("balanced", *ENERGY_POLICIES, *TIME_POLICIES)
    return compute_objective_or_balance(policy, spent, maxn) if policy.name in known else None


def compute_objective_or_balance(policy: PolicySpec, spent: FleetCost, maxn: FleetCost) -> float:
    """Return the policy's objective, or the balance of time and energy if it has none of its own."""
    if policy.name in ENERGY_POLICIES:
        return spent.energy_j
    if policy.name in TIME_POLICIES:
        return spent.round_s
    weight = TIME_WEIGHT if policy.time_weight is None else policy.time_weight
    return weight * spent.round_s / maxn.round_s + (1.0 - weight) * spent.energy_j / maxn.energy_j


def max_round_s(policy: PolicySpec, maxn_s: float) -> float:
    """Return the longest round that the policy allows, in seconds; ``maxn_s`` is its length at MAXN."""
    slowdown_s = maxn_s * (MAX_SLOWDOWN if policy.max_slowdown is None else policy.max_slowdown)
    return min(slowdown_s, math.inf if policy.deadline_s is None else policy.deadline_s)


@dataclass(frozen=True, slots=True)
class PresetWork:
    """A board's round in one preset, in which it also waits.

    Attributes:
        work_s: Time of the work in seconds.
        work_j: Energy of the work in joules.
        idle_w: Idle power in watts.
        top: Whether the preset is MAXN.
    """

    work_s: float
    work_j: float
    idle_w: float
    top: bool = False


def map_presets_to_modes(surface: ModeSurface, presets: Mapping[str, PowerMode]) -> dict[str, PowerMode]:
    """Return a board's presets as modes of its table: the nearest mode if a preset is not in the table."""
    return {name: surface.modes[find_nearest_row(surface.modes, mode)] for name, mode in presets.items()}


def list_preset_work(truth: BoardTruth) -> list[PresetWork]:
    """Return a board's round in each of its presets."""
    surface, found, top = truth.surface, [], find_top_mode(truth.surface)
    for mode in truth.presets.values():
        row = surface.find_row(mode)
        work_s = (truth.steps + WARM_UP_STEPS) * float(surface.step_s[row])
        work_j = work_s * float(surface.power_w[row])
        found.append(PresetWork(work_s, work_j, float(surface.idle_w[row]), top=mode == top))
    return found


def exclude_maxn(options: Sequence[PresetWork]) -> Sequence[PresetWork]:
    """Return all presets but MAXN, or all of them if there is no other."""
    return [option for option in options if not option.top] or options


@dataclass(frozen=True, slots=True, eq=False)
class PresetTable:
    """The work of c clients in each of their at most p presets, shape (c, p).

    Attributes:
        work_s: Seconds of the work; infinite where a client has fewer presets.
        above_j: Energy of the work above waiting in the preset, in joules.
        waiting_w: Power of waiting in the preset, in watts.
    """

    work_s: Floats
    above_j: Floats
    waiting_w: Floats


def stack_presets(options: Sequence[Sequence[PresetWork]]) -> PresetTable:
    """Stack the presets of every client to a table."""
    table = np.zeros((3, len(options), max(map(len, options))))
    table[0] = np.inf
    for row, own in enumerate(options):
        figures = [(one.work_s, one.work_j - one.idle_w * one.work_s, one.idle_w) for one in own]
        table[:, row, : len(own)] = np.array(figures).T
    return PresetTable(*table)


def find_best_presets(
    clients: RoundClients,
    table: PresetTable,
    limit_s: float,
    aim: Callable[[FleetCost], float],
    most_lengths: int | None = None,
) -> FleetCost:
    """Return the round with every client in the preset that suits the fleet best, by the true costs.

    All round lengths up to ``limit_s`` that presets can have are tried; for each, every client takes the preset of
    least energy that ends by then, or its fastest one.

    Args:
        clients: The clients.
        table: Their presets.
        limit_s: Longest round in seconds, unless no presets keep it.
        aim: What is least in the best round.
        most_lengths: Number of lengths to try, evenly spaced among the possible ones; None for all.
    """
    busy_s, every = clients.link_s[:, None] + table.work_s, np.arange(len(table.work_s))
    floor_s = float(busy_s.min(axis=1).max())
    possible = np.isfinite(busy_s) & (busy_s > floor_s) & (busy_s <= limit_s * (1.0 + LIMIT_ROUNDING))
    ends_s = np.unique(busy_s[possible])
    if most_lengths is not None and len(ends_s) > most_lengths:
        ends_s = ends_s[np.round(np.linspace(0, len(ends_s) - 1, most_lengths)).astype(np.intp)]
    radio_j, tried = float(clients.radio_j.sum()), list[tuple[float, float, NDArray[np.intp]]]()
    for length_s in (floor_s, *ends_s.tolist()):
        in_time = busy_s <= length_s * (1.0 + LIMIT_ROUNDING)
        energy_j = np.where(in_time, table.above_j + table.waiting_w * length_s, np.inf)
        pick = np.where(in_time.any(axis=1), energy_j.argmin(axis=1), busy_s.argmin(axis=1))
        round_s = float(busy_s[every, pick].max())
        joules = radio_j + float((table.above_j[every, pick] + table.waiting_w[every, pick] * round_s).sum())
        tried.append((aim(FleetCost(round_s, {"": joules}, {})), round_s, pick))
    _, _, pick = min(tried, key=lambda one: one[:2])
    return clients.cost(*(column[every, pick] for column in (table.work_s, table.above_j, table.waiting_w)))


def find_both_best_presets(
    clients: RoundClients,
    tables: tuple[PresetTable, PresetTable],
    policy: PolicySpec,
    maxn: FleetCost,
    most_lengths: int | None = None,
) -> tuple[FleetCost, FleetCost]:
    """Return the best presets within the policy's limit, and the best but MAXN, by the policy's objective.

    Args:
        clients: The clients.
        tables: All of their presets, and those but MAXN.
        policy: The policy.
        maxn: The cost of the round at MAXN.
        most_lengths: Number of round lengths to try; None for all.
    """

    def aim(spent: FleetCost) -> float:
        return compute_objective_or_balance(policy, spent, maxn)

    limits_s = (max_round_s(policy, maxn.round_s), math.inf)
    best, capped = (
        find_best_presets(clients, table, limit_s, aim, most_lengths)
        for table, limit_s in zip(tables, limits_s, strict=True)
    )
    return best, capped


def build_round_clients(fronts: Mapping[str, Front], radio_j: Mapping[str, float]) -> RoundClients:
    """Return the boards of ``fronts`` as the clients of a round."""
    return RoundClients.from_boards({board: front.link_s for board, front in fronts.items()}, radio_j)


def cost_at_maxn(fronts: Mapping[str, Front], radio_j: Mapping[str, float], *, waits_low: bool = False) -> FleetCost:
    """Return the cost of the round in which every board works at MAXN, and waits there or in its lowest mode."""
    figures = [(f.maxn.work_s, f.maxn.work_j, f.idle_w if waits_low else f.maxn_idle_w) for f in fronts.values()]
    work_s, work_j, waiting_w = np.array(figures).T
    return build_round_clients(fronts, radio_j).cost(work_s, work_j - waiting_w * work_s, waiting_w)


PIECES_PER_STEP = 2
"""Number of parts of a step that can be assigned to modes separately: the warm-up is worth one and a half steps."""


@dataclass(frozen=True, slots=True)
class BoardWork:
    """Time in seconds and energy in joules of a board's whole work of a round."""

    work_s: float
    work_j: float


def filter_plausible_points(told: Front, truth: BoardTruth) -> Front:
    """Return a board's true front without implausible modes; MAXN always stays available."""
    if truth.plausible.all():
        return told
    keep = truth.plausible & mask_above_floor(truth.surface.modes)
    keep[truth.surface.find_row(told.maxn.mode)] = True
    kept = truth.surface.select_rows(keep)
    warm, none = (truth.steps + WARM_UP_STEPS) / truth.steps, np.zeros(len(kept.modes))
    known = Predictions(
        kept.modes, step_s=kept.step_s * warm, power_w=kept.power_w, step_s_sd_log=none, power_w_sd_log=none
    )
    return build_front(
        known,
        steps=truth.steps,
        idle_w=told.idle_w,
        link_s=told.link_s,
        maxn=told.maxn.mode,
        maxn_idle_w=told.maxn_idle_w,
        radio_j=told.radio_j,
        limit=None,
    )


def plan_oracle_work(
    fronts: Mapping[str, Front], steps: Mapping[str, int], policy: PolicySpec, else_s: float
) -> dict[str, BoardWork]:
    """Return every board's work of least energy within its goal, as the policy's planner sets it from these fronts.

    The deadline is ``else_s`` if none is planned.
    """
    goals, _ = _plan_goals(fronts, policy)
    found = {}
    for board, front in fronts.items():
        own = goals[board]
        within = dataclasses.replace(front, points=_select_points_within_power(front, own) or front.points)
        found[board] = find_least_energy_work(
            within, steps[board], else_s if own.deadline_s is None else own.deadline_s
        )
    return found


def can_keep_limits(fronts: Mapping[str, Front], policy: PolicySpec) -> bool:
    """Return whether a plan from these fronts keeps the policy's limits, and every board its share of the power."""
    goals, feasible = _plan_goals(fronts, policy)
    return feasible and all(
        _select_points_within_power(front, goals[board]) for board, front in fronts.items() if front.points
    )


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


def find_least_energy_work(front: Front, steps: int, deadline_s: float) -> BoardWork:
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
        return BoardWork(alone.work_s, alone.work_j)
    return BoardWork(split.work_s, split.work_j + front.idle_w * split.work_s)


def cost_waiting_in_lowest_mode(
    fronts: Mapping[str, Front], radio_j: Mapping[str, float], work: Mapping[str, BoardWork]
) -> FleetCost:
    """Return the cost of the round in which every board does this work and waits in its lowest mode."""
    figures = [(work[board].work_s, work[board].work_j, front.idle_w) for board, front in fronts.items()]
    work_s, work_j, idle_w = np.array(figures).T
    return build_round_clients(fronts, radio_j).cost(work_s, work_j - idle_w * work_s, idle_w)
