"""A fleet study in columns: which experiments it can play, one run of it, and the comparison of its rounds.

A round is compared with oracle, MAXN and presets by the true costs: the record of ``round_comparison``. Energies and
ends are summed up by entry of the fleet instead of by board. Symbols: a client of a kind does N steps, the warm-up
included, at s = N exp(its offset of time), in a mode with t seconds, p watts and i idle watts of a typical board; its
own watts are those times q = exp(its offset of power).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedge.decisions.planning import is_pinned
from fedge.decisions.planning.cost_sweep import DeadlinePlan
from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS
from fedge.errors import BadInput
from fedge.experiment import BOARD_PLACE, Experiment, PolicySpec
from fedge.phases import begin_phase
from fedge.studies.fleet.client_columns import COLUMN_SELECTORS, FleetColumns, build_fleet_columns, start_state
from fedge.studies.fleet.column_rounds import (
    PLANNERS,
    ClientGroups,
    SimulatedRound,
    build_group_columns,
    build_planned_front,
    group_clients,
    plan_deadline,
    simulate_round,
)
from fedge.studies.fleet.fleet_costs import (
    PIECES_PER_STEP,
    FleetCost,
    PresetTable,
    RoundClients,
    find_both_best_presets,
    list_preset_work,
)
from fedge.studies.fleet.kind_table import MAX_KNOWN_MODES, KindTable, Rows, WorkCurve, WorkRoom, choose_work
from fedge.studies.fleet.round_comparison import FleetRun, RoundComparison, compare_alternatives, compute_late_s
from fedge.types import Floats

COLUMNS_FROM = 2_000
"""Number of clients from which a study uses columns by default.

The coordinator needs about 0.2 s of CPU time per board and round (fleet40.yaml, 12 rounds), minutes for a round there.
"""
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


def _list_unsupported(experiment: Experiment) -> Iterator[tuple[str, str, str]]:
    """Yield the field, the value and what columns can play instead."""
    policy, exploration = experiment.policy.name, experiment.exploration
    if policy not in COLUMN_POLICIES and not is_pinned(policy):
        yield "policy.name", repr(policy), f"one of {', '.join(COLUMN_POLICIES)}"
    if experiment.selection.name not in COLUMN_SELECTORS:
        yield "selection.name", repr(experiment.selection.name), f"one of {', '.join(COLUMN_SELECTORS)}"
    if experiment.late.action not in ("accept", "drop"):
        yield "late.action", repr(experiment.late.action), "accept or drop"
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
    """Play an experiment, as prepared for the study, in columns.

    Args:
        experiment: The experiment; ``check_columns`` accepts it.
        steps: Steps of every board per round; None for about 30 s at MAXN.

    Raises:
        RunFailed: If no client will ever be available.
    """
    columns = build_fleet_columns(experiment, steps)
    state, rounds, explored = start_state(columns, experiment.seed), [], []
    for number in range(1, experiment.rounds + 1):
        begin_phase(f"round {number} of {experiment.rounds}")
        state, played = simulate_round(columns, experiment, state, number)
        rounds.append(compare_columns(columns, played, experiment.policy, number))
        explored.append(float(state.explored.sum() / max(1, np.count_nonzero(state.explored))))
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
        return cls(columns, clients, scale, power, by_entry, groups=group_clients(entry, scale, power))

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
