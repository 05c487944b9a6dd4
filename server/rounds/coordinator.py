"""The synchronous loop: select, plan, request, settle, store, aggregate, checkpoint; the same on every backend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.planning import JOINT_POLICY
from fedge.decisions.planning.joint_planner import PLAIN_CONTEXT, JointContext
from fedge.decisions.planning.round_plan import plan_round
from fedge.devices.energy_signal import NO_ENERGY, EnergyUse, book_energy
from fedge.errors import RunFailed
from fedge.knowledge.recall import renews_peers
from fedge.phases import begin_phase
from fedge.telemetry.client_rows import RoundStart
from fedge.telemetry.settlement import NO_CUTOFF, RoundSettlement, compute_real_cutoff, round_row, settle_round
from fedge.telemetry.store_records import EventRow, RoundRow
from fedge.types import FleetPlan, Floats32
from fedge.wire import ReplyMessage
from fedge.workloads.rate_schedule import find_rate
from server.aggregation.aggregator import Aggregator, build_strategy
from server.aggregation.result_merger import MergedModel, merge_replies, report_strategy_errors
from server.rounds.client_evaluation import evaluate_on_clients
from server.rounds.client_requests import RoundTask
from server.rounds.client_selection import SELECTION_EVENT, ClientSelection, select_round_clients
from server.rounds.late_replies import LateUpdate, apply_late_replies
from server.rounds.round_goals import build_joint_context, complete_goals, find_budget_event, update_progress
from server.rounds.run_start import RunLoop
from server.state.board_history import apply_late_reports, note_recorded, update_histories
from server.state.checkpoint import FleetState, PendingResult, RunState
from server.state.client_traces import book_traces
from server.state.fleet_availability import (
    FleetAvailability,
    advance_to_available,
    build_availability,
    charge_idle_clients,
)
from server.transport.client_port import IncomingReply


@dataclass(frozen=True, slots=True, eq=False)
class RoundOpening:
    """A round whose requests have not been sent.

    Attributes:
        waited: Energy that all boards drew before the round while no client was available.
    """

    number: int
    fleet: FleetState
    pending: tuple[PendingResult, ...]
    selection: ClientSelection
    plan: FleetPlan
    waited: EnergyUse


@dataclass(frozen=True, slots=True, eq=False)
class RoundRecord:
    """A finished round, from which ``next_state`` makes the state of the run.

    Attributes:
        residuals: What the encodings of the clients whose updates were accepted or join later left out.
    """

    opening: RoundOpening
    settled: RoundSettlement
    merged: MergedModel
    memory: Mapping[str, NDArray[np.generic]]
    fleet: FleetState
    row: RoundRow
    residuals: Mapping[str, Floats32]


def next_state(state: RunState, record: RoundRecord) -> RunState:
    """Return the state of the run after the round ``record``, which started from ``state``. Pure."""
    last_j = record.settled.energy_j + (record.row.resting_energy_j or 0.0)
    evaluation_j = record.row.evaluation_energy_j
    return RunState(
        round=record.opening.number,
        fleet=record.fleet,
        arrays=record.merged.arrays,
        memory=record.memory,
        selection=record.opening.selection.result.memory,
        spent_j=state.spent_j + last_j + (evaluation_j or 0.0),
        pending=record.merged.pending,
        last_j=last_j,
        evaluation_j=state.evaluation_j if evaluation_j is None else evaluation_j,
        residuals={**state.residuals, **record.residuals},
        progress=update_progress(
            state.progress, record.opening.plan, settled=record.settled, fleet=record.fleet, loss=record.row.loss
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Coordinator(RunLoop):
    """Runs a synchronous experiment."""

    def run(self, state: RunState | None = None) -> RunState:
        """Run all rounds, or those that remain after the state of a checkpoint.

        Returns:
            The state after the last round, or before the round that would exceed the energy budget.

        Raises:
            RunFailed: A round yields nothing to aggregate.
        """
        aggregator = Aggregator(build_strategy(self.experiment.strategy), self.experiment.seed, self.task.buffers)
        availability = build_availability(self.experiment)
        if state is None:
            state = self.start(availability.names)
        aggregator.restore_state(state.memory)
        while state.round < self.experiment.rounds:
            begin_phase(f"round {state.round + 1} of {self.experiment.rounds}")
            record = self._run_round(state, availability, aggregator)
            if record is None:
                break
            state = next_state(state, record)
            self.finish_round(state)
        return state

    def _run_round(
        self, state: RunState, availability: FleetAvailability, aggregator: Aggregator
    ) -> RoundRecord | None:
        """Run the next round; return None if the energy budget does not allow one."""
        self.overdue.wait(self.experiment.reply_timeout_s)
        opening = self._open_round(state, availability, aggregator)
        if budget_event := find_budget_event(self.experiment, state, opening.fleet, opening.plan):
            self.tables.append([budget_event])
            return None
        task = self._build_task(state, opening, aggregator)
        goals = complete_goals(self.experiment, opening.plan, opening.number)
        known = opening.fleet
        replies = self.requests.request_training(task, goals, known.states, known.histories, residuals=state.residuals)
        late = self._take_late_replies(opening.fleet, opening.pending, state, aggregator)
        answers = {name: reply.answer for name, reply in replies.items()}
        settled = self._settle(opening, late.fleet, availability, answers)
        merged = merge_replies(
            self.experiment,
            aggregator,
            task,
            settled=settled,
            replies=replies,
            pending=late.pending,
            goals=goals,
            others_at_work=bool(self.overdue.busy_boards()),
        )
        fleet, rested = _update_fleet(opening, availability, late, settled=settled, answers=answers)
        resting = opening.waited + rested
        evaluated = evaluate_on_clients(
            self.requests, aggregator, availability, fleet=fleet, arrays=merged.arrays, number=opening.number
        )
        fleet = apply_late_reports(
            evaluated.fleet, merged.pending, after_s=settled.end_s, until_s=evaluated.fleet.clock_s
        )
        row = round_row(
            settled,
            None if self.experiment.evaluation.by == "clients" else self.task.evaluate(merged.arrays),
            available=opening.selection.available,
            stale=merged.stale,
            resting_j=resting.joules,
            cost=(resting + _book_round(availability, settled) + evaluated.used).cost,
            evaluated=evaluated.figures,
        )
        self.tables.append((*merged.events, *evaluated.rows, row))
        left, memory = _take_residuals(settled, replies), aggregator.export_state()
        return RoundRecord(opening, settled, merged, memory, fleet=fleet, row=row, residuals=left)

    def _open_round(self, state: RunState, availability: FleetAvailability, aggregator: Aggregator) -> RoundOpening:
        """Advance the clock until a client is available and can work, select the clients, and plan the round."""
        number, waited, charged_s = state.round + 1, NO_ENERGY, dict[str, float]()
        late = self._take_late_replies(state.fleet, state.pending, state, aggregator)
        free = self._exclude_busy(availability, number)
        fleet, since_s = late.fleet, state.fleet.clock_s
        while True:
            advance = advance_to_available(free, fleet, number)
            self.tables.append(advance.events)
            fleet, waited = advance.fleet, waited + advance.waited
            fleet = apply_late_reports(fleet, late.pending, after_s=since_s, until_s=fleet.clock_s)
            since_s = fleet.clock_s
            offered = free.exclude({name for name, time_s in charged_s.items() if time_s > since_s})
            if charged_s and not offered.available(fleet):
                times_s = (*charged_s.values(), *offered.next_times_s(fleet).values())
                fleet, drawn = self._wait_for_charge(free, fleet, min(t for t in times_s if t > since_s), number)
                waited += drawn
                continue
            selection = select_round_clients(self.experiment, offered, fleet, state)
            plan = plan_round(
                self.experiment.policy,
                fleet.fronts,
                selection.boards,
                deadline_s=selection.result.deadline_s,
                spent_j=state.spent_j,
                context=self._build_joint_context(free, fleet, state=state, selection=selection, aggregator=aggregator),
                shares=selection.result.shares,
            )
            if plan.wait_s is None:
                return RoundOpening(
                    number, fleet=fleet, pending=late.pending, selection=selection, plan=plan, waited=waited
                )
            charged_s |= dict.fromkeys(selection.boards, since_s + plan.wait_s)

    def _wait_for_charge(
        self, availability: FleetAvailability, fleet: FleetState, until_s: float, number: int
    ) -> tuple[FleetState, EnergyUse]:
        """Let all idle until a battery has enough for a part, or another client comes; raise ``RunFailed`` if never."""
        lack = "no client that is here has the charge for any part of its steps"
        if not math.isfinite(until_s):
            right = "give the boards a larger battery or more charging_w, or add clients on mains"
            raise RunFailed(f"round {number}: {lack}, nor will one ever; {right}")
        message = f"{lack}: all wait for {until_s - fleet.clock_s:.0f} s"
        self.tables.append([EventRow(fleet.clock_s, round=number, board=None, kind="waited", message=message)])
        return charge_idle_clients(availability, fleet, availability.names, until_s)

    def _build_joint_context(
        self,
        availability: FleetAvailability,
        fleet: FleetState,
        state: RunState,
        selection: ClientSelection,
        aggregator: Aggregator,
    ) -> JointContext:
        """Return what the policy ``joint`` plans from; other policies need nothing."""
        if self.experiment.policy.name != JOINT_POLICY:
            return PLAIN_CONTEXT
        return build_joint_context(
            self.experiment,
            availability,
            fleet,
            state,
            selected=selection.boards,
            trainable=aggregator.order_trainable(state.arrays),
            task=self.task,
        )

    def _exclude_busy(self, availability: FleetAvailability, number: int) -> FleetAvailability:
        """Remove clients that are still working on an earlier request; raise ``RunFailed`` if none is left."""
        busy = self.overdue.busy_boards()
        free = availability.exclude(busy)
        if not free.boards:
            working = "; ".join(f"{name} is still at work on round {earlier}" for name, earlier in sorted(busy.items()))
            waited = f"none came within {self.experiment.reply_timeout_s:.0f} s (reply_timeout_s)"
            raise RunFailed(f"round {number}: {working}; {waited}; `fedge resume` goes on once they are done")
        return free

    def _take_late_replies(
        self, fleet: FleetState, pending: tuple[PendingResult, ...], state: RunState, aggregator: Aggregator
    ) -> LateUpdate:
        """Apply the replies that arrived after the server had stopped waiting for them, and store their events."""
        late = self.overdue.take_late_replies()
        if not late:
            return LateUpdate(fleet, pending)
        update = apply_late_replies(
            late,
            fleet,
            pending,
            number=state.round + 1,
            joins=self.experiment.late.action == "discount",
            learnt=aggregator.order_trainable(state.arrays),
            narrow=self.requests.narrow,
        )
        self.tables.append(update.events)
        return update

    def _build_task(self, state: RunState, opening: RoundOpening, aggregator: Aggregator) -> RoundTask:
        """Build the round's training task from the strategy's arrays and settings."""
        with report_strategy_errors(self.experiment, opening.number):
            arrays, numbers = aggregator.configure(opening.number, state.arrays, len(opening.plan.goals))
        # Emulated clients reply at once and are late by simulated time only; only real boards are given up.
        real = self.experiment.backend == "fleet"
        return RoundTask(
            opening.number,
            start_s=opening.fleet.clock_s,
            arrays=arrays,
            settings=numbers,
            learning_rate=find_rate(self.experiment.workload, opening.number),
            trainable=aggregator.order_trainable(arrays),
            cut=compute_real_cutoff(self.experiment.late, opening.plan.deadline_s, opening.selection.wanted)
            if real
            else NO_CUTOFF,
            keeps_peers=not renews_peers(opening.number + 1),
        )

    def _settle(
        self,
        opening: RoundOpening,
        fleet: FleetState,
        availability: FleetAvailability,
        answers: Mapping[str, ReplyMessage],
    ) -> RoundSettlement:
        """Settle the round, and store its decisions, client rows and traces."""
        start = RoundStart(
            opening.number,
            start_s=fleet.clock_s,
            deadline_s=opening.plan.deadline_s,
            idle_w={name: front.idle_w for name, front in fleet.fronts.items()},
            wanted=opening.selection.wanted,
            leaves_s=availability.departure_times_s(fleet.clock_s),
            charges=availability.charges(fleet),
        )
        settled = settle_round(start, answers, self.experiment.late)
        traced = book_traces(settled.clients, answers)
        plan = opening.plan
        quiet = plan.feasible and self.experiment.policy.name != JOINT_POLICY
        reasons = {SELECTION_EVENT: opening.selection.result.why, "plan": "" if quiet else plan.why}
        decisions = [
            EventRow(fleet.clock_s, round=opening.number, board=None, kind=kind, message=why)
            for kind, why in reasons.items()
            if why
        ]
        decisions += note_recorded(opening.fleet, opening.number, answers.values())
        self.tables.append((*decisions, *settled.clients, *settled.events, *traced.events, *traced.traces))
        return settled


def _update_fleet(
    opening: RoundOpening,
    availability: FleetAvailability,
    late: LateUpdate,
    settled: RoundSettlement,
    answers: Mapping[str, ReplyMessage],
) -> tuple[FleetState, EnergyUse]:
    """Return the clients at the end of a settled round, and the energy of those that took no part."""
    fleet = update_histories(late.fleet, opening.number, settled, answers)
    fleet = dataclasses.replace(fleet, histories=availability.leave_out(settled.clients, fleet.histories))
    fleet = apply_late_reports(fleet, late.pending, after_s=fleet.clock_s, until_s=settled.end_s)
    idle = [name for name in availability.names if name not in answers]
    return charge_idle_clients(availability, fleet, idle, settled.end_s)


def _book_round(availability: FleetAvailability, settled: RoundSettlement) -> EnergyUse:
    """Return the energy of the clients of a round, and its cost."""
    joules = {row.board: row.energy_j for row in settled.clients}
    return book_energy(availability.signal, joules, settled.start_s, settled.end_s)


def _take_residuals(settled: RoundSettlement, replies: Mapping[str, IncomingReply]) -> dict[str, Floats32]:
    """Return what the encodings left out, of the clients whose updates were accepted or join a later round."""
    results = {name: replies[name].trained for name in (*settled.accepted, *settled.joining) if name in replies}
    return {
        name: trained.residual
        for name, trained in results.items()
        if trained is not None and trained.residual is not None
    }
