"""The clients of one kind in a round of columns: probes of a few of them, then the rest of everyone's steps."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import compute_margin_z
from fedge.decisions.planning import is_pinned
from fedge.decisions.planning.fleet_planners import CONFIDENCE
from fedge.decisions.probe_choice import ProbeBudget, count_probe_steps, scale_slack
from fedge.devices.emulated_board import (
    JITTER_SD,
    MODE_SWITCH_S,
    NOISE_POWER_SD,
    NOISE_TIME_SD,
    OUTLIER_CHANCE,
    OUTLIER_SLOWDOWN,
    WARM_UP_STEPS,
)
from fedge.experiment import Experiment, PolicySpec
from fedge.physics.model_fit import OFFSET_TIME_SD
from fedge.studies.fleet.client_columns import ClientOffsets, ClientRecord, ColumnState, FleetColumns
from fedge.studies.fleet.kind_table import (
    MAX_KNOWN_MODES,
    KindKnowledge,
    KindTable,
    PooledRows,
    Rows,
    WorkChoice,
    WorkRoom,
    choose_predicted_work,
    choose_probe,
    learn,
)
from fedge.types import Floats

MAX_PROBERS = 8
"""Clients of a kind that probe in a round; all of them the first time, to learn their offsets.

A kind learns what one board would. More clients probe at a cost and sharpen only the mean of a mode, by their number's
root.
"""
MAX_BUDGETS = 20
"""Step budgets of a kind that count when a probe is judged, the latest ones: see ``MAX_ROUNDS_AHEAD``."""
MAX_OFFSET_LOG = 3.0 * OFFSET_TIME_SD
"""Limit on the ratio of one measurement to its prediction (log): a rare slow-down is no property of the client."""


def choice_margin_z(policy: PolicySpec) -> float:
    """Return the margin with which clients choose their modes, in standard deviations."""
    return compute_margin_z(CONFIDENCE if policy.confidence is None else policy.confidence, "policy.confidence")


@dataclass(slots=True, eq=False)
class RunningWork:
    """The work of the c clients of a round so far, arrays of shape (c,); it is complete when nothing is left.

    Attributes:
        clients: The clients, ascending.
        left: Steps left.
        record: What the clients have measured.
        work_s: Seconds of work as measured; ``work_j`` its joules.
        true_s: Seconds of work without noise; ``true_j`` its joules.
        mode: Candidate of the last part; -1 before the first.
    """

    columns: FleetColumns
    clients: Rows
    rng: np.random.Generator
    left: Floats
    record: ClientRecord
    work_s: Floats
    work_j: Floats
    true_s: Floats
    true_j: Floats
    mode: Rows

    def estimate_offsets(self, places: Rows) -> ClientOffsets:
        """Return the expected offsets of the clients at ``places``."""
        return self.record.select(places).estimate_offsets()


def start_work(columns: FleetColumns, state: ColumnState, clients: Rows, rng: np.random.Generator) -> RunningWork:
    """Return the work before the first step."""
    none = np.zeros(len(clients))
    return RunningWork(
        columns,
        clients,
        rng,
        left=columns.steps[clients],
        record=state.record.select(clients),
        work_s=none.copy(),
        work_j=none.copy(),
        true_s=none.copy(),
        true_j=none.copy(),
        mode=np.full(len(clients), -1, dtype=np.intp),
    )


@dataclass(frozen=True, slots=True, eq=False)
class KindGoal:
    """The goal of a round: the planned deadline in seconds, and the user's own; None if there is none."""

    experiment: Experiment
    number: int
    planned_s: float | None
    own_s: float | None

    @property
    def margin_z(self) -> float:
        """Return the margin of choices in standard deviations."""
        return choice_margin_z(self.experiment.policy)

    def room_s(self, link_s: Floats, factor: float, slack: Floats | float) -> Floats:
        """Return the seconds for work beside transfers of ``link_s``, shape of ``link_s``.

        ``factor`` scales the work's time in a deadline that was planned from the prior; probes extend a planned round
        by the share ``slack``.
        """
        planned_s = math.inf if self.planned_s is None else self.planned_s
        end_s = (link_s + (planned_s - link_s) * factor) * (1.0 + slack)
        return np.minimum(end_s, math.inf if self.own_s is None else self.own_s) - link_s


