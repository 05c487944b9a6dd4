"""The asynchronous loop: whoever is done gets the newest model, and enough results make a new one; virtual clock.

A board's answer comes back at once in real time, and counts when its task ends on the fleet's clock. So dispatch and
merging follow virtual completion, with ties by board name, on every backend.
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
"""After a failure a board is left alone for as long as the task would have taken at MAXN by its last front; for so long
where it never told one. Chosen by us."""
MAX_FAILURES = 10
"""The run ends when every board has failed since the last result, or this many times as many tasks as there are boards:
a selector may leave some out. Chosen by us."""
MAX_REFUSALS = 10
"""It ends too when the selector has left out whoever it was offered, this many times as often in a row as there are
boards, while no task was under way. Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class AsyncCoordinator:
    """One asynchronous run's parts, like ``server.rounds.coordinator.Coordinator``; ``experiment.rounds`` counts
    models.

    ``selector`` chooses who gets the next task among the boards that are free and within ``reach``.
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
        """Make every model that is left; raises ``RunFailed`` when nothing more can come."""
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
        """How many boards train at a time."""
        fleet, wanted = len(self.reach.boards), self.strategy.concurrency
        return fleet if wanted is None else min(wanted, fleet)

    def _advance(self, course: AsyncRunState) -> None:
        """To the next moment at which something happens: a task's end, or a board's return while a slot is free."""
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
        """The next task's end; to the selector, its board took part until the present moment."""
        done = course.finish_next_task()
        board = course.rows[-1].board
        course.histories[board] = dataclasses.replace(course.histories[board], last_round=count_dispatches(course))
        return done

    def _count_failure(self, course: AsyncRunState) -> None:
        """Raise ``RunFailed`` when nobody gives a result any more."""
        course.failed_boards.append(course.rows[-1].board)
        names = self.reach.names
        if set(course.failed_boards) >= set(names) or len(course.failed_boards) >= MAX_FAILURES * len(names):
            self.tables.append((*course.rows, *course.events, *course.traces))
            reasons = [f"{row.board}: {row.error}" for row in course.rows if row.error]
            raise RunFailed(f"model {course.version + 1}: no board gives a result; {'; '.join(reasons[-3:])}")

    def _dispatch(self, course: AsyncRunState, aggregator: Aggregator) -> bool:
        """Give the newest model to as many boards as there are free slots; whether there was one."""
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
        """Each board's goal, planned for it alone; the tasks that are to come are thought to be spread evenly."""
        wanted = (self.experiment.rounds - course.version) * self.strategy.buffer_size
        to_come = wanted - len(course.buffered) - len(course.in_flight) - len(chosen)
        left = max(0, to_come) // len(self.reach.boards)
        plans = {name: plan_round(self.experiment.policy, course.fronts, [name]) for name in chosen}
        return {name: dataclasses.replace(plan.goals[name], rounds_left=left) for name, plan in plans.items()}

    def _select_boards(self, course: AsyncRunState) -> tuple[str, ...]:
        """Who is asked now; to the selector, every moment at which somebody is asked is a round."""
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
        """What a selector has to say is an event, the same words once per model."""
        told = [event.message for event in course.events if event.kind == SELECTION_EVENT]
        if why and why not in told:
            course.events.append(
                EventRow(course.clock_s, round=course.version + 1, board=None, kind=SELECTION_EVENT, message=why)
            )

    def _count_refusal(self, course: AsyncRunState, why: str) -> None:
        """Raise ``RunFailed`` when the selector leaves out everybody for ever; an empty ``why`` is no refusal."""
        course.refusal_reasons = [*course.refusal_reasons, why] if why else []
        times = len(course.refusal_reasons)
        if times >= MAX_REFUSALS * len(self.reach.boards):
            raise RunFailed(f"model {course.version + 1}: {self._describe_refusal(course)}, {times} times in a row")

    def _describe_refusal(self, course: AsyncRunState) -> str:
        return f"selection {self.experiment.selection.name} chose no board ({course.refusal_reasons[-1]})"

    def _build_pending(
        self, course: AsyncRunState, board: str, reply: IncomingReply, base: NamedArrays
    ) -> PendingResult:
        """The task as it will end, with what is kept of its result; nothing when it ends without one."""
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
        """A new model from the buffer, with the rows of all tasks that ended since the last one."""
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
    """At how many moments somebody was asked so far: whoever was asked at the last one remembers its number."""
    return max((history.last_round or 0 for history in course.histories.values()), default=0)


def _to_result(pending: PendingResult, version: int) -> AsyncResult:
    """What a task gives to the model after ``version``; it was trained from that of ``pending.round``."""
    report, trained = pending.answer.report, pending.trained
    samples = 0 if report is None else report.samples
    return AsyncResult(
        trained.arrays, staleness=version - pending.round, samples=samples, loss=trained.loss, accuracy=trained.accuracy
    )
