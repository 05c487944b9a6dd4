"""A fleet study in columns: one round, one run, and the comparison of its rounds by the true costs.

A round selects, plans, plays every kind, settles, and gives the next state; all of these are pure functions.

Plan: clients of an entry that are about as fast are one board of the plan. Clients of a kind differ by their steps and
by an offset, so that their fronts differ by a factor s in time and by a factor p in power. A group is planned with the
mean s of its clients and the sums of s p and of p in its joules and watts. Groups are ``CLASS_WIDTH`` wide, so that the
size of a plan is bounded, whatever the number of clients.

Settlement: by the rules of ``fedge.telemetry.round_columns``, as the server's. A client's work is one part, so that
work that is cut short counts at the mean power of the whole, where the server knows the power of every part.

A round is compared with oracle, MAXN and presets by the true costs: the record of ``round_comparison``. Energies and
ends are summed up by entry of the fleet instead of by board. Symbols: a client of a kind does N steps, the warm-up
included, at s = N exp(its offset of time), in a mode with t seconds, p watts and i idle watts of a typical board; its
own watts are those times q = exp(its offset of power).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.decisions.planning import is_pinned
from fedge.decisions.planning.cost_sweep import DeadlinePlan
from fedge.decisions.planning.fleet_planners import find_balanced_deadline, find_least_energy_deadline
from fedge.decisions.planning.front_columns import FrontColumns
from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS
from fedge.errors import BadInput
from fedge.experiment import BOARD_PLACE, Experiment, PolicySpec
from fedge.pareto import MAX_FRONT_POINTS
from fedge.phases import begin_phase
from fedge.seeds import make_generator
from fedge.studies.fleet import client_columns
from fedge.studies.fleet.client_columns import (
    COLUMN_SELECTORS,
    ColumnState,
    FleetColumns,
    build_fleet_columns,
    replace_rows,
    select_columns,
    start_state,
)
from fedge.studies.fleet.fleet_costs import (
    PIECES_PER_STEP,
    FleetCost,
    PresetTable,
    RoundClients,
    find_both_best_presets,
    list_preset_work,
)
from fedge.studies.fleet.kind_round import KindGoal, KindRound, RunningWork, choice_margin_z, start_work
from fedge.studies.fleet.kind_table import (
    MAX_KNOWN_MODES,
    KindKnowledge,
    KindTable,
    Rows,
    WorkCurve,
    WorkRoom,
    build_curve,
    choose_work,
)
from fedge.studies.fleet.round_comparison import FleetRun, RoundComparison, compare_alternatives, compute_late_s
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
    own = state.record.select(clients).estimate_offsets()
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
    return dataclasses.replace(
        state,
        record=state.record.replace(work.clients, work.record),
        last_round=replace_rows(state.last_round, work.clients, number),
        busy_s=replace_rows(state.busy_s, work.clients, busy_s),
        left_j=replace_rows(state.left_j, work.clients, left_j),
    )


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
    """Build a kind's front, thinned to ``MAX_FRONT_POINTS``, with MAXN among its points; ``z`` is the margin.

    ``sd_log`` are the standard deviations of the curve's log times, shape (f,); ``top`` has the seconds per step at
    MAXN, their standard deviation, and watts; ``idle_w`` as in ``PlannedFront``.
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


COLUMNS_FROM = 1_000
"""Number of clients from which a study uses columns by default. Its boards are others at the same seed, so that smaller
fleets, which a coordinator can play, change engine only on request."""
COORDINATOR_S = 0.03
"""CPU time of the coordinator per client and round (fleet40.yaml, rounds 3 to 12: 0.036 s; 1,000 boards: 0.024 s)."""
LONG_S = 60.0
"""Time of a run from which the faster engine is named."""
ENGINES = ("coordinator", "columns")
AMBIENT_C = 25.0
"""The default ambient temperature; columns have no temperature, so that another one would change nothing."""
COLUMN_POLICIES = (*PLANNERS, "least-energy-within-deadline", "maxn", "preset:NAME")


def count_clients(experiment: Experiment) -> int:
    """Return the number of boards of the fleet."""
    return sum(entry.count for entry in experiment.fleet)


def check_columns(experiment: Experiment) -> None:
    """Check that the experiment has nothing that columns do not play.

    Raises:
        BadInput: For the first field that would be ignored.
    """
    for field, got, right in _list_unsupported(experiment):
        raise BadInput(field, got, f"{right}, or --engine coordinator: columns do not play this")


def prefers_columns(experiment: Experiment) -> bool:
    """Return whether a study uses columns by default: for large fleets, and for very large ones also where columns
    refuse a field, since a coordinator would take hours.
    """
    clients = count_clients(experiment)
    return clients >= 2 * COLUMNS_FROM or (
        clients >= COLUMNS_FROM and not any(True for _ in _list_unsupported(experiment))
    )


