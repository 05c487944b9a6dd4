"""One round of a fleet in columns: select, plan, play every kind, settle, next state. Pure functions.

Plan: clients of an entry that are about as fast are one board of the plan. Clients of a kind differ by their steps and
by an offset, so that their fronts differ by a factor s in time and by a factor p in power. A group is planned with the
mean s of its clients and the sums of s p and of p in its joules and watts. Groups are ``CLASS_WIDTH`` wide, so that the
size of a plan is bounded, whatever the number of clients.

Settlement, as the server does it for one client after the other. Symbols of a client: download d, work w,
upload u seconds, b = d + w + u; it is away from a on and its battery is empty from f on, after the round's start. It
ends at min(b, a, f), with an error unless that is b.
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
from fedge.experiment import Experiment, LateReplySpec, PolicySpec
from fedge.pareto import MAX_FRONT_POINTS
from fedge.seeds import make_generator
from fedge.studies.fleet import client_columns
from fedge.studies.fleet.client_columns import ColumnState, Flags, FleetColumns, estimate_offsets, select_columns
from fedge.studies.fleet.kind_round import KindGoal, KindRound, RunningWork, choice_margin_z, start_work
from fedge.studies.fleet.kind_table import KindKnowledge, KindTable, Rows, WorkCurve, build_curve
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
    settled: ColumnSettlement


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
    played = SimulatedWork(
        columns.down_s[entry],
        work_s=work.work_s,
        up_s=columns.up_s[entry],
        work_j=work.work_j,
        idle_w=waiting_w,
        radio_w=columns.radio_w[entry],
        away_s=state.switch_s[clients] - state.clock_s,
        left_j=state.left_j[clients],
        charging_w=columns.charging_w[entry],
        capacity_j=columns.capacity_j[entry],
    )
    selection, limits = experiment.selection, [limit for limit in (goal.planned_s, goal.own_s) if limit is not None]
    deadline_s = min(limits, default=None)
    wanted = selection.count if selection.over_commit > 1.0 and len(clients) > (selection.count or 0) else None
    settled = settle_columns(played, experiment.late, deadline_s, wanted)
    idle = np.ones(len(columns), dtype=np.bool_)
    idle[clients] = False
    state = client_columns.drain_idle(columns, state, idle, settled.round_s)
    state = _store_clients(state, goal.number, work, busy_s=played.busy_s, left_j=settled.left_j)
    rng = make_generator(experiment.seed, goal.number, "availability", "columns")
    state = client_columns.advance_clock(columns, state, state.clock_s + settled.round_s, rng)
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


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedWork:
    """The work of c clients in a round, shape (c,) each.

    Attributes:
        down_s: Seconds of the download; ``work_s`` those of the work and ``up_s`` those of the upload.
        work_j: Energy of the work, in joules.
        idle_w: Power while transferring and waiting, in watts; ``radio_w`` that of the radio above it.
        away_s: Seconds after which the client goes away; infinite if it stays.
        left_j: Charge of its battery, in joules; infinite on mains.
        charging_w: Charging power, in watts.
        capacity_j: Capacity of the battery, in joules.
    """

    down_s: Floats
    work_s: Floats
    up_s: Floats
    work_j: Floats
    idle_w: Floats
    radio_w: Floats
    away_s: Floats
    left_j: Floats
    charging_w: Floats
    capacity_j: Floats

    @property
    def busy_s(self) -> Floats:
        """Return the seconds until the reply."""
        return self.down_s + self.work_s + self.up_s


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSettlement:
    """The end of a round.

    Attributes:
        round_s: Its length in seconds.
        done: Clients whose result counts; all others are late, cancelled or failed.
        failed: Clients that went away or ran out of battery before the end.
        energy_j: Energy of each client, in joules.
        left_j: Charge of each battery at the end, in joules.
    """

    round_s: float
    done: Flags
    failed: Flags
    energy_j: Floats
    left_j: Floats


def settle_columns(
    work: SimulatedWork, late: LateReplySpec, deadline_s: float | None, wanted: int | None
) -> ColumnSettlement:
    """Settle a round.

    Args:
        work: The clients' work.
        late: Treatment of late replies, ``accept`` or ``drop``.
        deadline_s: The round's deadline in seconds; None without one.
        wanted: Number of replies that are enough; None if all are awaited.
    """
    empty_s = compute_empty_s(work)
    ends_s = np.minimum(work.busy_s, np.minimum(work.away_s, empty_s))
    error = ends_s < work.busy_s
    cut_s = np.inf if deadline_s is None or late.action == "accept" else deadline_s * (1.0 + late.grace)
    counted = (ends_s <= cut_s) & ~error
    if wanted is not None and int(counted.sum()) >= wanted:
        order = np.flatnonzero(counted)
        order = order[np.argsort(ends_s[order], kind="stable")][:wanted]
        counted = np.zeros(len(ends_s), dtype=np.bool_)
        counted[order] = True
        round_s = float(ends_s[order[-1]])
    elif (ends_s > cut_s).any():
        round_s = float(cut_s)
    else:
        round_s = float(ends_s.max())
    failed = error & (ends_s <= round_s) & ~counted
    until_s = np.where(failed, ends_s, round_s)
    flat = failed & (empty_s < np.minimum(work.away_s, work.busy_s))
    return _book_energy(work, round_s, done=counted, failed=failed, until_s=until_s, flat=flat)


def _book_energy(
    work: SimulatedWork, round_s: float, *, done: Flags, failed: Flags, until_s: Floats, flat: Flags
) -> ColumnSettlement:
    """Book work, radio and idle energy until ``until_s``; a flat board draws nothing after it."""
    worked_s = np.clip(until_s - work.down_s, 0.0, work.work_s)
    work_j = work.work_j * worked_s / np.maximum(work.work_s, 1e-12)
    sent_s = np.clip(until_s - work.down_s - work.work_s, 0.0, work.up_s)
    radio_j = work.radio_w * (np.minimum(until_s, work.down_s) + sent_s)
    known_s = np.where(flat, until_s, round_s)
    energy_j = work_j + radio_j + work.idle_w * (known_s - worked_s)
    energy_j = np.minimum(energy_j, work.left_j + work.charging_w * known_s)
    left_j = np.where(flat, 0.0, work.left_j - energy_j + work.charging_w * until_s)
    left_j += work.charging_w * np.maximum(0.0, round_s - until_s)
    left_j = np.clip(left_j, 0.0, work.capacity_j)
    return ColumnSettlement(round_s, done, failed, energy_j=energy_j, left_j=left_j)


def compute_empty_s(work: SimulatedWork) -> Floats:
    """Return the seconds until each battery is empty; infinite if it lasts through the client's work."""
    empty_s = np.full(len(work.work_s), np.inf)
    past_s, left_j = np.zeros(len(empty_s)), work.left_j
    link_w, work_w = work.idle_w + work.radio_w, work.work_j / np.maximum(work.work_s, 1e-12)
    for seconds, watts in ((work.down_s, link_w), (work.work_s, work_w), (work.up_s, link_w)):
        net_w = watts - work.charging_w
        ends = (net_w * seconds > left_j) & ~np.isfinite(empty_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            empty_s = np.where(ends, past_s + left_j / net_w, empty_s)
        left_j = np.minimum(work.capacity_j, left_j - net_w * seconds)
        past_s = past_s + seconds
    return empty_s


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
