"""The synchronous loop: select, plan, request, settle, store, aggregate, checkpoint; the same on every backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedge.decisions.planning import BUDGET_POLICY
from fedge.decisions.planning.board_energy import board_round_energy_j, find_least_energy_point
from fedge.errors import RunFailed
from fedge.experiment import Experiment
from fedge.protocols import LearningTask
from fedge.telemetry.store_records import EventRow
from fedge.types import FleetPlan, RoundGoal
from fedge.wire import ReplyMessage
from server.accounting.client_traces import book_traces, strip_trace
from server.accounting.idle_energy import advance_to_available, charge_idle_clients
from server.accounting.lateness import NO_CUTOFF, RealCutoff, compute_real_cutoff, deadline_with_grace_s
from server.accounting.settlement import RoundExtras, RoundSettlement, RoundStart, round_row, settle_round
from server.aggregation.aggregator import Aggregator, build_strategy
from server.aggregation.result_merger import ResultMerger, report_strategy_errors
from server.rounds.client_requests import FleetRequests, RoundTask, find_narrow_shapes
from server.rounds.client_selection import SELECTION_EVENT, RoundSelection, select_clients
from server.rounds.late_replies import apply_late_replies
from server.rounds.round_plan import plan_round
from server.rounds.run_start import RowSink, start_run
from server.state import checkpoint
from server.state.board_history import apply_late_reports, select_arrived, update_histories
from server.state.checkpoint import PendingResult, RunState
from server.state.fleet_availability import FleetAvailability, build_availability
from server.transport.client_port import NO_OVERDUE_REPLIES, ClientPort, OverdueReplies


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRound:
    """A round that is ready to start.

    Attributes:
        progress: State of the run.
        chosen: The selected clients.
        plan: The planner's goals.
        waited_j: Energy that all boards drew before the round while no client was available, in joules.
    """

    progress: RunState
    chosen: RoundSelection
    plan: FleetPlan
    waited_j: float

    @property
    def number(self) -> int:
        """Number of the round, from 1."""
        return self.progress.round + 1


@dataclass(frozen=True, slots=True, eq=False)
class Coordinator:
    """Runs a synchronous experiment.

    Attributes:
        experiment: The experiment.
        port: Connection to the clients.
        task: The learning task, which evaluates the model.
        tables: Where rows are stored.
        checkpoints: Folder of the checkpoints; None keeps nothing on disk.
        on_round: Called with the number of every finished round.
        overdue: Replies of real boards that the server stopped waiting for.
    """

    experiment: Experiment
    port: ClientPort
    task: LearningTask
    tables: RowSink
    checkpoints: Path | None = None
    on_round: Callable[[int], None] = lambda _: None
    overdue: OverdueReplies = NO_OVERDUE_REPLIES

    def run(self, progress: RunState | None = None) -> RunState:
        """Run all remaining rounds.

        Args:
            progress: The state from a checkpoint; None starts the run.

        Returns:
            The state after the last round, or before the round that would exceed the energy budget.

        Raises:
            RunFailed: A round yields nothing to aggregate.
        """
        aggregator = Aggregator(build_strategy(self.experiment.strategy), self.experiment.seed, self.task.buffers)
        reach = build_availability(self.experiment)
        progress = start_run(self._requests, self.task, self.tables, reach.names) if progress is None else progress
        aggregator.restore_state(progress.memory)
        while progress.round < self.experiment.rounds:
            after = self._run_round(progress, reach, aggregator)
            if after is None:
                break
            progress = after
            if self.checkpoints is not None:
                checkpoint.save(self.checkpoints, progress)
            self.on_round(progress.round)
        return progress

    @property
    def _requests(self) -> FleetRequests:
        return FleetRequests(self.experiment, self.port, find_narrow_shapes(self.experiment, self.task))

    def _run_round(self, before: RunState, reach: FleetAvailability, aggregator: Aggregator) -> RunState | None:
        """Run the next round; return None if the energy budget does not allow one."""
        self.overdue.wait(self.experiment.reply_timeout_s)
        ready = self._prepare_round(self._apply_late(before, aggregator), reach)
        if spent := self._find_budget_event(ready):
            self.tables.append([spent])
            return None
        task = self._build_task(ready, aggregator)
        replies = self._requests.request_training(
            task, self._build_goals(ready.plan, ready.number), ready.progress.states
        )
        ready = dataclasses.replace(ready, progress=self._apply_late(ready.progress, aggregator))
        answers = {name: reply.answer for name, reply in replies.items()}
        settled = settle_round(_build_round_start(ready, reach), answers, self.experiment.late)
        traced = book_traces(settled.clients, answers)
        self.tables.append(
            (*_list_decision_events(ready), *settled.clients, *settled.events, *traced.events, *traced.traces)
        )
        others_at_work = bool(self.overdue.busy_boards())
        merging = ResultMerger(self.experiment, aggregator)
        merged = merging.merge(
            task, settled=settled, replies=replies, pending=ready.progress.pending, others_at_work=others_at_work
        )
        known, resting_j = _update_after_round(ready, reach, settled, answers)
        around = RoundExtras(ready.chosen.available, merged.stale, ready.waited_j + resting_j)
        self.tables.append((*merged.events, round_row(settled, self.task.evaluate(merged.arrays), around)))
        return dataclasses.replace(
            known,
            round=ready.number,
            clock_s=settled.end_s,
            arrays=merged.arrays,
            memory=aggregator.export_state(),
            selection=ready.chosen.selected.memory,
            spent_j=ready.progress.spent_j + settled.energy_j,
            last_j=settled.energy_j,
            pending=_strip_traces(merged.pending),
        )

    def _prepare_round(self, before: RunState, reach: FleetAvailability) -> PreparedRound:
        """Advance the clock until a client is available, select the clients, and plan the round."""
        reach = self._exclude_busy(reach, before)
        up = advance_to_available(reach, before)
        self.tables.append(up.events)
        progress = _apply_arrivals(up.progress, before.clock_s, up.progress.clock_s)
        chosen = select_clients(self.experiment, reach, progress)
        plan = plan_round(
            self.experiment.policy,
            progress.fronts,
            chosen.boards,
            deadline_s=chosen.selected.deadline_s,
            spent_j=progress.spent_j,
        )
        return PreparedRound(progress, chosen, plan, up.waited_j)

    def _exclude_busy(self, reach: FleetAvailability, before: RunState) -> FleetAvailability:
        """Remove clients that are still working on an earlier request; raise ``RunFailed`` if none is left."""
        busy = self.overdue.busy_boards()
        free = tuple(board for board in reach.boards if board.name not in busy)
        if not free:
            told = "; ".join(f"{name} is still at work on round {number}" for name, number in sorted(busy.items()))
            waited = f"none came within {self.experiment.reply_timeout_s:.0f} s (reply_timeout_s)"
            raise RunFailed(f"round {before.round + 1}: {told}; {waited}; `fedge resume` goes on once they are done")
        return FleetAvailability(free, reach.presences)

    def _apply_late(self, progress: RunState, aggregator: Aggregator) -> RunState:
        """Apply the replies that arrived after the server had stopped waiting for them."""
        late = self.overdue.take_late_replies()
        if not late:
            return progress
        joins, learnt = self.experiment.late.action == "discount", aggregator.trainable_names(progress.arrays)
        caught = apply_late_replies(progress, late=late, joins=joins, learnt=learnt, narrow=self._requests.narrow)
        self.tables.append(caught.events)
        return caught.progress

    def _build_task(self, ready: PreparedRound, aggregator: Aggregator) -> RoundTask:
        """Build the round's training task from the strategy's arrays and settings."""
        progress = ready.progress
        with report_strategy_errors(self.experiment, ready.number):
            arrays, numbers = aggregator.configure(ready.number, progress.arrays, len(ready.chosen.boards))
        return RoundTask(
            ready.number,
            start_s=progress.clock_s,
            arrays=arrays,
            proximal_mu=numbers.get("proximal-mu", 0.0),
            cut=self._compute_cutoff(ready),
        )

    def _compute_cutoff(self, ready: PreparedRound) -> RealCutoff:
        """Return when real boards are given up; emulated ones reply at once and are late by simulated time only."""
        if self.experiment.backend != "fleet":
            return NO_CUTOFF
        return compute_real_cutoff(self.experiment.late, ready.plan.deadline_s, ready.chosen.wanted)

    def _build_goals(self, plan: FleetPlan, number: int) -> Mapping[str, RoundGoal]:
        """Return the plan's goals; clients may stop by themselves only if partial work counts."""
        late, left = self.experiment.late, self.experiment.rounds - number
        partial = late.action == "partial"
        stop_s = deadline_with_grace_s(late, plan.deadline_s) if partial and plan.deadline_s is not None else None
        return {name: dataclasses.replace(goal, stop_s=stop_s, rounds_left=left) for name, goal in plan.goals.items()}

    def _find_budget_event(self, ready: PreparedRound) -> EventRow | None:
        """Return an event if the next round would exceed the run's energy budget, else None."""
        policy, progress, chosen = self.experiment.policy, ready.progress, ready.chosen
        if policy.name != BUDGET_POLICY or policy.budget_j is None:
            return None
        next_j = _expected_energy_j(progress, ready.plan)
        if chosen.boards and progress.spent_j + next_j <= policy.budget_j:
            return None
        spent = f"{progress.spent_j:.0f} J of {policy.budget_j:.0f} J are spent"
        why = f"round {ready.number} would take {next_j:.0f} J" if chosen.boards else "no board can work for the rest"
        return EventRow(progress.clock_s, round=ready.number, board=None, kind="budget", message=f"{spent}; {why}")


