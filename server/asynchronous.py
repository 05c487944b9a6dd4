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
from fedge.interfaces import LearningTask, Selector
from fedge.seeds import generator
from fedge.telemetry.rows import EventRow
from fedge.types import Call, Goal, NamedArrays, TrainResult
from fedge.wire import Answer
from server import checkpoint
from server.aggregation import Aggregator
from server.asking import Asking, Task, narrow_shapes_of
from server.async_books import ends_s, model_row
from server.checkpoint import Pending, Progress
from server.course import Course, course_of
from server.merging import strategy_errors
from server.opening import Tables, opened
from server.plan import plan_round
from server.port import ClientPort, Reply
from server.reach import Reach
from server.selecting import SELECTION
from server.staleness import Asynchronous, Result, merge, upload

RETRY_S = 60.0
"""After a failure a board is left alone for as long as the task would have taken at MAXN by its last front; for so long
where it never told one. Chosen by us."""
FAILURES = 10
"""The run ends when every board has failed since the last result, or this many times as many tasks as there are boards:
a selector may leave some out. Chosen by us."""
REFUSALS = 10
"""It ends too when the selector has left out whoever it was offered, this many times as often in a row as there are
boards, while no task was under way. Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class AsyncCoordinator:
    """One asynchronous run's parts, like ``server.coordinator.Coordinator``; ``experiment.rounds`` counts models.

    ``selector`` chooses who gets the next task among the boards that are free and within ``reach``.
    """

    experiment: Experiment
    strategy: Asynchronous
    port: ClientPort
    task: LearningTask
    tables: Tables
    selector: Selector
    reach: Reach
    checkpoints: Path | None = None
    on_round: Callable[[int], None] = lambda _: None

    def run(self, progress: Progress | None = None) -> Progress:
        """Make every model that is left; raises ``RunFailed`` when nothing more can come."""
        aggregator = Aggregator(self.strategy, self.experiment.seed, self.task.buffers)
        if progress is None:
            progress = opened(self._asking, self.task, self.tables, self.reach.names)
        aggregator.remember(progress.memory)
        course = course_of(self.reach, progress)
        while course.version < self.experiment.rounds:
            if course.next_s > course.clock_s and self._dispatched(course, aggregator):
                continue
            self._go_on(course)
            if len(course.waiting) >= self.strategy.buffer_size:
                self._publish(course, aggregator)
        return course.progress(aggregator.memory())

    @property
    def _asking(self) -> Asking:
        return Asking(self.experiment, self.port, narrow_shapes_of(self.experiment, self.task))

    @property
    def _slots(self) -> int:
        """How many boards train at a time."""
        fleet, wanted = len(self.reach.boards), self.strategy.concurrency
        return fleet if wanted is None else min(wanted, fleet)

    def _go_on(self, course: Course) -> None:
        """To the next moment at which something happens: a task's end, or a board's return while a slot is free."""
        ready_s = course.next_ready_s() if len(course.flying) < self._slots else None
        if ready_s is not None and ready_s < course.next_s:
            course.clock_s = ready_s
        elif not course.flying:
            refusal = f"{self._refusal(course)}, and no other will come" if course.refused else ""
            why = refusal or "no board can be asked, nor will one come"
            raise RunFailed(f"model {course.version + 1}: {why}")
        elif self._landed(course):
            course.failed.clear()
        else:
            self._count_failure(course)

    def _landed(self, course: Course) -> bool:
        """The next task's end; to the selector, its board took part until the present moment."""
        done = course.land()
        board = course.rows[-1].board
        course.histories[board] = dataclasses.replace(course.histories[board], last_round=moments(course))
        return done

    def _count_failure(self, course: Course) -> None:
        """Raise ``RunFailed`` when nobody gives a result any more."""
        course.failed.append(course.rows[-1].board)
        names = self.reach.names
        if set(course.failed) >= set(names) or len(course.failed) >= FAILURES * len(names):
            self.tables.append((*course.rows, *course.events, *course.traces))
            reasons = [f"{row.board}: {row.error}" for row in course.rows if row.error]
            raise RunFailed(f"model {course.version + 1}: no board gives a result; {'; '.join(reasons[-3:])}")

    def _dispatched(self, course: Course, aggregator: Aggregator) -> bool:
        """Give the newest model to as many boards as there are free slots; whether there was one."""
        chosen = self._chosen(course)
        if not chosen:
            return False
        with strategy_errors(self.experiment, course.version + 1):
            arrays, numbers = aggregator.configure(course.version + 1, course.arrays, len(chosen))
        task = Task(course.asked + 1, course.clock_s, arrays, numbers.get("proximal-mu", 0.0))
        replies = self._asking.train(task, self._goals(course, chosen), course.states)
        moment = moments(course) + 1
        for name in chosen:
            history = course.histories[name]
            course.histories[name] = dataclasses.replace(history, last_round=moment, rounds=history.rounds + 1)
            course.take_off(self._pending(course, name, replies[name], arrays))
        return True

    def _goals(self, course: Course, chosen: Sequence[str]) -> dict[str, Goal]:
        """Each board's goal, planned for it alone; the tasks that are to come are thought to be spread evenly."""
        wanted = (self.experiment.rounds - course.version) * self.strategy.buffer_size
        to_come = wanted - len(course.waiting) - len(course.flying) - len(chosen)
        left = max(0, to_come) // len(self.reach.boards)
        plans = {name: plan_round(self.experiment.policy, course.fronts, [name]) for name in chosen}
        return {name: dataclasses.replace(plan.goals[name], rounds_left=left) for name, plan in plans.items()}

    def _chosen(self, course: Course) -> tuple[str, ...]:
        """Who is asked now; to the selector, every moment at which somebody is asked is a round."""
        count = self._slots - len(course.flying)
        offered = course.available() if count > 0 else ()
        if not offered:
            return ()
        spec, policy, moment = self.experiment.selection, self.experiment.policy, moments(course) + 1
        call = Call(moment, min(count, len(offered)), spec.options, course.selection, policy.name, policy.limits)
        rng = generator(self.experiment.seed, course.asked + 1, "select")
        selected = self.selector(course.clients(offered), call, rng)
        unknown = sorted(set(selected.boards) - set(offered))
        if unknown:
            raise RunFailed(f"selection {spec.name} chose {unknown[0]}, which could not be asked")
        course.selection = dict(selected.memory)
        taken = set(selected.boards[:count])
        self._tell(course, selected.why)
        self._count_refusal(course, "" if taken or course.flying else selected.why or "it gave no reason")
        return tuple(name for name in offered if name in taken)

    def _tell(self, course: Course, why: str) -> None:
        """What a selector has to say is an event, the same words once per model."""
        told = [event.message for event in course.events if event.kind == SELECTION]
        if why and why not in told:
            course.events.append(EventRow(course.clock_s, course.version + 1, None, SELECTION, why))

    def _count_refusal(self, course: Course, why: str) -> None:
        """Raise ``RunFailed`` when the selector leaves out everybody for ever; an empty ``why`` is no refusal."""
        course.refused = [*course.refused, why] if why else []
        times = len(course.refused)
        if times >= REFUSALS * len(self.reach.boards):
            raise RunFailed(f"model {course.version + 1}: {self._refusal(course)}, {times} times in a row")

    def _refusal(self, course: Course) -> str:
        return f"selection {self.experiment.selection.name} chose no board ({course.refused[-1]})"

    def _pending(self, course: Course, board: str, reply: Reply, base: NamedArrays) -> Pending:
        """The task as it will end, with what is kept of its result; nothing when it ends without one."""
        start, front = course.start(board, course.clock_s), course.fronts.get(board)
        told = reply.answer
        failed = Answer(board, state=told.state, error=told.error or "no answer")
        answer = told if reply.trained is not None else failed
        end_s = ends_s(start, answer, RETRY_S if front is None else front.link_s + front.maxn.work_s)
        trained = TrainResult({}, 0.0, 0.0)
        if reply.trained is not None and answer.report is not None and end_s >= start.at_s + answer.report.busy_s:
            arrays = upload(self.strategy, base, reply.trained.arrays, self.task.buffers)
            trained = dataclasses.replace(reply.trained, arrays=arrays)
        return Pending(course.version, start.at_s, end_s, answer, trained)

    def _publish(self, course: Course, aggregator: Aggregator) -> None:
        """A new model from the buffer, with the rows of all tasks that ended since the last one."""
        version = course.version + 1
        resting_j = course.close() if version == self.experiment.rounds else 0.0
        self.tables.append((*course.rows, *course.events, *course.traces))
        results = [_result(pending, course.version) for pending in course.waiting]
        with strategy_errors(self.experiment, version):
            arrays = merge(self.strategy, version, course.arrays, results, self.task.buffers)
        row = model_row(course.rows, course.opened_s, course.clock_s, self.task.evaluate(arrays), resting_j)
        self.tables.append([row])
        course.publish(arrays, row.energy_j)
        if self.checkpoints is not None:
            checkpoint.save(self.checkpoints, course.progress(aggregator.memory()))
        self.on_round(version)


def moments(course: Course) -> int:
    """At how many moments somebody was asked so far: whoever was asked at the last one remembers its number."""
    return max((history.last_round or 0 for history in course.histories.values()), default=0)


def _result(pending: Pending, version: int) -> Result:
    """What a task gives to the model after ``version``; it was trained from that of ``pending.round``."""
    report, trained = pending.answer.report, pending.trained
    samples = 0 if report is None else report.samples
    return Result(trained.arrays, version - pending.round, samples, trained.loss, trained.accuracy)
