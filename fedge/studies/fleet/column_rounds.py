"""One round of a fleet in columns: select, plan, play every kind, settle, next state. Pure functions.

Plan: clients of an entry that are about as fast are one board of the plan. Clients of a kind differ by their steps and
by an offset, so that their fronts differ by a factor s in time and by a factor p in power. A group is planned with the
mean s of its clients and the sums of s p and of p in its joules and watts. Groups are ``CLASS_WIDTH`` wide, so that the
size of a plan is bounded, whatever the number of clients.

Settlement: by the rules of ``fedge.telemetry.round_columns``, as the server's. A client's work is one part, so that
work that is cut short counts at the mean power of the whole, where the server knows the power of every part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedge.decisions.planning.cost_sweep import DeadlinePlan
from fedge.decisions.planning.fleet_planners import find_balanced_deadline, find_least_energy_deadline
from fedge.decisions.planning.front_columns import FrontColumns
from fedge.devices.emulated_board import WARM_UP_STEPS
from fedge.experiment import Experiment, PolicySpec
from fedge.pareto import MAX_FRONT_POINTS
from fedge.seeds import make_generator
from fedge.studies.fleet import client_columns
from fedge.studies.fleet.client_columns import ColumnState, FleetColumns, estimate_offsets, select_columns
from fedge.studies.fleet.kind_round import KindGoal, KindRound, RunningWork, choice_margin_z, start_work
from fedge.studies.fleet.kind_table import KindKnowledge, KindTable, Rows, WorkCurve, build_curve
from fedge.telemetry.round_columns import SettledColumns, WorkColumns, find_ends, settle_columns
from fedge.types import Floats


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedRound:
    """A round that was played by c clients.

    Attributes:
        clients: Their indices, ascending.
        deadline_s: The round's deadline in seconds; None without one.
        true_s: Seconds of each client's work without noise; ``true_j`` its energy.
        waiting_w: Power of each client while it waits.
        busy_s: Seconds until each reply, as measured.
    """

    clients: Rows
    deadline_s: float | None
    true_s: Floats
    true_j: Floats
    waiting_w: Floats
    busy_s: Floats
    settled: SettledColumns


def simulate_round(
    columns: FleetColumns, experiment: Experiment, state: ColumnState, number: int
) -> tuple[ColumnState, SimulatedRound]:
    """Play round ``number`` and return the state after it. Pure; all randomness follows from the experiment's seed.

    Raises:
        RunFailed: No client will ever be available.
    """
    state = client_columns.wait_until_available(columns, state, number, experiment.seed)
    clients = select_columns(experiment, columns, state, number)
    goal = _plan_round(columns, experiment, state, clients, number=number)
    work = start_work(columns, state, clients, make_generator(experiment.seed, number, "noise", "columns"))
    knowledge, kind_of = list(state.knowledge), columns.kind[clients]
    for index, kind in enumerate(columns.kinds):
        if len(places := np.flatnonzero(kind_of == index)):
            knowledge[index] = KindRound(goal, kind, known=knowledge[index], work=work, places=places).simulate()
    return _finish_round(goal, dataclasses.replace(state, knowledge=tuple(knowledge)), work)


def _plan_round(
    columns: FleetColumns, experiment: Experiment, state: ColumnState, clients: Rows, *, number: int
) -> KindGoal:
    """Return the goal with the planned deadline and the user's own unless the plan cannot keep it."""
    policy = experiment.policy
    if policy.name not in PLANNERS:
        return KindGoal(experiment, number, planned_s=None, own_s=policy.deadline_s)
    z = plan_margin_z(policy)
    used = np.bincount(columns.kind[clients], minlength=len(columns.kinds))
    fronts = [
        _build_known_front(kind, known, z) if count else None
        for count, kind, known in zip(used, columns.kinds, state.knowledge, strict=True)
    ]
    own = estimate_offsets(state.log_s[clients], state.log_w[clients], state.measured[clients])
    scale = (columns.steps[clients] + WARM_UP_STEPS) * np.exp(own.time)
    groups = group_clients(columns.entry[clients], scale, np.exp(own.power))
    plan = plan_deadline(policy, build_group_columns(columns, groups, fronts))
    assert plan is not None
    own_s = policy.deadline_s
    kept = plan.feasible or own_s is None or own_s >= plan.deadline_s
    return KindGoal(experiment, number, planned_s=plan.deadline_s, own_s=own_s if kept else None)