def describe_faster_engine(experiment: Experiment, command: str) -> str | None:
    """Return a note with the command for columns, if they play an experiment that takes a coordinator over a minute."""
    clients, rounds = count_clients(experiment), experiment.rounds
    seconds = COORDINATOR_S * rounds * (experiment.selection.count or clients)
    if seconds < LONG_S or any(True for _ in _list_unsupported(experiment)):
        return None
    return f"{clients:,} boards take about {seconds / 60:.0f} min here; {command} simulates such fleets in seconds"


def _list_unsupported(experiment: Experiment) -> Iterator[tuple[str, str, str]]:
    """Yield the field, the value and what columns can play instead."""
    policy, exploration = experiment.policy.name, experiment.exploration
    if policy not in COLUMN_POLICIES and not is_pinned(policy):
        yield "policy.name", repr(policy), f"one of {', '.join(COLUMN_POLICIES)}"
    if experiment.selection.name not in COLUMN_SELECTORS:
        yield "selection.name", repr(experiment.selection.name), f"one of {', '.join(COLUMN_SELECTORS)}"
    if experiment.late.action not in ("accept", "drop"):
        yield "late.action", repr(experiment.late.action), "accept or drop"
    if experiment.signal is not None:
        yield "signal", repr(experiment.signal.trace), "nothing"
    if not experiment.share_samples:
        yield "share_samples", "false", "true: all boards of a kind share one posterior"
    if exploration.modes is None or exploration.modes > MAX_KNOWN_MODES:
        yield "exploration.modes", str(exploration.modes or "null"), f"a number of at most {MAX_KNOWN_MODES}"
    for place, entry in enumerate(experiment.fleet):
        given = {
            "serving": entry.serving is not None,
            "loader": entry.loader is not None,
            "width": entry.width < 1.0,
            "availability.trace": entry.availability is not None and entry.availability.trace is not None,
            "ambient_c": entry.ambient_c != AMBIENT_C,
            "truth": BOARD_PLACE in entry.truth,
        }
        for key in (key for key, found in given.items() if found):
            yield f"fleet[{place}].{key}", "a value", "nothing"


def run_column_study(experiment: Experiment, steps: int | None) -> FleetRun:
    """Play an experiment that ``check_columns`` accepts, as prepared for the study, in columns.

    Every board does ``steps`` per round, by default about 30 s at MAXN.

    Raises:
        RunFailed: If no client will ever be available.
    """
    columns = build_fleet_columns(experiment, steps)
    state, rounds, explored = start_state(columns, experiment.seed), [], []
    for number in range(1, experiment.rounds + 1):
        begin_phase(f"round {number} of {experiment.rounds}")
        state, played = simulate_round(columns, experiment, state, number)
        rounds.append(compare_columns(columns, played, experiment.policy, number))
        explored.append(float(state.record.explored.sum() / max(1, np.count_nonzero(state.record.explored))))
    return FleetRun(experiment.policy.name, experiment.seed, tuple(rounds), tuple(explored), engine="columns")


MAX_LENGTHS = 64
"""Round lengths that are tried for the best presets, evenly spaced among all possible ones."""


