"""The round loop: select, plan, ask, settle, store, aggregate, checkpoint; the same on every backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedge.errors import RunFailed
from fedge.experiment import Experiment
from fedge.interfaces import LearningTask
from fedge.planning import BUDGETED
from fedge.planning.deadline import least_energy_at, round_energy_j
from fedge.telemetry.rows import EventRow
from fedge.types import FleetPlan, Goal
from fedge.wire import Answer
from server import checkpoint
from server.accounting import Around, Opening, Settled, round_row, settle
from server.aggregation import Aggregator, strategy_of
from server.asking import Asking, Task, narrow_shapes_of
from server.checkpoint import Pending, Progress
from server.lateness import NEVER, RealCut, real_cut_of, stop_of
from server.merging import Merging, strategy_errors
from server.opening import Tables, opened
from server.overdue import caught_up
from server.plan import plan_round
from server.port import NOTHING_OVERDUE, ClientPort, Overdue
from server.reach import Reach, reach_of
from server.remembering import arrived, heard, remembered
from server.resting import awake, rest
from server.selecting import SELECTION, Chosen, choose
from server.tracing import told_of, untraced


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A round about to begin: what is known by now, who takes part, and the plan.

    ``waited_j`` are the joules of all boards while nobody could be asked before it.
    """

    progress: Progress
    chosen: Chosen
    plan: FleetPlan
    waited_j: float

    @property
    def number(self) -> int:
        """The round's, from 1 on."""
        return self.progress.round + 1


@dataclass(frozen=True, slots=True, eq=False)
class Coordinator:
    """One run's parts; ``checkpoints`` None keeps nothing on disk, ``on_round`` is called after every round.

    ``overdue`` knows of real boards that were given up waiting for.
    """

    experiment: Experiment
    port: ClientPort
    task: LearningTask
    tables: Tables
    checkpoints: Path | None = None
    on_round: Callable[[int], None] = lambda _: None
    overdue: Overdue = NOTHING_OVERDUE

    def run(self, progress: Progress | None = None) -> Progress:
        """Play all rounds that are left; raises ``RunFailed`` when a round gives nothing to aggregate."""
        aggregator = Aggregator(strategy_of(self.experiment.strategy), self.experiment.seed, self.task.buffers)
        reach = reach_of(self.experiment)
        progress = opened(self._asking, self.task, self.tables, reach.names) if progress is None else progress
        aggregator.remember(progress.memory)
        while progress.round < self.experiment.rounds:
            after = self._round(progress, reach, aggregator)
            if after is None:
                break
            progress = after
            if self.checkpoints is not None:
                checkpoint.save(self.checkpoints, progress)
            self.on_round(progress.round)
        return progress

    @property
    def _asking(self) -> Asking:
        return Asking(self.experiment, self.port, narrow_shapes_of(self.experiment, self.task))

    def _round(self, before: Progress, reach: Reach, aggregator: Aggregator) -> Progress | None:
        """The run after its next round; None when the energy budget does not allow one."""
        self.overdue.wait(self.experiment.reply_timeout_s)
        ready = self._ready(self._with_late(before, aggregator), reach)
        if spent := self._spent(ready):
            self.tables.append([spent])
            return None
        task = self._task(ready, aggregator)
        replies = self._asking.train(task, self._goals(ready.plan, ready.number), ready.progress.states)
        ready = dataclasses.replace(ready, progress=self._with_late(ready.progress, aggregator))
        answers = {name: reply.answer for name, reply in replies.items()}
        settled = settle(_opening(ready, reach), answers, self.experiment.late)
        traced = told_of(settled.clients, answers)
        self.tables.append((*_told(ready), *settled.clients, *settled.events, *traced.events, *traced.traces))
        others_at_work = bool(self.overdue.busy())
        merging = Merging(self.experiment, aggregator)
        merged = merging.merged(task, settled, replies, ready.progress.pending, others_at_work)
        known, resting_j = _known_after(ready, reach, settled, answers)
        around = Around(ready.chosen.available, merged.stale, ready.waited_j + resting_j)
        self.tables.append((*merged.events, round_row(settled, self.task.evaluate(merged.arrays), around)))
        return dataclasses.replace(
            known,
            round=ready.number,
            clock_s=settled.end_s,
            arrays=merged.arrays,
            memory=aggregator.memory(),
            selection=ready.chosen.selected.memory,
            spent_j=ready.progress.spent_j + settled.energy_j,
            last_j=settled.energy_j,
            pending=_untraced(merged.pending),
        )

    def _ready(self, before: Progress, reach: Reach) -> Ready:
        """The clock at which somebody can be asked, who takes part, and the plan."""
        reach = self._free(reach, before)
        up = awake(reach, before)
        self.tables.append(up.events)
        progress = _caught_up(up.progress, before.clock_s, up.progress.clock_s)
        chosen = choose(self.experiment, reach, progress)
        plan = plan_round(
            self.experiment.policy,
            progress.fronts,
            chosen.boards,
            deadline_s=chosen.selected.deadline_s,
            spent_j=progress.spent_j,
        )
        return Ready(progress, chosen, plan, up.waited_j)

    def _free(self, reach: Reach, before: Progress) -> Reach:
        """The boards that are not still at work on an earlier question; raises ``RunFailed`` when all are."""
        busy = self.overdue.busy()
        free = tuple(board for board in reach.boards if board.name not in busy)
        if not free:
            told = "; ".join(f"{name} is still at work on round {number}" for name, number in sorted(busy.items()))
            waited = f"none came within {self.experiment.reply_timeout_s:.0f} s (reply_timeout_s)"
            raise RunFailed(f"round {before.round + 1}: {told}; {waited}; `fedge resume` goes on once they are done")
        return Reach(free, reach.presences)

    def _with_late(self, progress: Progress, aggregator: Aggregator) -> Progress:
        """``progress`` with the replies that came in after they were waited for."""
        late = self.overdue.arrived()
        if not late:
            return progress
        joins, learnt = self.experiment.late.action == "discount", aggregator.learnt(progress.arrays)
        caught = caught_up(progress, late, joins, learnt, self._asking.narrow)
        self.tables.append(caught.events)
        return caught.progress

    def _task(self, ready: Ready, aggregator: Aggregator) -> Task:
        """What the strategy gives the boards to train."""
        progress = ready.progress
        with strategy_errors(self.experiment, ready.number):
            arrays, numbers = aggregator.configure(ready.number, progress.arrays, len(ready.chosen.boards))
        return Task(ready.number, progress.clock_s, arrays, numbers.get("proximal-mu", 0.0), self._cut(ready))

    def _cut(self, ready: Ready) -> RealCut:
        """When real boards are given up; emulated ones answer at once, and the virtual clock tells who is late."""
        if self.experiment.backend != "fleet":
            return NEVER
        return real_cut_of(self.experiment.late, ready.plan.deadline_s, ready.chosen.wanted)

    def _goals(self, plan: FleetPlan, number: int) -> Mapping[str, Goal]:
        """The plan's goals; boards may stop by themselves only where partial work counts."""
        late, left = self.experiment.late, self.experiment.rounds - number
        partial = late.action == "partial"
        stop_s = stop_of(late, plan.deadline_s) if partial and plan.deadline_s is not None else None
        return {name: dataclasses.replace(goal, stop_s=stop_s, rounds_left=left) for name, goal in plan.goals.items()}

    def _spent(self, ready: Ready) -> EventRow | None:
        """What there is to tell when the next round would exceed the run's energy budget; None when it would not."""
        policy, progress, chosen = self.experiment.policy, ready.progress, ready.chosen
        if policy.name != BUDGETED or policy.budget_j is None:
            return None
        next_j = _expected_j(progress, ready.plan)
        if chosen.boards and progress.spent_j + next_j <= policy.budget_j:
            return None
        spent = f"{progress.spent_j:.0f} J of {policy.budget_j:.0f} J are spent"
        why = f"round {ready.number} would take {next_j:.0f} J" if chosen.boards else "no board can work for the rest"
        return EventRow(progress.clock_s, ready.number, None, "budget", f"{spent}; {why}")


