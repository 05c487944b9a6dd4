"""The asynchronous loop: a client that finishes gets the newest model, and enough results make a new model.

An emulated client's reply arrives at once in wall time, but takes effect when its task ends in simulated time.
Dispatching and merging follow simulated completion times, with ties broken by client name, on every backend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from fedge.decisions.planning.round_plan import plan_round
from fedge.devices.energy_signal import NO_ENERGY
from fedge.errors import RunFailed
from fedge.phases import begin_phase
from fedge.protocols import Selector
from fedge.telemetry.settlement import fleet_row
from fedge.telemetry.store_records import EventRow
from fedge.types import NamedArrays, RoundGoal, TrainResult
from fedge.wire import ReplyMessage
from fedge.workloads.rate_schedule import find_rate
from server.aggregation.aggregator import Aggregator, Contribution
from server.aggregation.async_strategies import STALENESS, AsyncStrategy, merge_results, prepare_upload
from server.aggregation.result_merger import check_merged_model, report_strategy_errors
from server.rounds.client_requests import RoundTask
from server.rounds.client_selection import SELECTION_EVENT, build_candidates, select_clients
from server.rounds.run_start import RunLoop
from server.state.async_state import AsyncRunState, compute_task_end_s, restore_async_state
from server.state.board_history import note_recorded
from server.state.checkpoint import PendingResult, RunState
from server.state.fleet_availability import FleetAvailability
from server.transport.client_port import IncomingReply

RETRY_DELAY_S = 60.0
"""Seconds for which a failed client gets no task if it never sent a Pareto front; otherwise it pauses for as long as
its task would have taken at MAXN. A default: shorter delays retry a broken client more often.
"""
MAX_FAILURES = 10
"""The run ends if every client has failed since the last result, or after this many failed tasks per client, since a
selector may leave some clients out. A default that trades patience with flaky clients for an early error.
"""
MAX_REFUSALS = 10
"""The run also ends if the selector has chosen no client this many times per client in a row while no task was running.
A default that leaves room for selectors that skip some rounds.
"""


@dataclass(frozen=True, slots=True, eq=False)
class AsyncCoordinator(RunLoop):
    """Runs an asynchronous experiment, of which ``experiment.rounds`` is the number of models.

    Attributes:
        selector: Chooses the clients of the next tasks among those that are free and available.
    """

    strategy: AsyncStrategy
    selector: Selector
    availability: FleetAvailability

    def run(self, checkpointed: RunState | None = None) -> RunState:
        """Make all models, or those that remain after the state of a checkpoint.

        Raises:
            RunFailed: No further result can arrive.
        """
        aggregator = Aggregator(self.strategy, self.experiment.seed, self.task.buffers)
        if checkpointed is None:
            checkpointed = self.start(self.availability.names)
        aggregator.restore_state(checkpointed.memory)
        state = restore_async_state(self.availability, checkpointed)
        while state.version < self.experiment.rounds:
            begin_phase(f"model {state.version + 1} of {self.experiment.rounds}")
            if state.next_end_s > state.clock_s and self._dispatch(state, aggregator):
                continue
            self._advance(state)
            if len(state.buffered) >= self.strategy.buffer_size:
                self._publish(state, aggregator)
        return state.to_run_state(aggregator.export_state())

    @property
    def _slots(self) -> int:
        """Number of clients that train at the same time."""
        fleet, wanted = len(self.availability.boards), self.strategy.concurrency
        return fleet if wanted is None else min(wanted, fleet)

    def _advance(self, state: AsyncRunState) -> None:
        """Advance to the next event: the end of a task, or a client becoming available while a slot is free."""
        ready_s = state.next_ready_s() if len(state.in_flight) < self._slots else None
        if ready_s is not None and ready_s < state.next_end_s:
            state.clock_s = ready_s
        elif not state.in_flight:
            refusal = f"{state.refusals[-1]}, and no other will come" if state.refusals else ""
            why = refusal or "no board can be asked, nor will one come"
            raise RunFailed(f"model {state.version + 1}: {why}")
        elif state.finish_next_task():
            state.failed_boards.clear()
        else:
            self._count_failure(state)

    def _count_failure(self, state: AsyncRunState) -> None:
        """Count a failed task; raise ``RunFailed`` if too many failed in a row."""
        state.failed_boards.append(state.rows[-1].board)
        names = self.availability.names
        if set(state.failed_boards) >= set(names) or len(state.failed_boards) >= MAX_FAILURES * len(names):
            self.tables.append((*state.rows, *state.events, *state.traces))
            reasons = [f"{row.board}: {row.error}" for row in state.rows if row.error]
            raise RunFailed(f"model {state.version + 1}: no board gives a result; {'; '.join(reasons[-3:])}")

    def _dispatch(self, state: AsyncRunState, aggregator: Aggregator) -> bool:
        """Send the newest model to as many clients as there are free slots; return False if none was selected."""
        chosen = self._select_clients(state)
        if not chosen:
            return False
        with report_strategy_errors(self.experiment, state.version + 1):
            arrays, numbers = aggregator.configure(state.version + 1, state.arrays, len(chosen))
        task = RoundTask(
            state.tasks_begun + 1,
            state.clock_s,
            arrays,
            numbers,
            learning_rate=find_rate(self.experiment.workload, state.version + 1),
            trainable=aggregator.order_trainable(arrays),
        )
        goals = self._build_goals(state, chosen)
        replies = self.requests.request_training(task, goals, state.states, state.histories)
        state.events += note_recorded(
            state.observe_fleet(), state.version + 1, (one.answer for one in replies.values())
        )
        moment = state.dispatches + 1
        for name in chosen:
            history = state.histories[name]
            state.histories[name] = dataclasses.replace(history, last_round=moment, rounds=history.rounds + 1)
            state.begin_task(self._build_pending(state, name, replies[name], arrays))
        return True

    def _build_goals(self, state: AsyncRunState, chosen: Sequence[str]) -> dict[str, RoundGoal]:
        """Return each client's goal, planned for it alone; future tasks are assumed to be spread evenly."""
        wanted = (self.experiment.rounds - state.version) * self.strategy.buffer_size
        to_come = wanted - len(state.buffered) - len(state.in_flight) - len(chosen)
        left = max(0, to_come) // len(self.availability.boards)
        plans = {name: plan_round(self.experiment.policy, state.fronts, [name]) for name in chosen}
        return {name: dataclasses.replace(plan.goals[name], rounds_left=left) for name, plan in plans.items()}

    def _select_clients(self, state: AsyncRunState) -> tuple[str, ...]:
        """Select the clients of the next tasks; for the selector, every dispatch counts as a round."""
        free = self._slots - len(state.in_flight)
        if free <= 0:
            return ()
        fleet = state.observe_fleet()
        offered = state.idle_clients.available(fleet)
        if not offered:
            return ()
        selection = select_clients(
            self.experiment,
            self.selector,
            build_candidates(self.availability, fleet, offered),
            number=state.dispatches + 1,
            draw=state.tasks_begun + 1,
            count=free,
            memory=state.selection,
            limits=self.experiment.policy.limits,
            at_most=free,
        )
        state.selection, why = dict(selection.result.memory), selection.result.why
        known = [event.message for event in state.events if event.kind == SELECTION_EVENT]
        if why and why not in known:  # identical reasons are stored once per model
            state.events.append(
                EventRow(state.clock_s, round=state.version + 1, board=None, kind=SELECTION_EVENT, message=why)
            )
        refused = not selection.boards and not state.in_flight
        refusal = f"selection {self.experiment.selection.name} chose no board ({why or 'it gave no reason'})"
        state.refusals = [*state.refusals, refusal] if refused else []
        if len(state.refusals) >= MAX_REFUSALS * len(self.availability.boards):
            raise RunFailed(f"model {state.version + 1}: {refusal}, {len(state.refusals)} times in a row")
        return selection.boards

    def _build_pending(
        self, state: AsyncRunState, board: str, reply: IncomingReply, base: NamedArrays
    ) -> PendingResult:
        """Build the task as it will end, with the part of its result that is kept, if there is any."""
        start, front = state.build_task_start(board, state.clock_s), state.fronts.get(board)
        answer = reply.answer
        if reply.trained is None and not answer.is_refused:
            error = answer.error or "no answer"
            answer = ReplyMessage(board, state=answer.state, error=error, unfit=answer.unfit)
        end_s = compute_task_end_s(start, answer, RETRY_DELAY_S if front is None else front.link_s + front.maxn.work_s)
        trained = TrainResult({}, 0.0, 0.0)
        if reply.trained is not None and answer.report is not None and end_s >= start.at_s + answer.report.busy_s:
            arrays = prepare_upload(self.strategy, base, reply.trained.arrays, self.task.buffers)
            trained = dataclasses.replace(reply.trained, arrays=arrays)
        return PendingResult(state.version, start_s=start.at_s, end_s=end_s, answer=answer, trained=trained)

    def _publish(self, state: AsyncRunState, aggregator: Aggregator) -> None:
        """Make a new model from the buffer, and store the rows of all tasks that ended since the previous one."""
        version = state.version + 1
        resting = state.cancel_in_flight() if version == self.experiment.rounds else NO_ENERGY
        self.tables.append((*state.rows, *state.events, *state.traces))
        results = [
            Contribution(
                pending.answer.board,
                arrays=pending.trained.arrays,
                samples=0 if pending.answer.report is None else pending.answer.report.samples,
                loss=pending.trained.loss,
                accuracy=pending.trained.accuracy,
                metrics={STALENESS: state.version - pending.round},
            )
            for pending in state.buffered
        ]
        with report_strategy_errors(self.experiment, version):
            arrays = merge_results(
                self.strategy, version=version, arrays=state.arrays, results=results, buffers=self.task.buffers
            )
        check_merged_model(self.experiment, version, arrays)
        # A task's energy counts in full towards the model during which it ended. Nothing is compared with MAXN, since a
        # run at MAXN would dispatch other tasks.
        row = fleet_row(
            state.rows,
            start_s=state.model_ready_s,
            end_s=state.clock_s,
            tested=self.task.evaluate(arrays),
            stale=sum(row.staleness is not None and row.staleness > 0 for row in state.rows),
            resting_j=resting.joules,
            cost=(resting + state.book_rows()).cost,
        )
        self.tables.append([row])
        state.publish_model(arrays, row.energy_j)
        self.finish_round(state.to_run_state(aggregator.export_state()))