def _list_decision_events(ready: PreparedRound) -> tuple[EventRow, ...]:
    """List the selector's reason, and why the plan cannot meet its limits."""
    words = {SELECTION_EVENT: ready.chosen.selected.why, "plan": "" if ready.plan.feasible else ready.plan.why}
    at_s = ready.progress.clock_s
    return tuple(
        EventRow(at_s, round=ready.number, board=None, kind=kind, message=why) for kind, why in words.items() if why
    )


def _apply_arrivals(progress: RunState, after_s: float, until_s: float) -> RunState:
    """Apply the reports of late replies that arrived after ``after_s`` and no later than ``until_s``."""
    return apply_late_reports(progress, select_arrived(progress.pending, after_s, until_s))


def _update_after_round(
    ready: PreparedRound, reach: FleetAvailability, settled: RoundSettlement, answers: Mapping[str, ReplyMessage]
) -> tuple[RunState, float]:
    """Return the run with all client histories at the end of the round, and the energy of idle clients in joules."""
    told = update_histories(ready.progress, settled, answers)
    told = _apply_arrivals(told, ready.progress.clock_s, settled.end_s)
    return charge_idle_clients(reach, told, (name for name in reach.names if name not in answers), settled.end_s)


def _strip_traces(pending: Iterable[PendingResult]) -> tuple[PendingResult, ...]:
    """Remove the traces from results that are still to join: the store already has them."""
    return tuple(dataclasses.replace(one, answer=strip_trace(one.answer)) for one in pending)


def _expected_energy_j(progress: RunState, plan: FleetPlan) -> float:
    """Return the expected energy of the planned round, in joules.

    If only the deadline is known, it is the energy of the cheapest modes that meet it; if that is unknown too, the
    energy of the last round.
    """
    fronts = [progress.fronts[name] for name in plan.goals if name in progress.fronts]
    if plan.energy_j is not None:
        return plan.energy_j
    if plan.deadline_s is None or len(fronts) < len(plan.goals):
        return progress.last_j
    return sum(
        board_round_energy_j(front, find_least_energy_point(front, plan.deadline_s), plan.deadline_s)
        for front in fronts
    )


def _build_round_start(ready: PreparedRound, reach: FleetAvailability) -> RoundStart:
    progress = ready.progress
    return RoundStart(
        ready.number,
        start_s=progress.clock_s,
        deadline_s=ready.plan.deadline_s,
        idle_w={name: front.idle_w for name, front in progress.fronts.items()},
        wanted=ready.chosen.wanted,
        leaves_s=reach.departure_times_s(progress.clock_s),
        charges=reach.charges(progress.histories),
    )
