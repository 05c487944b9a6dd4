"""Asks boards: puts each one's state and what others measured into its question, and checks what comes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from fedge.client.memory_scaling import can_narrow_clients
from fedge.errors import BadInput
from fedge.experiment import Experiment, list_boards
from fedge.protocols import LearningTask
from fedge.types import Measurement, NamedArrays, RoundGoal, RoundReport
from fedge.wire import ClientState, ReplyMessage, RequestMessage
from fedge.worker.refusal import Refusal
from fedge.worker.subnetwork_arrays import array_shapes, take_leading
from server.accounting.lateness import NO_CUTOFF, RealCutoff, has_enough_replies
from server.aggregation.aggregator import ArrayMismatch, Contribution, check_arrays
from server.aggregation.narrow_results import NarrowShapes
from server.rounds.shared_measurements import find_kinds, share_measurements
from server.transport.client_port import ClientPort, IncomingReply, OutgoingRequest


@dataclass(frozen=True, slots=True, eq=False)
class RoundTask:
    """What boards are to train: in which round, from when on, on which arrays, with how strong a proximal pull.

    ``cut`` is when real boards that are not done are given up.
    """

    round: int
    start_s: float
    arrays: NamedArrays
    proximal_mu: float = 0.0
    cut: RealCutoff = NO_CUTOFF


@dataclass(frozen=True, slots=True)
class FleetRequests:
    """The questions of one experiment, asked through ``port``.

    ``narrow`` tells the shapes of narrow networks; None where nobody may train one.
    """

    experiment: Experiment
    port: ClientPort
    narrow: NarrowShapes | None = None

    def request_fronts(self, names: Iterable[str], arrays: NamedArrays) -> Mapping[str, IncomingReply]:
        """What each board offers before any round."""
        ask = RequestMessage("front", policy=self.experiment.policy.name, model_bytes=count_bytes(arrays))
        return self.port.ask({name: OutgoingRequest(ask) for name in names}, self.experiment.reply_timeout_s)

    def request_training(
        self, task: RoundTask, goals: Mapping[str, RoundGoal], states: Mapping[str, ClientState]
    ) -> Mapping[str, IncomingReply]:
        """What each board of ``goals`` trained; arrays that do not fit the model are an answer with ``error``."""
        ask = RequestMessage(
            "train",
            task.round,
            task.start_s,
            self.experiment.policy.name,
            model_bytes=count_bytes(task.arrays),
            proximal_mu=task.proximal_mu,
            cancel_s=task.cut.cancel_s,
        )
        asks = self._build_requests(ask, goals, states)
        questions = {name: OutgoingRequest(each, task.arrays, task.cut.within_s) for name, each in asks.items()}
        replies = self.port.ask(
            questions, self.experiment.reply_timeout_s, partial(_is_round_complete, task, self.narrow)
        )
        return {board: validate_reply(board, reply, task.arrays, self.narrow) for board, reply in replies.items()}

    def _build_requests(
        self, ask: RequestMessage, goals: Mapping[str, RoundGoal], states: Mapping[str, ClientState]
    ) -> dict[str, RequestMessage]:
        """The question as every board gets it: its goal, its state, and what others of its kind measured."""
        told: Mapping[str, tuple[Measurement, ...]] = {}
        if self.experiment.share_samples:
            kinds = find_kinds(list_boards(self.experiment), self.experiment.workload.cost)
            told = share_measurements(kinds, states, goals.keys())
        return {
            name: dataclasses.replace(ask, goal=goal, state=states.get(name, ClientState()), shared=told.get(name, ()))
            for name, goal in goals.items()
        }


def to_contribution(board: str, reply: IncomingReply) -> Contribution | None:
    """What a reply gives to aggregate; None when the board trained nothing."""
    report, trained = reply.answer.report, reply.trained
    if report is None or trained is None:
        return None
    steps = _count_equivalent_steps(report)
    return Contribution(
        board, arrays=trained.arrays, samples=report.samples, loss=trained.loss, accuracy=trained.accuracy, steps=steps
    )


def _count_equivalent_steps(report: RoundReport) -> int:
    """Minibatches done, as many as of the size asked for: with smaller ones each moved the model by so much less."""
    memory = report.memory
    if memory is None or memory.used.batch_size == memory.asked.batch_size:
        return report.steps
    return max(1, round(report.steps * memory.used.batch_size / memory.asked.batch_size))


def _is_round_complete(task: RoundTask, narrow: NarrowShapes | None, replies: Collection[IncomingReply]) -> bool:
    """Whether these replies are all that a round of real boards needs."""
    useful = [
        validate_reply(reply.answer.board, reply, task.arrays, narrow) for reply in replies if not reply.answer.cut
    ]
    reports = [each.answer.report for each in useful if each.trained is not None]
    return has_enough_replies(task.cut, [report.busy_s for report in reports if report is not None])


def count_bytes(arrays: NamedArrays) -> int:
    """What a model weighs on the link."""
    return sum(value.nbytes for value in arrays.values())


def validate_reply(
    board: str, reply: IncomingReply, arrays: NamedArrays, narrow: NarrowShapes | None = None
) -> IncomingReply:
    """The reply; one with arrays neither like the model's nor like the narrow ones it declares is an ``error``."""
    contribution = to_contribution(board, reply)
    if contribution is None:
        return reply
    try:
        check_arrays(_select_expected_arrays(reply, arrays, narrow), contribution)
    except (ArrayMismatch, Refusal, BadInput) as error:
        return IncomingReply(ReplyMessage(board, error=str(error)))
    return reply


def _select_expected_arrays(reply: IncomingReply, arrays: NamedArrays, narrow: NarrowShapes | None) -> NamedArrays:
    """The model, or the leading blocks of it that the reply's width is about; raises ``BadInput`` or ``Refusal``."""
    report, trained = reply.answer.report, reply.trained
    width = 1.0 if report is None or report.memory is None else report.memory.used.width
    if width == 1.0 or narrow is None or trained is None or array_shapes(trained.arrays) == array_shapes(arrays):
        return arrays
    return take_leading(arrays, narrow(width))


def find_narrow_shapes(experiment: Experiment, task: LearningTask) -> NarrowShapes | None:
    """How large narrow results are; None where the strategy or the task allows none."""
    shapes: NarrowShapes | None = getattr(task, "narrow_shapes", None)
    return shapes if can_narrow_clients(experiment.workload, experiment.strategy.name) else None
