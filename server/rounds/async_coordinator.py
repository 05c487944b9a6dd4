"""The asynchronous loop: a client that finishes gets the newest model, and enough results make a new model.

An emulated client's reply arrives at once in wall time, but takes effect when its task ends in simulated time.
Dispatching and merging follow simulated completion times, with ties broken by client name, on every backend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedge.errors import RunFailed
from fedge.experiment import Experiment
from fedge.protocols import LearningTask, Selector
from fedge.seeds import make_generator
from fedge.telemetry.store_records import EventRow
from fedge.types import NamedArrays, RoundGoal, SelectionContext, TrainResult
from fedge.wire import ReplyMessage
from server.accounting.async_rows import compute_task_end_s, model_row
from server.aggregation.aggregator import Aggregator
from server.aggregation.async_strategies import AsyncResult, AsyncStrategy, merge_results, prepare_upload
from server.aggregation.result_merger import report_strategy_errors
from server.rounds.client_requests import FleetRequests, RoundTask, find_narrow_shapes
from server.rounds.client_selection import SELECTION_EVENT
from server.rounds.round_plan import plan_round
from server.rounds.run_start import RowSink, start_run
from server.state import checkpoint
from server.state.async_state import AsyncRunState, restore_async_state
from server.state.checkpoint import PendingResult, RunState
from server.state.fleet_availability import FleetAvailability
from server.transport.client_port import ClientPort, IncomingReply

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
class AsyncCoordinator:
    """Runs an asynchronous experiment, like ``server.rounds.coordinator.Coordinator`` runs a synchronous one.

    Attributes:
        experiment: The experiment; ``experiment.rounds`` is the number of models.
        strategy: The asynchronous strategy.
        port: Connection to the clients.
        task: The learning task, which evaluates the model.
        tables: Where rows are stored.
        selector: Chooses the clients of the next tasks among those that are free and available.
        reach: Availability of the fleet.
        checkpoints: Folder of the checkpoints; None keeps nothing on disk.
        on_round: Called with the number of every new model.
    """

    experiment: Experiment
    strategy: AsyncStrategy
    port: ClientPort
    task: LearningTask
    tables: RowSink
    selector: Selector
    reach: FleetAvailability
    checkpoints: Path | None = None
    on_round: Callable[[int], None] = lambda _: None

    def run(self, progress: RunState | None = None) -> RunState:
        """Make all remaining models.

        Args:
            progress: The state from a checkpoint; None starts the run.

        Raises:
            RunFailed: No further result can arrive.
        """
        aggregator = Aggregator(self.strategy, self.experiment.seed, self.task.buffers)
        if progress is None:
            progress = start_run(self._requests, self.task, self.tables, self.reach.names)
        aggregator.restore_state(progress.memory)
        course = restore_async_state(self.reach, progress)
        while course.version < self.experiment.rounds:
            if course.next_end_s > course.clock_s and self._dispatch(course, aggregator):
                continue
            self._advance(course)
            if len(course.buffered) >= self.strategy.buffer_size:
                self._publish(course, aggregator)
        return course.to_run_state(aggregator.export_state())

    @property
    def _requests(self) -> FleetRequests:
        return FleetRequests(self.experiment, self.port, find_narrow_shapes(self.experiment, self.task))

    @property
    def _slots(self) -> int:
        """Number of clients that train at the same time."""
        fleet, wanted = len(self.reach.boards), self.strategy.concurrency
        return fleet if wanted is None else min(wanted, fleet)

    def _advance(self, course: AsyncRunState) -> None:
        """Advance to the next event: the end of a task, or a client becoming available while a slot is free."""
        ready_s = course.next_ready_s() if len(course.in_flight) < self._slots else None
        if ready_s is not None and ready_s < course.next_end_s:
            course.clock_s = ready_s
        elif not course.in_flight:
            refusal = f"{self._describe_refusal(course)}, and no other will come" if course.refusal_reasons else ""
            why = refusal or "no board can be asked, nor will one come"
            raise RunFailed(f"model {course.version + 1}: {why}")
        elif self._finish_next_task(course):
            course.failed_boards.clear()
        else:
            self._count_failure(course)

    def _finish_next_task(self, course: AsyncRunState) -> bool:
        """Finish the next task; for the selector, its client took part until now."""
        done = course.finish_next_task()
        board = course.rows[-1].board
        course.histories[board] = dataclasses.replace(course.histories[board], last_round=count_dispatches(course))
        return done

    def _count_failure(self, course: AsyncRunState) -> None:
        """Count a failed task; raise ``RunFailed`` if too many failed in a row."""
        course.failed_boards.append(course.rows[-1].board)
        names = self.reach.names
        if set(course.failed_boards) >= set(names) or len(course.failed_boards) >= MAX_FAILURES * len(names):
            self.tables.append((*course.rows, *course.events, *course.traces))
            reasons = [f"{row.board}: {row.error}" for row in course.rows if row.error]
            raise RunFailed(f"model {course.version + 1}: no board gives a result; {'; '.join(reasons[-3:])}")

    def _dispatch(self, course: AsyncRunState, aggregator: Aggregator) -> bool:
        """Send the newest model to as many clients as there are free slots; return False if none was selected."""
        chosen = self._select_boards(course)
        if not chosen:
            return False
        with report_strategy_errors(self.experiment, course.version + 1):
            arrays, numbers = aggregator.configure(course.version + 1, course.arrays, len(chosen))
        task = RoundTask(course.tasks_begun + 1, course.clock_s, arrays, numbers.get("proximal-mu", 0.0))
        replies = self._requests.request_training(task, self._build_goals(course, chosen), course.states)
        moment = count_dispatches(course) + 1
        for name in chosen:
            history = course.histories[name]
            course.histories[name] = dataclasses.replace(history, last_round=moment, rounds=history.rounds + 1)
            course.begin_task(self._build_pending(course, name, replies[name], arrays))
        return True

    def _build_goals(self, course: AsyncRunState, chosen: Sequence[str]) -> dict[str, RoundGoal]:
        """Return each client's goal, planned for it alone; future tasks are assumed to be spread evenly."""
        wanted = (self.experiment.rounds - course.version) * self.strategy.buffer_size
        to_come = wanted - len(course.buffered) - len(course.in_flight) - len(chosen)
        left = max(0, to_come) // len(self.reach.boards)
        plans = {name: plan_round(self.experiment.policy, course.fronts, [name]) for name in chosen}
        return {name: dataclasses.replace(plan.goals[name], rounds_left=left) for name, plan in plans.items()}

    def _select_boards(self, course: AsyncRunState) -> tuple[str, ...]:
        """Select the clients of the next tasks; for the selector, every dispatch counts as a round."""
        count = self._slots - len(course.in_flight)
        offered = course.available() if count > 0 else ()
        if not offered:
            return ()
        spec, policy, moment = self.experiment.selection, self.experiment.policy, count_dispatches(course) + 1
        call = SelectionContext(
            moment,
            count=min(count, len(offered)),
            options=spec.options,
            memory=course.selection,
            policy=policy.name,
            limits=policy.limits,
        )
        rng = make_generator(self.experiment.seed, course.tasks_begun + 1, "select")
        selected = self.selector(course.build_candidates(offered), call, rng)
        unknown = sorted(set(selected.boards) - set(offered))
        if unknown:
            raise RunFailed(f"selection {spec.name} chose {unknown[0]}, which could not be asked")
        course.selection = dict(selected.memory)
        taken = set(selected.boards[:count])
        self._record_selection_reason(course, selected.why)
        self._count_refusal(course, "" if taken or course.in_flight else selected.why or "it gave no reason")
        return tuple(name for name in offered if name in taken)

    def _record_selection_reason(self, course: AsyncRunState, why: str) -> None:
        """Store the selector's reason as an event, identical reasons once per model."""
        told = [event.message for event in course.events if event.kind == SELECTION_EVENT]
        if why and why not in told:
            course.events.append(
                EventRow(course.clock_s, round=course.version + 1, board=None, kind=SELECTION_EVENT, message=why)
            )

    def _count_refusal(self, course: AsyncRunState, why: str) -> None:
        """Count an empty selection; raise ``RunFailed`` after too many in a row. An empty ``why`` resets the count."""
        course.refusal_reasons = [*course.refusal_reasons, why] if why else []
        times = len(course.refusal_reasons)
        if times >= MAX_REFUSALS * len(self.reach.boards):
            raise RunFailed(f"model {course.version + 1}: {self._describe_refusal(course)}, {times} times in a row")

    def _describe_refusal(self, course: AsyncRunState) -> str:
        return f"selection {self.experiment.selection.name} chose no board ({course.refusal_reasons[-1]})"

    def _build_pending(
        self, course: AsyncRunState, board: str, reply: IncomingReply, base: NamedArrays
    ) -> PendingResult:
        """Build the task as it will end, with the part of its result that is kept, if there is any."""
        start, front = course.build_task_start(board, course.clock_s), course.fronts.get(board)
        told = reply.answer
        failed = ReplyMessage(board, state=told.state, error=told.error or "no answer")
        answer = told if reply.trained is not None else failed
        end_s = compute_task_end_s(start, answer, RETRY_DELAY_S if front is None else front.link_s + front.maxn.work_s)
        trained = TrainResult({}, 0.0, 0.0)
        if reply.trained is not None and answer.report is not None and end_s >= start.at_s + answer.report.busy_s:
            arrays = prepare_upload(self.strategy, base, reply.trained.arrays, self.task.buffers)
            trained = dataclasses.replace(reply.trained, arrays=arrays)
        return PendingResult(course.version, start_s=start.at_s, end_s=end_s, answer=answer, trained=trained)

    def _publish(self, course: AsyncRunState, aggregator: Aggregator) -> None:
        """Make a new model from the buffer, and store the rows of all tasks that ended since the previous one."""
        version = course.version + 1
        resting_j = course.cancel_in_flight() if version == self.experiment.rounds else 0.0
        self.tables.append((*course.rows, *course.events, *course.traces))
        results = [_to_result(pending, course.version) for pending in course.buffered]
        with report_strategy_errors(self.experiment, version):
            arrays = merge_results(
                self.strategy, version=version, arrays=course.arrays, results=results, buffers=self.task.buffers
            )
        row = model_row(
            course.rows,
            start_s=course.model_ready_s,
            end_s=course.clock_s,
            tested=self.task.evaluate(arrays),
            resting_j=resting_j,
        )
        self.tables.append([row])
        course.publish_model(arrays, row.energy_j)
        if self.checkpoints is not None:
            checkpoint.save(self.checkpoints, course.to_run_state(aggregator.export_state()))
        self.on_round(version)


def count_dispatches(course: AsyncRunState) -> int:
    """Return the number of dispatches so far, which is the highest one stored in a client's history."""
    return max((history.last_round or 0 for history in course.histories.values()), default=0)


def _to_result(pending: PendingResult, version: int) -> AsyncResult:
    """Return a task's result for the model after ``version``; it was trained from model ``pending.round``."""
    report, trained = pending.answer.report, pending.trained
    samples = 0 if report is None else report.samples
    return AsyncResult(
        trained.arrays, staleness=version - pending.round, samples=samples, loss=trained.loss, accuracy=trained.accuracy
    )