def _build_known_front(kind: KindTable, known: KindKnowledge, z: float) -> PlannedFront:
    predictions, top = known.predictions, kind.to_candidate(kind.top)
    curve = build_curve(predictions.step_s, predictions.step_s * (predictions.power_w - kind.idle_w))
    sd_log = predictions.step_s_sd_log
    at_top = float(predictions.step_s[top]), float(sd_log[top]), float(predictions.power_w[top])
    return build_planned_front(curve, sd_log[curve.rows], z, top=at_top, idle_w=kind.waiting_w)


def _finish_round(goal: KindGoal, state: ColumnState, work: RunningWork) -> tuple[ColumnState, SimulatedRound]:
    """Settle the round and return the state after it."""
    columns, clients, experiment = work.columns, work.clients, goal.experiment
    entry, policy = columns.entry[clients], experiment.policy.name
    idle_w = [float(kind.surface.idle_w[kind.find_pinned_row(policy)]) for kind in columns.kinds]
    waiting_w = columns.gather(idle_w, clients) * np.exp(columns.log_power[clients])
    played = WorkColumns(
        columns.down_s[entry],
        parts_s=work.work_s[:, None],
        parts_w=(work.work_j / np.maximum(work.work_s, 1e-12))[:, None],
        up_s=columns.up_s[entry],
        radio_j=columns.radio_w[entry] * columns.link_s[entry],
        idle_w=waiting_w,
    )
    batteries = columns.select_batteries(state.left_j[clients], clients)
    ends = find_ends(played, state.switch_s[clients] - state.clock_s, batteries)
    selection, limits = experiment.selection, [limit for limit in (goal.planned_s, goal.own_s) if limit is not None]
    deadline_s = min(limits, default=None)
    wanted = selection.count if selection.over_commit > 1.0 and len(clients) > (selection.count or 0) else None
    settled = settle_columns(played, batteries, ends, late=experiment.late, deadline_s=deadline_s, wanted=wanted)
    round_s, left_j = settled.verdict.round_s, settled.batteries.left_j
    idle = np.ones(len(columns), dtype=np.bool_)
    idle[clients] = False
    state = client_columns.drain_idle(columns, state, idle, round_s)
    state = _store_clients(state, goal.number, work, busy_s=played.busy_s, left_j=left_j)
    rng = make_generator(experiment.seed, goal.number, "availability", "columns")
    state = client_columns.advance_clock(columns, state, state.clock_s + round_s, rng)
    return state, SimulatedRound(
        clients,
        deadline_s,
        true_s=work.true_s,
        true_j=work.true_j,
        waiting_w=waiting_w,
        busy_s=played.busy_s,
        settled=settled,
    )


def _store_clients(
    state: ColumnState, number: int, work: RunningWork, *, busy_s: Floats, left_j: Floats
) -> ColumnState:
    """Return the state with the columns of the round's clients replaced."""
    changed = {
        "log_s": work.log_s,
        "log_w": work.log_w,
        "measured": work.measured,
        "tried": work.tried,
        "explored": work.explored,
        "last_round": np.full(len(work.clients), number),
        "busy_s": busy_s,
        "left_j": left_j,
    }
    columns: dict[str, Any] = {}
    for name, values in changed.items():
        columns[name] = getattr(state, name).copy()
        columns[name][work.clients] = values
    return dataclasses.replace(state, **columns)


