"""The round loop: select, plan, ask, settle, store, aggregate, checkpoint; the same on every backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedge.experiment import Experiment
from fedge.interfaces import LearningTask
from fedge.planning.deadline import least_energy_at, round_energy_j
from fedge.telemetry.rows import EventRow
from fedge.types import FleetPlan, Goal
from server import checkpoint
from server.accounting import Around, Opening, round_row, settle
from server.aggregation import Aggregator, strategy_of
from server.asking import Asking, Task
from server.checkpoint import Progress
from server.lateness import stop_of
from server.merging import Merging, strategy_errors
from server.opening import Tables, opened
from server.plan import plan_round
from server.port import ClientPort
from server.reach import Reach, reach_of
from server.remembering import arrived, heard, remembered
from server.resting import awake, rest
from server.selecting import BUDGETED, Chosen, choose


@dataclass(frozen=True, slots=True, eq=False)
class Coordinator:
    """One run's parts; ``checkpoints`` None keeps nothing on disk, ``on_round`` is called after every round."""

    experiment: Experiment
    port: ClientPort
    task: LearningTask
    tables: Tables
    checkpoints: Path | None = None
    on_round: Callable[[int], None] = lambda _: None

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
        return Asking(self.experiment, self.port)

    def _round(self, before: Progress, reach: Reach, aggregator: Aggregator) -> Progress | None:
        """The run after its next round; None when the energy budget does not allow one."""
        number, late = before.round + 1, self.experiment.late
        up = awake(reach, before)
        progress = heard(up.progress, arrived(before.pending, before.clock_s, up.progress.clock_s))
        self.tables.append(up.events)
        chosen = choose(self.experiment, reach, progress)
        plan = plan_round(
            self.experiment.policy,
            progress.fronts,
            chosen.boards,
            deadline_s=chosen.selected.deadline_s,
            spent_j=progress.spent_j,
        )
        if spent := self._spent(progress, chosen, plan):
            self.tables.append([spent])
            return None
        with strategy_errors(self.experiment, number):
            arrays, numbers = aggregator.configure(number, progress.arrays, len(chosen.boards))
        task = Task(number, progress.clock_s, arrays, numbers.get("proximal-mu", 0.0))
        replies = self._asking.train(task, self._goals(plan, number), progress.states)
        answers = {name: reply.answer for name, reply in replies.items()}
        settled = settle(_opening(progress, reach, chosen, plan), answers, late)
        self.tables.append((*settled.clients, *settled.events))
        merged = Merging(self.experiment, aggregator).merged(task, settled, replies, progress.pending)
        told = remembered(progress, settled, answers)
        told = heard(told, arrived(progress.pending, progress.clock_s, settled.end_s))
        rested, resting_j = rest(reach, told, (name for name in reach.names if name not in answers), settled.end_s)
        around = Around(chosen.available, merged.stale, up.waited_j + resting_j)
        self.tables.append((*merged.events, round_row(settled, self.task.evaluate(merged.arrays), around)))
        return dataclasses.replace(
            rested,
            round=number,
            clock_s=settled.end_s,
            arrays=merged.arrays,
            memory=aggregator.memory(),
            selection=chosen.selected.memory,
            spent_j=progress.spent_j + settled.energy_j,
            last_j=settled.energy_j,
            pending=merged.pending,
        )

    def _goals(self, plan: FleetPlan, number: int) -> Mapping[str, Goal]:
        """The plan's goals; boards may stop by themselves only where partial work counts."""
        late, left = self.experiment.late, self.experiment.rounds - number
        partial = late.action == "partial"
        stop_s = stop_of(late, plan.deadline_s) if partial and plan.deadline_s is not None else None
        return {name: dataclasses.replace(goal, stop_s=stop_s, rounds_left=left) for name, goal in plan.goals.items()}

    def _spent(self, progress: Progress, chosen: Chosen, plan: FleetPlan) -> EventRow | None:
        """What there is to tell when the next round would exceed the run's energy budget; None when it would not."""
        policy, number = self.experiment.policy, progress.round + 1
        if policy.name != BUDGETED or policy.budget_j is None:
            return None
        next_j = _expected_j(progress, plan)
        if chosen.boards and progress.spent_j + next_j <= policy.budget_j:
            return None
        spent = f"{progress.spent_j:.0f} J of {policy.budget_j:.0f} J are spent"
        why = f"round {number} would take {next_j:.0f} J" if chosen.boards else "no board can work for the rest"
        return EventRow(progress.clock_s, number, None, "budget", f"{spent}; {why}")


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


def _opening(progress: Progress, reach: Reach, chosen: Chosen, plan: FleetPlan) -> Opening:
    return Opening(
        progress.round + 1,
        progress.clock_s,
        plan.deadline_s,
        {name: front.idle_w for name, front in progress.fronts.items()},
        chosen.wanted,
        reach.leaves_s(progress.clock_s),
        reach.charges(progress.histories),
    )
