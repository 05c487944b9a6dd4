"""One round of a fleet in columns: select, plan, probe, choose, work, settle, next state."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from fedge.decisions.planning import is_pinned
from fedge.decisions.probe_choice import ProbeBudget, count_probe_steps
from fedge.devices.emulated_board import (
    JITTER_SD,
    MODE_SWITCH_S,
    NOISE_POWER_SD,
    NOISE_TIME_SD,
    OUTLIER_CHANCE,
    OUTLIER_SLOWDOWN,
    WARM_UP_STEPS,
)
from fedge.experiment import Experiment
from fedge.pareto import find_nearest_row
from fedge.physics.model_fit import OFFSET_TIME_SD
from fedge.seeds import make_generator
from fedge.studies.fleet import client_columns, column_plan
from fedge.studies.fleet.client_columns import ClientOffsets, ColumnState, Counts, FleetColumns, estimate_offsets
from fedge.studies.fleet.column_selection import select_columns
from fedge.studies.fleet.column_settlement import ColumnSettlement, PlayedWork, settle_columns
from fedge.studies.fleet.kind_table import (
    MAX_KNOWN_MODES,
    KindKnowledge,
    KindTable,
    PooledRows,
    choose_probe,
    learn,
)
from fedge.studies.fleet.work_choice import Rows, WorkChoice, WorkRoom, build_curve, choose_predicted_work
from fedge.types import Floats

MAX_PROBERS = 8
"""Clients of a kind that probe in a round; all of them the first time, to learn their offsets.

A kind learns what one board would. More clients probe at a cost and sharpen only the mean of a mode, by their number's
root."""
MAX_BUDGETS = 20
"""Step budgets of a kind that count when a probe is judged, the latest ones: see ``MAX_ROUNDS_AHEAD``."""
MAX_OFFSET_LOG = 3.0 * OFFSET_TIME_SD
"""Limit on the ratio of one measurement to its prediction (log): a rare slow-down is no property of the client."""


@dataclass(frozen=True, slots=True, eq=False)
class PlayedRound:
    """A round that was played by c clients.

    Attributes:
        clients: Their indices, ascending.
        deadline_s: The round's deadline in seconds; None without one.
        true_s: Seconds of each client's work without noise; ``true_j`` its energy.
        waiting_w: Power of each client while it waits.
        settled: The end of the round as measured.
        busy_s: Seconds until each reply, as measured.
    """

    clients: Rows
    deadline_s: float | None
    true_s: Floats
    true_j: Floats
    waiting_w: Floats
    settled: ColumnSettlement
    busy_s: Floats


@dataclass(slots=True, eq=False)
class _RunningWork:
    """The work of the round's clients so far, shape (c,) each."""

    columns: FleetColumns
    clients: Rows
    rng: np.random.Generator
    left: Floats
    log_s: Floats
    log_w: Floats
    measured: Counts
    tried: np.ndarray
    explored: Counts
    work_s: Floats
    work_j: Floats
    true_s: Floats
    true_j: Floats
    mode: Rows
    """Candidate of the last part; -1 before the first."""

    def offsets(self, places: Rows) -> ClientOffsets:
        return estimate_offsets(self.log_s[places], self.log_w[places], self.measured[places])

    def run_part(self, kind: KindTable, known: KindKnowledge, places: Rows, rows: Rows, steps: Floats) -> KindKnowledge:
        """Run and measure ``steps`` steps in the candidates ``rows``, and pool the measurements.

        Args:
            kind: The kind of these clients.
            known: What it has learnt.
            places: The clients, as places among those of the round.
            rows: A candidate for each.
            steps: Steps of each; those with none are left out.
        """
        busy = steps > 0
        places, rows, steps = places[busy], rows[busy], steps[busy]
        if not len(places):
            return known
        clients, at = self.clients[places], kind.candidates[rows]
        step_s = kind.surface.step_s[at] * np.exp(self.columns.log_time[clients])
        power_w = kind.surface.power_w[at] * np.exp(self.columns.log_power[clients])
        seen_s, seen_w = _measure(step_s, power_w, steps, self.rng)
        fresh = self.mode[places] < 0
        count = steps + np.where(fresh, WARM_UP_STEPS, 0.0)
        switch_s = np.where(~fresh & (self.mode[places] != rows), MODE_SWITCH_S, 0.0)
        self.true_s[places] += (time_s := count * step_s + switch_s)
        self.true_j[places] += time_s * power_w
        self.work_s[places] += (time_s := count * seen_s + switch_s)
        self.work_j[places] += time_s * seen_w
        self.left[places] -= steps
        self.mode[places] = rows
        own = self.offsets(places)
        log_s, log_w = np.log(seen_s), np.log(seen_w)
        known = learn(kind, known, PooledRows(rows, steps, log_s - own.time, log_w - own.power))
        self._update_offsets(known, places, rows, log_s, log_w)
        return known

    def _update_offsets(self, known: KindKnowledge, places: Rows, rows: Rows, log_s: Floats, log_w: Floats) -> None:
        predictions, limit = known.predictions, MAX_OFFSET_LOG
        self.log_s[places] += np.clip(log_s - np.log(predictions.step_s[rows]), -limit, limit)
        self.log_w[places] += np.clip(log_w - np.log(predictions.power_w[rows]), -limit, limit)
        self.measured[places] += 1
        order = np.zeros(len(predictions.step_s), dtype=np.uint64)
        order[known.rows] = np.minimum(np.arange(len(known.rows)), MAX_KNOWN_MODES)
        bits = np.left_shift(np.uint64(1), order[rows])
        self.explored[places] += (self.tried[places] & bits) == 0
        self.tried[places] |= bits