def _told(ready: Ready) -> tuple[EventRow, ...]:
    """What the selector has to say of its choice, and why the plan cannot keep its limits."""
    words = {SELECTION: ready.chosen.selected.why, "plan": "" if ready.plan.feasible else ready.plan.why}
    at_s = ready.progress.clock_s
    return tuple(EventRow(at_s, ready.number, None, kind, why) for kind, why in words.items() if why)


def _caught_up(progress: Progress, after_s: float, until_s: float) -> Progress:
    """``progress`` with what late replies told that came in after ``after_s`` and by ``until_s``."""
    return heard(progress, arrived(progress.pending, after_s, until_s))


def _known_after(ready: Ready, reach: Reach, settled: Settled, answers: Mapping[str, Answer]) -> tuple[Progress, float]:
    """What is known of all boards at the round's end, and the joules of those that rested."""
    told = remembered(ready.progress, settled, answers)
    told = _caught_up(told, ready.progress.clock_s, settled.end_s)
    return rest(reach, told, (name for name in reach.names if name not in answers), settled.end_s)


def _untraced(pending: Iterable[Pending]) -> tuple[Pending, ...]:
    """Results that are still to join, without their traces: those of the whole task are in the store already."""
    return tuple(dataclasses.replace(one, answer=untraced(one.answer)) for one in pending)


def _expected_j(progress: Progress, plan: FleetPlan) -> float:
    """Joules of the planned round; where only its deadline is known, of the cheapest modes that keep it.

    Where not even that is known, as many as the last round took.
    """
    fronts = [progress.fronts[name] for name in plan.goals if name in progress.fronts]
    if plan.energy_j is not None:
        return plan.energy_j
    if plan.deadline_s is None or len(fronts) < len(plan.goals):
        return progress.last_j
    return sum(round_energy_j(front, least_energy_at(front, plan.deadline_s), plan.deadline_s) for front in fronts)


def _opening(ready: Ready, reach: Reach) -> Opening:
    progress = ready.progress
    return Opening(
        ready.number,
        progress.clock_s,
        ready.plan.deadline_s,
        {name: front.idle_w for name, front in progress.fronts.items()},
        ready.chosen.wanted,
        reach.leaves_s(progress.clock_s),
        reach.charges(progress.histories),
    )