@dataclass(frozen=True, slots=True, eq=False)
class _TrueClients:
    """The clients of a round by their true figures, s, q and their transfers, and in groups: ``RoundAlternatives``."""

    columns: FleetColumns
    clients: Rows
    scale: Floats
    power: Floats
    by_entry: RoundClients
    """The clients with their costs summed up by entry of the fleet."""
    groups: ClientGroups

    @classmethod
    def from_columns(cls, columns: FleetColumns, clients: Rows) -> Self:
        entry = columns.entry[clients]
        scale = (columns.steps[clients] + WARM_UP_STEPS) * np.exp(columns.log_time[clients])
        power, link_s = np.exp(columns.log_power[clients]), columns.link_s[entry]
        radio_j = (columns.radio_w * columns.link_s)[entry]
        by_entry = RoundClients(columns.names, entry, link_s=link_s, radio_j=radio_j)
        groups = group_clients(entry, scale, power)
        return cls(columns, clients, scale=scale, power=power, by_entry=by_entry, groups=groups)

    @property
    def kind(self) -> Rows:
        return self.columns.kind[self.clients]

    def gather(self, find: Callable[[KindTable], float]) -> Floats:
        """Return a figure of its kind for each client."""
        return self.columns.gather([find(kind) for kind in self.columns.kinds], self.clients)

    def cost_at_maxn(self, *, waits_low: bool) -> FleetCost:
        work_s = self.scale * self.gather(lambda kind: float(kind.surface.step_s[kind.top]))
        work_j = work_s * self.power * self.gather(lambda kind: float(kind.surface.power_w[kind.top]))
        place = 0 if waits_low else 1
        waiting_w = self.power * self.gather(lambda kind: kind.waiting_w[place])
        return self.by_entry.cost(work_s, work_j - waiting_w * work_s, waiting_w)

    def cost_as_planned(self, policy: PolicySpec, else_s: float, *, plausible: bool) -> FleetCost:
        plan, deadline_s = self._plan(policy, plausible=plausible), policy.deadline_s
        if plan is not None:
            own_s = deadline_s if plan.feasible and deadline_s is not None else math.inf
            deadline_s = min(plan.deadline_s, own_s)
        return self._cost_until(deadline_s or else_s, plausible=plausible)

    def can_keep_limits(self, policy: PolicySpec) -> bool:
        plan = self._plan(policy, plausible=True)
        return plan is None or plan.feasible

    def cost_within(self, length_s: float) -> FleetCost:
        return self._cost_until(length_s, plausible=True)

    def cost_presets(self, policy: PolicySpec, maxn: FleetCost) -> tuple[FleetCost, FleetCost]:
        columns, groups = self.columns, self.groups
        link_s = columns.link_s[groups.entry]
        radio_j = groups.count * (columns.radio_w * columns.link_s)[groups.entry]
        clients = RoundClients(columns.names, groups.entry, link_s=link_s, radio_j=radio_j)
        options = [list_preset_work(one.surface, one.presets.values(), 1.0, one.top) for one in columns.kinds]
        return find_both_best_presets(
            clients, options, policy, maxn, scale=self._scale_to_groups, most_lengths=MAX_LENGTHS
        )

    def _scale_to_groups(self, per_step: PresetTable) -> PresetTable:
        """Return the presets of the groups, one row each, from those of a step by kind."""
        groups, kind = self.groups, self.columns.kind_of[self.groups.entry]
        return PresetTable(
            groups.scale[:, None] * per_step.work_s[kind],
            above_j=groups.energy[:, None] * per_step.above_j[kind],
            waiting_w=groups.power[:, None] * per_step.waiting_w[kind],
        )

    def _plan(self, policy: PolicySpec, *, plausible: bool) -> DeadlinePlan | None:
        """Return what the policy's planner plans from the true fronts, or None if it plans nothing."""
        fronts = []
        for index, kind in enumerate(self.columns.kinds):
            surface, top, curve = kind.surface, kind.top, kind.plausible if plausible else kind.every
            at_top = float(surface.step_s[top]), 0.0, float(surface.power_w[top])
            front = build_planned_front(curve, np.zeros(len(curve.rows)), 0.0, top=at_top, idle_w=kind.waiting_w)
            fronts.append(front if (self.kind == index).any() else None)
        return plan_deadline(policy, build_group_columns(self.columns, self.groups, fronts))

    def _cost_until(self, deadline_s: float, *, plausible: bool) -> FleetCost:
        """Return the cost of the round in which every client spends the least energy until ``deadline_s``."""
        work_s, above_j = np.zeros(len(self.clients)), np.zeros(len(self.clients))
        for index, kind in enumerate(self.columns.kinds):
            if len(mine := np.flatnonzero(self.kind == index)):
                speed = self.scale[mine] / (self.columns.steps[self.clients[mine]] + WARM_UP_STEPS)
                room_s = (deadline_s - self.by_entry.link_s[mine]) / speed
                curve = kind.plausible if plausible else kind.every
                work_s[mine], above_j[mine] = _least_energy(curve, self.scale[mine] / speed, room_s, speed)
        idle_w = self.power * self.gather(lambda kind: kind.idle_w)
        return self.by_entry.cost(work_s, self.power * above_j, idle_w)


def _least_energy(curve: WorkCurve, steps: Floats, room_s: Floats, speed: Floats) -> tuple[Floats, Floats]:
    """Return seconds, and joules above idling at the kind's power, of the least energy within ``room_s``.

    Like the oracle of single boards it counts steps in halves and prices a change of mode at the least power.
    """
    t, e = curve.step_s / PIECES_PER_STEP, curve.step_j / PIECES_PER_STEP
    switch_w = float((curve.step_j / curve.step_s).min())
    pieces = dataclasses.replace(curve, rows=np.arange(len(t)), step_s=t, step_j=e)
    chosen = choose_work(pieces, WorkRoom(PIECES_PER_STEP * steps, room_s, MODE_SWITCH_S / speed, switch_w))
    fast = np.where(chosen.in_time, chosen.fast, 0)
    slow = np.where(chosen.in_time, chosen.slow, 0)
    count, switches = chosen.slow_steps, (chosen.slow_steps > 0) & chosen.in_time
    rest = PIECES_PER_STEP * steps - count
    work_s = speed * (count * t[slow] + rest * t[fast]) + MODE_SWITCH_S * switches
    return work_s, speed * (count * e[slow] + rest * e[fast]) + MODE_SWITCH_S * switch_w * switches


def compare_columns(columns: FleetColumns, played: SimulatedRound, policy: PolicySpec, number: int) -> RoundComparison:
    """Compare one round of columns with baselines and the oracle by the true costs."""
    true, late_s = _TrueClients.from_columns(columns, played.clients), compute_late_s(played.deadline_s)
    above_j = played.true_j - played.waiting_w * played.true_s
    return compare_alternatives(
        true,
        policy,
        true.by_entry.cost(played.true_s, above_j, played.waiting_w),
        round=number,
        deadline_s=played.deadline_s,
        played_s=played.settled.verdict.round_s,
        played_j=float(played.settled.energy_j.sum()),
        missed=int((true.by_entry.link_s + played.true_s > late_s).sum()),
        missed_played=int((played.busy_s > late_s).sum()),
        clients=len(played.clients),
    )
