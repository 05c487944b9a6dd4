"""The round loop: plan, ask, settle, store, aggregate, checkpoint; the same on every backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedge.errors import FedgeError, RunFailed
from fedge.experiment import Experiment, boards
from fedge.interfaces import LearningTask
from fedge.telemetry.rows import EventRow
from fedge.telemetry.store import Row
from fedge.types import NamedArrays
from server import checkpoint
from server.accounting import Opening, Settled, round_row, settle
from server.aggregation import Aggregator, strategy_of
from server.asking import Asking, Task, contribution_of
from server.checkpoint import Progress
from server.plan import plan_round
from server.port import ClientPort, Reply

logger = logging.getLogger(__name__)


class Tables(Protocol):
    """Where rows go."""

    def append(self, rows: Iterable[Row]) -> None: ...


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
        progress = self._opened() if progress is None else progress
        aggregator.remember(progress.memory)
        while progress.round < self.experiment.rounds:
            progress = self._round(progress, aggregator)
            if self.checkpoints is not None:
                checkpoint.save(self.checkpoints, progress)
            self.on_round(progress.round)
        return progress

    @property
    def _asking(self) -> Asking:
        return Asking(self.experiment, self.port)

    def _opened(self) -> Progress:
        """Before the first round: the initial model, and every board's front as far as its prior knows it."""
        arrays = self.task.initial_arrays(self.experiment.seed)
        names = [board.name for board in boards(self.experiment)]
        replies = self._asking.fronts(names, arrays)
        failed = {name: replies[name].answer.error for name in names if replies[name].answer.front is None}
        self.tables.append(EventRow(0.0, 0, name, "failed", error or "no front") for name, error in failed.items())
        if len(failed) == len(names):
            raise RunFailed(f"no board is ready: {names[0]} says {failed[names[0]]}")
        fronts = {name: front for name in names if (front := replies[name].answer.front) is not None}
        return Progress(0, 0.0, arrays, fronts=fronts)

    def _round(self, progress: Progress, aggregator: Aggregator) -> Progress:
        number = progress.round + 1
        selected = [board.name for board in boards(self.experiment)]
        plan = plan_round(self.experiment.policy, progress.fronts, selected)
        with self._strategy_errors(number):
            arrays, numbers = aggregator.configure(number, progress.arrays, len(selected))
        task = Task(number, progress.clock_s, arrays, numbers.get("proximal-mu", 0.0))
        replies = self._asking.train(task, plan.goals, progress.states)
        answers = {name: reply.answer for name, reply in replies.items()}
        idle_w = {name: front.idle_w for name, front in progress.fronts.items()}
        settled = settle(Opening(number, progress.clock_s, plan.deadline_s, idle_w), answers, self.experiment.late)
        self.tables.append((*settled.clients, *settled.events))
        new = self._aggregated(number, arrays, aggregator, settled, replies)
        self.tables.append([round_row(settled, self.task.evaluate(new))])
        return Progress(
            number,
            settled.end_s,
            new,
            aggregator.memory(),
            {**progress.states, **{name: a.state for name, a in answers.items() if a.state is not None}},
            {**progress.fronts, **{name: a.front for name, a in answers.items() if a.front is not None}},
        )

    def _aggregated(
        self,
        number: int,
        arrays: NamedArrays,
        aggregator: Aggregator,
        settled: Settled,
        replies: Mapping[str, Reply],
    ) -> NamedArrays:
        contributions = [c for board in settled.accepted if (c := contribution_of(board, replies[board])) is not None]
        if not contributions:
            raise RunFailed(f"round {number}: no board gave a result to aggregate; {_reasons(settled)}")
        with self._strategy_errors(number):
            return aggregator.aggregate(number, arrays, contributions)

    @contextmanager
    def _strategy_errors(self, number: int) -> Iterator[None]:
        """The strategy is the user's choice, and its errors are many: each ends the run with its name."""
        try:
            yield
        except Exception as error:
            reason = str(error) if isinstance(error, FedgeError) else f"{type(error).__name__}: {error}"
            raise RunFailed(f"round {number}: strategy {self.experiment.strategy.name} failed: {reason}") from error


def _reasons(settled: Settled) -> str:
    errors: Sequence[str] = [f"{row.board}: {row.error}" for row in settled.clients if row.error]
    return "; ".join(errors[:3]) or "no board replied"