@dataclass(slots=True, eq=False)
class KindRound:
    """The round of one kind.

    Attributes:
        known: What it has learnt so far.
        places: Those of this kind, as places in ``work``.
    """

    goal: KindGoal
    kind: KindTable
    known: KindKnowledge
    work: RunningWork
    places: Rows

    def simulate(self) -> KindKnowledge:
        """Run all steps of the kind's clients and return what it knows then."""
        pinned = self.kind.find_pinned_row(self.goal.experiment.policy.name)
        if is_pinned(self.goal.experiment.policy.name):
            row = self.kind.to_candidate(pinned)
            self._run_part(self.places, np.full(len(self.places), row), self.work.left[self.places])
            return self.known
        exploration, work = self.goal.experiment.exploration, self.work
        slack = exploration.slack if len(self.known.budgets_s) < exploration.slack_rounds else 0.0
        slack = scale_slack(slack, self.goal.experiment.rounds - self.goal.number)
        link_s = work.columns.link_s[work.columns.entry[work.clients[self.places]]]
        typical = self.places[[np.argsort(work.left[self.places])[len(self.places) // 2]]]
        its_link_s = work.columns.link_s[work.columns.entry[work.clients[typical]]]
        steps = float(work.left[typical[0]]) + WARM_UP_STEPS
        budget_s = float(self.goal.room_s(its_link_s, 1.0, 0.0)[0]) / steps
        was_new, prior_s, factor = len(self.known.rows) == 0, self._top_step_s(), 1.0
        for _ in range(exploration.probes if exploration.share > 0 else 0):
            room_s = float(self.goal.room_s(its_link_s, factor, slack)[0])
            if not self._probe(self._build_budget(typical, room_s, budget_s)):
                break
            if was_new:  # a deadline planned from the prior is rescaled to the kind's own fastest mode
                factor = min(1.0, self._top_step_s() / prior_s)
        extended = np.where(work.mode[self.places] >= 0, slack, 0.0)
        self._run_rest(self.goal.room_s(link_s, factor, extended))
        return dataclasses.replace(self.known, budgets_s=(*self.known.budgets_s, budget_s)[-MAX_BUDGETS:])

    def _top_step_s(self) -> float:
        return float(self.known.predictions.step_s[self.kind.to_candidate(self.kind.top)])

    def _build_budget(self, typical: Rows, room_s: float, now_s: float) -> ProbeBudget:
        """Return the rest of the round of a typical client that probes."""
        work, exploration = self.work, self.goal.experiment.exploration
        offset = float(np.exp(work.estimate_offsets(typical).time[0]))
        warm_up = WARM_UP_STEPS if work.mode[typical[0]] < 0 else 0.0
        return ProbeBudget(
            steps=float(work.left[typical[0]]) + warm_up,
            left_s=(room_s - float(work.work_s[typical[0]])) / offset,
            probe_s=exploration.probe_s,
            margin_z=self.goal.margin_z,
            allowed_s=(*self.known.budgets_s, now_s),
            foresight=exploration.foresight,
            rounds_left=self.goal.experiment.rounds - self.goal.number,
            switch_s=MODE_SWITCH_S,
            switch_j=MODE_SWITCH_S * self._top_above_idle_w(),
            warm_up=warm_up,
        )

    def _top_above_idle_w(self) -> float:
        return float(self.known.predictions.power_w[self.kind.to_candidate(self.kind.top)]) - self.kind.idle_w

    def _probe(self, budget: ProbeBudget) -> bool:
        """Let some clients measure one mode; return False if no probe is worth it or no client has steps for it."""
        work, exploration, new = self.work, self.goal.experiment.exploration, len(self.known.rows) == 0
        row = choose_probe(self.kind, self.known, budget, exploration.modes or MAX_KNOWN_MODES)
        if row is None:
            return False
        steps = float(count_probe_steps(self.known.predictions.step_s[[row]], budget)[0])
        total = work.columns.steps[work.clients[self.places]]
        done = total - work.left[self.places]
        able = (steps < work.left[self.places]) & (new | (done + steps <= exploration.share * total))
        probers = self.places[able]
        if not new and len(probers) > MAX_PROBERS:
            # Clients that have begun go on, so that few change their mode; then those measured least.
            chance = work.rng.random(len(probers))
            probers = probers[np.lexsort((chance, work.record.measured[probers], -done[able]))[:MAX_PROBERS]]
        if not len(probers):
            return False
        self._run_part(probers, np.full(len(probers), row), np.full(len(probers), steps))
        return True

    def _run_rest(self, room_s: Floats) -> None:
        """Run what is left of every client in its mode or modes: the slower part, then the faster."""
        work, fresh = self.work, self.work.mode[self.places] < 0
        chosen, allowed = self._choose(room_s, fresh)
        slow = chosen.slow_steps - np.where(fresh, math.ceil(WARM_UP_STEPS), 0)
        self._run_part(
            self.places,
            allowed[chosen.slow],
            np.floor(np.clip(slow, 0.0, np.maximum(0.0, work.left[self.places] - 1.0))),
        )
        self._run_part(self.places, allowed[chosen.fast], work.left[self.places])

    def _choose(self, room_s: Floats, fresh: NDArray[np.bool_]) -> tuple[WorkChoice, Rows]:
        """Choose from the measured modes, at first from the top mode alone, and from all if nothing may be probed.

        Returns:
            The choice, and the candidates to which its rows refer.
        """
        exploration, work = self.goal.experiment.exploration, self.work
        allowed = np.arange(len(self.kind.candidates))
        if exploration.share > 0 and exploration.probes > 0:
            top = np.array([self.kind.to_candidate(self.kind.top)])
            allowed = np.sort(self.known.rows) if len(self.known.rows) else top
        own = work.estimate_offsets(self.places)
        offset, switch_s = np.exp(own.time), np.where(fresh, 0.0, MODE_SWITCH_S)
        room = WorkRoom(
            np.maximum(work.left[self.places], 1.0) + np.where(fresh, WARM_UP_STEPS, 0.0),
            left_s=(room_s - work.work_s[self.places] - switch_s) / offset,
            switch_s=MODE_SWITCH_S / offset,
            switch_w=self._top_above_idle_w(),
        )
        predictions = self.known.predictions.select_rows(allowed.tolist())
        z = self.goal.margin_z
        chosen = choose_predicted_work(predictions, self.kind.idle_w, room=room, z=z, offset_sd=own.time_sd)
        return chosen, allowed

    def _run_part(self, places: Rows, rows: Rows, steps: Floats) -> None:
        """Run and measure ``steps`` steps of the clients ``places`` in the candidates ``rows``, and learn from them.

        Clients without steps are left out.
        """
        work, busy = self.work, steps > 0
        places, rows, steps = places[busy], rows[busy], steps[busy]
        if not len(places):
            return
        clients, at = work.clients[places], self.kind.candidates[rows]
        step_s = self.kind.surface.step_s[at] * np.exp(work.columns.log_time[clients])
        power_w = self.kind.surface.power_w[at] * np.exp(work.columns.log_power[clients])
        seen_s, seen_w = _measure(step_s, power_w, steps, work.rng)
        fresh = work.mode[places] < 0
        count = steps + np.where(fresh, WARM_UP_STEPS, 0.0)
        switch_s = np.where(~fresh & (work.mode[places] != rows), MODE_SWITCH_S, 0.0)
        true_s, work_s = count * step_s + switch_s, count * seen_s + switch_s
        work.true_s[places] += true_s
        work.true_j[places] += true_s * power_w
        work.work_s[places] += work_s
        work.work_j[places] += work_s * seen_w
        work.left[places] -= steps
        work.mode[places] = rows
        own = work.estimate_offsets(places)
        log_s, log_w = np.log(seen_s), np.log(seen_w)
        pooled = PooledRows(rows, steps, log_s=log_s - own.time, log_w=log_w - own.power)
        self.known = learn(self.kind, self.known, pooled)
        self._update_clients(places, rows, log_s, log_w)

    def _update_clients(self, places: Rows, rows: Rows, log_s: Floats, log_w: Floats) -> None:
        """Add the clients' measurements to their offsets and their record of modes."""
        record, predictions, limit = self.work.record, self.known.predictions, MAX_OFFSET_LOG
        record.log_s[places] += np.clip(log_s - np.log(predictions.step_s[rows]), -limit, limit)
        record.log_w[places] += np.clip(log_w - np.log(predictions.power_w[rows]), -limit, limit)
        record.measured[places] += 1
        order = np.zeros(len(predictions.step_s), dtype=np.uint64)
        order[self.known.rows] = np.minimum(np.arange(len(self.known.rows)), MAX_KNOWN_MODES)
        bits = np.left_shift(np.uint64(1), order[rows])
        record.explored[places] += (record.tried[places] & bits) == 0
        record.tried[places] |= bits


def _measure(step_s: Floats, power_w: Floats, steps: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return measured step times and powers, with the noise of ``fedge.devices.emulated_board``."""
    jitter_sd, n = JITTER_SD / np.sqrt(steps), len(steps)
    seen_s = step_s * np.exp(np.hypot(NOISE_TIME_SD, jitter_sd) * rng.standard_normal(n))
    seen_w = power_w * np.exp(np.hypot(NOISE_POWER_SD, jitter_sd) * rng.standard_normal(n))
    slowed = rng.random(n) < OUTLIER_CHANCE
    return np.where(slowed, seen_s * rng.uniform(*OUTLIER_SLOWDOWN, size=n), seen_s), seen_w