CLASS_WIDTH = 0.002
"""Width of a group in log units of time: a tenth of a percent in the deadline, a fifth of the tolerance for late ones
in ``round_comparison``."""
PLANNERS = {"balanced": find_balanced_deadline, "least-energy": find_least_energy_deadline}
"""Policies whose rounds are planned here."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedFront:
    """A kind's front, per step of a typical client.

    Attributes:
        step_s: Seconds per step of its k points, by ascending end with the margin, MAXN the last one of equals.
        safe_s: The same with the margin.
        step_j: Joules per step above idling.
        top: Seconds per step at MAXN, the same with the margin, and watts.
        idle_w: Power of waiting in the lowest mode, and in MAXN, in watts.
    """

    step_s: Floats
    safe_s: Floats
    step_j: Floats
    top: tuple[float, float, float]
    idle_w: tuple[float, float]


def build_planned_front(
    curve: WorkCurve, sd_log: Floats, z: float, *, top: tuple[float, float, float], idle_w: tuple[float, float]
) -> PlannedFront:
    """Build a kind's front, thinned to ``MAX_FRONT_POINTS``, with MAXN among its points.

    Args:
        curve: The kind's curve.
        sd_log: Standard deviation of the log time of each point, shape (f,).
        z: Margin in standard deviations.
        top: Seconds per step at MAXN, their standard deviation (log), and watts.
        idle_w: Power of waiting in the lowest mode, and in MAXN, in watts.
    """
    count = len(curve.rows)
    kept = np.unique(np.round(np.linspace(0, count - 1, min(count, MAX_FRONT_POINTS))).astype(np.intp))
    top_s, top_sd, top_w = top
    step_s = np.append(curve.step_s[kept], top_s)
    safe_s = step_s * np.exp(z * np.append(sd_log[kept], top_sd))
    step_j = np.append(curve.step_j[kept], top_s * (top_w - idle_w[0]))
    order = np.lexsort((step_j, safe_s))
    held_s = top_s * float(np.exp(z * top_sd))
    held = top_s, held_s, top_w
    return PlannedFront(step_s[order], safe_s[order], step_j[order], top=held, idle_w=idle_w)


@dataclass(frozen=True, slots=True, eq=False)
class ClientGroups:
    """Clients grouped by entry and speed, g groups.

    Attributes:
        entry: Entry of each group, shape (g,).
        scale: Mean of the clients' s, the steps times the offset of time.
        energy: Sum of s p over the clients, with p the offset of power.
        power: Sum of p over the clients.
    """

    entry: Rows
    scale: Floats
    energy: Floats
    power: Floats
    count: Floats


def group_clients(entry: Rows, scale: Floats, power: Floats) -> ClientGroups:
    """Group clients with these entries, time factors and power factors, shape (c,) each."""
    place = np.floor(np.log(scale) / CLASS_WIDTH).astype(np.int64)
    place -= place.min()
    key = entry * (int(place.max()) + 1) + place
    count = np.bincount(key)
    used = np.flatnonzero(count)
    return ClientGroups(
        used // (int(place.max()) + 1),
        scale=np.bincount(key, scale)[used] / count[used],
        energy=np.bincount(key, scale * power)[used].astype(np.float64),
        power=np.bincount(key, power)[used].astype(np.float64),
        count=count[used].astype(np.float64),
    )


def build_group_columns(
    columns: FleetColumns, groups: ClientGroups, fronts: Sequence[PlannedFront | None]
) -> FrontColumns:
    """Build the columns that the planners take, one board per group; every kind of the groups has a front."""
    kind = columns.kind_of[groups.entry]
    sizes = np.array([0 if front is None else len(front.step_s) for front in fronts])
    known = [front for front in fronts if front is not None]
    step_s, safe_s, step_j = (
        np.concatenate([getattr(front, name) for front in known]) for name in ("step_s", "safe_s", "step_j")
    )
    heads = np.array([(0.0,) * 5 if front is None else (*front.top, *front.idle_w) for front in fronts])[kind]
    offsets = np.concatenate([[0], np.cumsum(sizes[kind])])
    starts = (np.cumsum(sizes) - sizes)[kind]
    point = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes[kind])
    of = np.repeat(np.arange(len(kind)), sizes[kind])
    link_s, (top_s, top_safe_s, top_w, idle_w, top_idle_w) = columns.link_s[groups.entry], heads.T
    above_j, radio_j = groups.energy[of] * step_j[point], groups.count * columns.radio_w[groups.entry] * link_s
    return FrontColumns(
        tuple(map(str, range(len(kind)))),
        offsets,
        ends_s=link_s[of] + groups.scale[of] * step_s[point],
        safe_ends_s=link_s[of] + groups.scale[of] * safe_s[point],
        above_idle_j=above_j + radio_j[of],
        power_w=above_j / (groups.scale[of] * step_s[point]) + (groups.power * idle_w)[of],
        idle_w=groups.power * idle_w,
        maxn_s=link_s + groups.scale * top_s,
        maxn_safe_s=link_s + groups.scale * top_safe_s,
        maxn_work_s=groups.scale * top_s,
        maxn_work_j=groups.energy * top_s * top_w,
        maxn_idle_w=groups.power * top_idle_w,
        radio_j=radio_j,
    )


def plan_margin_z(policy: PolicySpec) -> float:
    """Return the margin of the policy's plan in standard deviations: ``balanced`` plans with expected times."""
    return 0.0 if policy.name == "balanced" else choice_margin_z(policy)


def plan_deadline(policy: PolicySpec, columns: FrontColumns) -> DeadlinePlan | None:
    """Plan the round's deadline, or return None if the policy plans none."""
    return PLANNERS[policy.name](columns, policy.limits) if policy.name in PLANNERS else None