def _measure(step_s: Floats, power_w: Floats, steps: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return measured step times and powers, with the noise of ``fedge.devices.emulated_board``."""
    jitter_sd, n = JITTER_SD / np.sqrt(steps), len(steps)
    seen_s = step_s * np.exp(np.hypot(NOISE_TIME_SD, jitter_sd) * rng.standard_normal(n))
    seen_w = power_w * np.exp(np.hypot(NOISE_POWER_SD, jitter_sd) * rng.standard_normal(n))
    slowed = rng.random(n) < OUTLIER_CHANCE
    return np.where(slowed, seen_s * rng.uniform(*OUTLIER_SLOWDOWN, size=n), seen_s), seen_w


def play_round(
    columns: FleetColumns, experiment: Experiment, state: ColumnState, number: int
) -> tuple[ColumnState, PlayedRound]:
    """Play round ``number`` and return the state after it.

    Raises:
        RunFailed: No client will ever be available.
    """
    state = client_columns.wait_until_available(columns, state, number, experiment.seed)
    offered = np.flatnonzero(client_columns.mask_available(columns, state))
    fastest_s = [float(known.fitted.step_s[find_top(kind)]) for kind, known in _pair_kinds(columns, state)]
    clients = select_columns(experiment, columns, state, offered, number, fastest_s)
    deadline_s, own_s = _plan_round(columns, experiment, state, clients)
    work = _start_work(columns, state, clients, make_generator(experiment.seed, number, "noise", "columns"))
    knowledge = list(state.knowledge)
    kind_of = columns.kind[clients]
    for index, kind in enumerate(columns.kinds):
        if len(places := np.flatnonzero(kind_of == index)):
            goal = _KindGoal(experiment, columns.link_s, deadline_s, own_s, number)
            knowledge[index] = _play_kind(goal, kind, knowledge[index], places, work)
    limit_s = min((limit for limit in (deadline_s, own_s) if limit is not None), default=None)
    return _finish_round(
        columns, experiment, dataclasses.replace(state, knowledge=tuple(knowledge)), work, (number, limit_s)
    )


def _pair_kinds(columns: FleetColumns, state: ColumnState) -> zip[tuple[KindTable, KindKnowledge]]:
    return zip(columns.kinds, state.knowledge, strict=True)


def find_top(kind: KindTable) -> int:
    """Return the candidate that is the kind's fastest mode."""
    return find_nearest_row(kind.modes, kind.surface.modes[kind.top])


def _plan_round(
    columns: FleetColumns, experiment: Experiment, state: ColumnState, clients: Rows
) -> tuple[float | None, float | None]:
    """Return the planned deadline, and the user's own unless the plan cannot keep it, as ``plan_round`` does."""
    policy = experiment.policy
    if policy.name not in column_plan.PLANNERS:
        return None, policy.deadline_s
    z = column_plan.plan_margin_z(policy)
    used = np.bincount(columns.kind[clients], minlength=len(columns.kinds))
    fronts = [
        _build_known_front(kind, known, z) if count else None
        for count, (kind, known) in zip(used, _pair_kinds(columns, state), strict=True)
    ]
    own = estimate_offsets(state.log_s[clients], state.log_w[clients], state.measured[clients])
    scale = (columns.steps[clients] + WARM_UP_STEPS) * np.exp(own.time)
    groups = column_plan.group_clients(columns.entry[clients], scale, np.exp(own.power))
    plan = column_plan.plan_deadline(policy, column_plan.build_group_columns(columns, groups, fronts))
    assert plan is not None
    own_s = policy.deadline_s
    return plan.deadline_s, own_s if plan.feasible or own_s is None or own_s >= plan.deadline_s else None


def _build_known_front(kind: KindTable, known: KindKnowledge, z: float) -> column_plan.PlannedFront:
    predictions, top = known.predictions, find_top(kind)
    curve = build_curve(predictions.step_s, predictions.step_s * (predictions.power_w - kind.idle_w))
    sd_log = predictions.step_s_sd_log
    at_top = float(predictions.step_s[top]), float(sd_log[top]), float(predictions.power_w[top])
    idle_w = kind.idle_w, float(kind.surface.idle_w[kind.top])
    return column_plan.build_planned_front(curve, sd_log[curve.rows], z, at_top, idle_w)


def _start_work(columns: FleetColumns, state: ColumnState, clients: Rows, rng: np.random.Generator) -> _RunningWork:
    return _RunningWork(
        columns,
        clients,
        rng,
        left=columns.steps[clients],
        log_s=state.log_s[clients],
        log_w=state.log_w[clients],
        measured=state.measured[clients],
        tried=state.tried[clients],
        explored=state.explored[clients],
        work_s=np.zeros(len(clients)),
        work_j=np.zeros(len(clients)),
        true_s=np.zeros(len(clients)),
        true_j=np.zeros(len(clients)),
        mode=np.full(len(clients), -1, dtype=np.intp),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _KindGoal:
    """The goal of a round for the clients of one kind.

    Attributes:
        link_s: Seconds of both transfers, by entry.
        planned_s: The planned deadline in seconds; ``own_s`` the user's.
    """

    experiment: Experiment
    link_s: Floats
    planned_s: float | None
    own_s: float | None
    number: int

    def room_s(self, link_s: Floats, factor: float, slack: Floats | float) -> Floats:
        """Return the seconds for work, shape of ``link_s``.

        Args:
            link_s: Seconds of the clients' transfers.
            factor: Factor of the work's time in a deadline planned from the prior, see ``_play_kind``.
            slack: Share by which probes extend a planned round.
        """
        planned_s = math.inf if self.planned_s is None else self.planned_s
        end_s = (link_s + (planned_s - link_s) * factor) * (1.0 + slack)
        return np.minimum(end_s, math.inf if self.own_s is None else self.own_s) - link_s


def _play_kind(
    goal: _KindGoal, kind: KindTable, known: KindKnowledge, places: Rows, work: _RunningWork
) -> KindKnowledge:
    """Play the round of a kind's clients: probes of a few, then the rest of everyone's steps."""
    policy, exploration = goal.experiment.policy.name, goal.experiment.exploration
    if is_pinned(policy):
        preset = policy.partition(":")[2]
        row = find_nearest_row(kind.modes, kind.surface.modes[kind.presets[preset] if preset else kind.top])
        return work.run_part(kind, known, places, np.full(len(places), row), work.left[places])
    link_s = goal.link_s[work.columns.entry[work.clients[places]]]
    factor, slack = 1.0, exploration.slack if len(known.budgets_s) < exploration.slack_rounds else 0.0
    prior_s = float(known.fitted.step_s[find_top(kind)])
    was_new, probes_first = len(known.rows) == 0, exploration.share > 0 and exploration.probes > 0
    typical = int(np.argsort(work.left[places])[len(places) // 2])
    steps = float(work.left[places[typical]]) + WARM_UP_STEPS
    budget_s = float(goal.room_s(link_s[[typical]], 1.0, 0.0)[0]) / steps
    for _ in range(exploration.probes if probes_first else 0):
        budget = _build_budget(
            goal, known, work, places[[typical]], goal.room_s(link_s[[typical]], factor, slack), budget_s
        )
        row = choose_probe(kind, known, budget, exploration.modes or MAX_KNOWN_MODES)
        probed = None if row is None else _probe(kind, known, work, places, (row, budget, exploration.share))
        if probed is None:
            break
        known = probed
        if was_new:  # a deadline planned from the prior is rescaled to the kind's own fastest mode
            factor = min(1.0, float(known.predictions.step_s[find_top(kind)]) / prior_s)
    has_probed = work.mode[places] >= 0
    chosen, allowed = _choose(
        goal, kind, known, work, places, goal.room_s(link_s, factor, np.where(has_probed, slack, 0.0))
    )
    known = _run_choice(kind, known, work, places, chosen, allowed)
    return dataclasses.replace(known, budgets_s=(*known.budgets_s, budget_s)[-MAX_BUDGETS:])


def _build_budget(
    goal: _KindGoal, known: KindKnowledge, work: _RunningWork, typical: Rows, room_s: Floats, now_s: float
) -> ProbeBudget:
    """Return what is left of the round of a typical client that probes."""
    offset = float(np.exp(work.offsets(typical).time[0]))
    warm_up = WARM_UP_STEPS if work.mode[typical[0]] < 0 else 0.0
    top_w = float(known.fitted.power_w.max())
    return ProbeBudget(
        steps=float(work.left[typical[0]]) + warm_up,
        left_s=float(room_s[0] - work.work_s[typical[0]]) / offset,
        probe_s=goal.experiment.exploration.probe_s,
        margin_z=column_plan.choice_margin_z(goal.experiment.policy),
        allowed_s=(*known.budgets_s, now_s),
        foresight=goal.experiment.exploration.foresight,
        rounds_left=goal.experiment.rounds - goal.number,
        switch_s=MODE_SWITCH_S,
        switch_j=MODE_SWITCH_S * top_w,
        warm_up=warm_up,
    )


def _probe(
    kind: KindTable, known: KindKnowledge, work: _RunningWork, places: Rows, probe: tuple[int, ProbeBudget, float]
) -> KindKnowledge | None:
    """Let clients measure one mode, and return what is known then; None if none has the steps for it.

    Args:
        kind: The kind.
        known: What it has learnt.
        work: The round's work.
        places: The kind's clients.
        probe: The candidate, what is left of the round, and the share of a client's steps that probes may take.
    """
    row, budget, share = probe
    new = len(known.rows) == 0
    steps = float(count_probe_steps(known.predictions.step_s[[row]], budget)[0])
    total = work.columns.steps[work.clients[places]]
    able = steps < work.left[places]
    if not new:
        able &= total - work.left[places] + steps <= share * total
    probers = places[able]
    if not new and len(probers) > MAX_PROBERS:
        # Those that have begun go on, so that few clients change modes; then any of the others.
        order = np.lexsort((work.rng.random(len(probers)), work.measured[probers], work.left[probers] - total[able]))
        probers = probers[order[:MAX_PROBERS]]
    if not len(probers):
        return None
    return work.run_part(kind, known, probers, np.full(len(probers), row), np.full(len(probers), steps))


def _choose(
    goal: _KindGoal, kind: KindTable, known: KindKnowledge, work: _RunningWork, places: Rows, room_s: Floats
) -> tuple[WorkChoice, Rows]:
    """Choose each client's mode or modes for the rest of its steps, and return the candidates to which rows refer."""
    exploration = goal.experiment.exploration
    probes_first = exploration.share > 0 and exploration.probes > 0 and len(known.rows) > 0
    allowed = np.sort(known.rows) if probes_first else np.arange(len(kind.candidates))
    own, fresh = work.offsets(places), work.mode[places] < 0
    offset, switch_s = np.exp(own.time), np.where(fresh, 0.0, MODE_SWITCH_S)
    room = WorkRoom(
        np.maximum(work.left[places], 1.0) + np.where(fresh, WARM_UP_STEPS, 0.0),
        left_s=(room_s - work.work_s[places] - switch_s) / offset,
        switch_s=MODE_SWITCH_S / offset,
        switch_w=float(known.fitted.power_w.max()) - kind.idle_w,
    )
    predictions = known.predictions.select_rows(allowed.tolist())
    z = column_plan.choice_margin_z(goal.experiment.policy)
    return choose_predicted_work(predictions, kind.idle_w, z, own.time_sd, room), allowed


def _run_choice(
    kind: KindTable, known: KindKnowledge, work: _RunningWork, places: Rows, chosen: WorkChoice, allowed: Rows
) -> KindKnowledge:
    """Run the slower part of every client, then the rest."""
    warm = np.where(work.mode[places] < 0, math.ceil(WARM_UP_STEPS), 0)
    slow = np.clip(chosen.slow_steps - warm, 0.0, work.left[places] - 1.0)
    known = work.run_part(kind, known, places, allowed[chosen.slow], slow)
    return work.run_part(kind, known, places, allowed[chosen.fast], work.left[places])


def _finish_round(
    columns: FleetColumns,
    experiment: Experiment,
    state: ColumnState,
    work: _RunningWork,
    place: tuple[int, float | None],
) -> tuple[ColumnState, PlayedRound]:
    """Settle the round ``place``, its number and deadline, and return the state after it."""
    (number, deadline_s), clients, entry = place, work.clients, columns.entry[work.clients]
    waiting_w = columns.waiting_w(clients)
    if is_pinned(policy := experiment.policy.name):
        preset = policy.partition(":")[2]
        pinned = [float(k.surface.idle_w[k.presets[preset] if preset else k.top]) for k in columns.kinds]
        waiting_w = columns.gather(pinned, clients) * np.exp(columns.log_power[clients])
    played = PlayedWork(
        columns.down_s[entry],
        work.work_s,
        columns.up_s[entry],
        work.work_j,
        idle_w=waiting_w,
        radio_w=columns.radio_w[entry],
        away_s=state.switch_s[clients] - state.clock_s,
        left_j=state.left_j[clients],
        charging_w=columns.charging_w[entry],
        capacity_j=columns.capacity_j[entry],
    )
    selection = experiment.selection
    wanted = selection.count if selection.over_commit > 1.0 and len(clients) > (selection.count or 0) else None
    settled = settle_columns(played, experiment.late, deadline_s, wanted)
    idle = np.ones(len(columns), dtype=np.bool_)
    idle[clients] = False
    state = client_columns.drain_idle(columns, state, idle, settled.round_s)
    busy_s = played.busy_s
    changed = {
        "log_s": work.log_s,
        "log_w": work.log_w,
        "measured": work.measured,
        "tried": work.tried,
        "explored": work.explored,
        "last_round": number,
        "busy_s": busy_s,
        "left_j": settled.left_j,
    }
    for name, values in changed.items():
        column = getattr(state, name).copy()
        column[clients] = values
        changed[name] = column
    rng = make_generator(experiment.seed, number, "availability", "columns")
    state = dataclasses.replace(state, **changed)
    state = client_columns.advance_clock(columns, state, state.clock_s + settled.round_s, rng)
    return state, PlayedRound(clients, deadline_s, work.true_s, work.true_j, waiting_w, settled, busy_s)
