"""Asks boards: puts each one's state and what others measured into its question, and checks what comes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from fedge.errors import BadInput
from fedge.experiment import Experiment, boards
from fedge.interfaces import LearningTask
from fedge.rounds.fitting import may_narrow
from fedge.types import Goal, Measurement, NamedArrays, RoundReport
from fedge.wire import Answer, Ask, BoardState
from fedge.worker.blocks import shapes_of, take
from fedge.worker.refusal import Refusal
from server.aggregation import Contribution, UnlikeArrays, check_arrays
from server.coverage import NarrowShapes
from server.lateness import NEVER, RealCut, enough
from server.port import ClientPort, Question, Reply
from server.sharing import kinds_of, shared


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What boards are to train: in which round, from when on, on which arrays, with how strong a proximal pull.

    ``cut`` is when real boards that are not done are given up.
    """

    round: int
    start_s: float
    arrays: NamedArrays
    proximal_mu: float = 0.0
    cut: RealCut = NEVER


@dataclass(frozen=True, slots=True)
class Asking:
    """The questions of one experiment, asked through ``port``.

    ``narrow`` tells the shapes of narrow networks; None where nobody may train one.
    """

    experiment: Experiment
    port: ClientPort
    narrow: NarrowShapes | None = None

    def fronts(self, names: Iterable[str], arrays: NamedArrays) -> Mapping[str, Reply]:
        """What each board offers before any round."""
        ask = Ask("front", policy=self.experiment.policy.name, model_bytes=bytes_of(arrays))
        return self.port.ask({name: Question(ask) for name in names}, self.experiment.reply_timeout_s)

    def train(self, task: Task, goals: Mapping[str, Goal], states: Mapping[str, BoardState]) -> Mapping[str, Reply]:
        """What each board of ``goals`` trained; arrays that do not fit the model are an answer with ``error``."""
        ask = Ask(
            "train",
            task.round,
            task.start_s,
            self.experiment.policy.name,
            model_bytes=bytes_of(task.arrays),
            proximal_mu=task.proximal_mu,
            cancel_s=task.cut.cancel_s,
        )
        asks = self._to_each(ask, goals, states)
        questions = {name: Question(each, task.arrays, task.cut.within_s) for name, each in asks.items()}
        replies = self.port.ask(questions, self.experiment.reply_timeout_s, partial(_enough, task, self.narrow))
        return {board: checked(board, reply, task.arrays, self.narrow) for board, reply in replies.items()}

    def _to_each(self, ask: Ask, goals: Mapping[str, Goal], states: Mapping[str, BoardState]) -> dict[str, Ask]:
        """The question as every board gets it: its goal, its state, and what others of its kind measured."""
        told: Mapping[str, tuple[Measurement, ...]] = {}
        if self.experiment.share_samples:
            kinds = kinds_of(boards(self.experiment), self.experiment.workload.cost)
            told = shared(kinds, states, goals.keys())
        return {
            name: dataclasses.replace(ask, goal=goal, state=states.get(name, BoardState()), shared=told.get(name, ()))
            for name, goal in goals.items()
        }


def contribution_of(board: str, reply: Reply) -> Contribution | None:
    """What a reply gives to aggregate; None when the board trained nothing."""
    report, trained = reply.answer.report, reply.trained
    if report is None or trained is None:
        return None
    steps = _whole_steps(report)
    return Contribution(board, trained.arrays, report.samples, trained.loss, trained.accuracy, steps)


def _whole_steps(report: RoundReport) -> int:
    """Minibatches done, as many as of the size asked for: with smaller ones each moved the model by so much less."""
    memory = report.memory
    if memory is None or memory.used.batch_size == memory.asked.batch_size:
        return report.steps
    return max(1, round(report.steps * memory.used.batch_size / memory.asked.batch_size))


def _enough(task: Task, narrow: NarrowShapes | None, replies: Collection[Reply]) -> bool:
    """Whether these replies are all that a round of real boards needs."""
    useful = [checked(reply.answer.board, reply, task.arrays, narrow) for reply in replies if not reply.answer.cut]
    reports = [each.answer.report for each in useful if each.trained is not None]
    return enough(task.cut, [report.busy_s for report in reports if report is not None])


def bytes_of(arrays: NamedArrays) -> int:
    """What a model weighs on the link."""
    return sum(value.nbytes for value in arrays.values())


def checked(board: str, reply: Reply, arrays: NamedArrays, narrow: NarrowShapes | None = None) -> Reply:
    """The reply; one with arrays neither like the model's nor like the narrow ones it declares is an ``error``."""
    contribution = contribution_of(board, reply)
    if contribution is None:
        return reply
    try:
        check_arrays(_expected(reply, arrays, narrow), contribution)
    except (UnlikeArrays, Refusal, BadInput) as error:
        return Reply(Answer(board, error=str(error)))
    return reply


def _expected(reply: Reply, arrays: NamedArrays, narrow: NarrowShapes | None) -> NamedArrays:
    """The model, or the leading blocks of it that the reply's width is about; raises ``BadInput`` or ``Refusal``."""
    report, trained = reply.answer.report, reply.trained
    width = 1.0 if report is None or report.memory is None else report.memory.used.width
    if width == 1.0 or narrow is None or trained is None or shapes_of(trained.arrays) == shapes_of(arrays):
        return arrays
    return take(arrays, narrow(width))


def narrow_shapes_of(experiment: Experiment, task: LearningTask) -> NarrowShapes | None:
    """How large narrow results are; None where the strategy or the task allows none."""
    shapes: NarrowShapes | None = getattr(task, "narrow_shapes", None)
    return shapes if may_narrow(experiment.workload, experiment.strategy.name) else None
