"""One round of a fleet in columns: select, plan, play every kind, settle, next state."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedge.devices.emulated_board import WARM_UP_STEPS
from fedge.experiment import Experiment
from fedge.seeds import make_generator
from fedge.studies.fleet import client_columns, column_plan
from fedge.studies.fleet.client_columns import ColumnState, FleetColumns, estimate_offsets
from fedge.studies.fleet.column_selection import select_columns
from fedge.studies.fleet.column_settlement import ColumnSettlement, SimulatedWork, settle_columns
from fedge.studies.fleet.kind_round import KindGoal, KindRound, RunningWork, start_work
from fedge.studies.fleet.kind_table import KindKnowledge, KindTable
from fedge.studies.fleet.work_choice import Rows, build_curve
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
        settled: The end of the round, as measured.
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
    if policy.name not in column_plan.PLANNERS:
        return KindGoal(experiment, number, planned_s=None, own_s=policy.deadline_s)
    z = column_plan.plan_margin_z(policy)
    used = np.bincount(columns.kind[clients], minlength=len(columns.kinds))
    fronts = [
        _build_known_front(kind, known, z) if count else None
        for count, kind, known in zip(used, columns.kinds, state.knowledge, strict=True)
    ]
    own = estimate_offsets(state.log_s[clients], state.log_w[clients], state.measured[clients])
    scale = (columns.steps[clients] + WARM_UP_STEPS) * np.exp(own.time)
    groups = column_plan.group_clients(columns.entry[clients], scale, np.exp(own.power))
    plan = column_plan.plan_deadline(policy, column_plan.build_group_columns(columns, groups, fronts))
    assert plan is not None
    own_s = policy.deadline_s
    kept = plan.feasible or own_s is None or own_s >= plan.deadline_s
    return KindGoal(experiment, number, planned_s=plan.deadline_s, own_s=own_s if kept else None)


def _build_known_front(kind: KindTable, known: KindKnowledge, z: float) -> column_plan.PlannedFront:
    predictions, top = known.predictions, kind.to_candidate(kind.top)
    curve = build_curve(predictions.step_s, predictions.step_s * (predictions.power_w - kind.idle_w))
    sd_log = predictions.step_s_sd_log
    at_top = float(predictions.step_s[top]), float(sd_log[top]), float(predictions.power_w[top])
    return column_plan.build_planned_front(curve, sd_log[curve.rows], z, top=at_top, idle_w=kind.waiting_w)


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
