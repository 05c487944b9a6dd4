"""Requests to clients: each with the client's state and measurements of its peers; replies are validated on arrival."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from fedge.client.memory_scaling import can_narrow_clients
from fedge.errors import LOWER_RATE, BadInput
from fedge.experiment import Experiment, list_boards
from fedge.flower.update_codec import UndecodableUpdate, compute_up_share, decode_result
from fedge.knowledge.evidence_files import find_kinds
from fedge.knowledge.recall import FILE as KNOWLEDGE_FILE
from fedge.knowledge.recall import NO_KNOWLEDGE, RunKnowledge, renews_peers
from fedge.protocols import LearningTask
from fedge.telemetry.client_rows import (
    describe_impossible_answer,
    describe_impossible_figures,
    describe_impossible_front,
)
from fedge.telemetry.settlement import NO_CUTOFF, RealCutoff, has_enough_replies
from fedge.telemetry.store_records import REFUSED
from fedge.types import (
    NOT_COMPRESSED,
    Compression,
    Floats32,
    Measurement,
    NamedArrays,
    RoundGoal,
    RoundReport,
)
from fedge.wire import ClientState, ReplyMessage, RequestMessage
from fedge.worker.refusal import Refusal
from fedge.worker.subnetwork_arrays import array_shapes, take_leading
from fedge.workloads import NOTHING
from server.aggregation.aggregator import ArrayMismatch, Contribution, check_arrays
from server.aggregation.contribution_weights import NarrowShapes
from server.rounds.shared_measurements import share_measurements
from server.state.checkpoint import UNKNOWN_CLIENT, ClientHistory, FleetState
from server.transport.client_port import ClientPort, IncomingReply, OutgoingRequest

T = TypeVar("T")
MAX_NORM_RATIO = 100.0
"""Norm of a result's change, in medians of its round, above which it is refused. Honest clients stay far below: the
largest of those with unequal labels and shares is printed by ``benchmarks/bad_clients.py``. The rest is the strategy's.
"""
NO_HISTORIES: Mapping[str, ClientHistory] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class RoundTask:
    """The training task of a round.

    Attributes:
        trainable: Names of the arrays that it averages or moves, in the model's order.
        cut: When the round continues without unfinished real boards.
        keeps_peers: Whether the next round is expected to come with the same measurements of peers.
    """

    round: int
    start_s: float
    arrays: NamedArrays
    settings: Mapping[str, float] = field(default_factory=dict)
    learning_rate: float | None = None
    trainable: tuple[str, ...] = ()
    cut: RealCutoff = NO_CUTOFF
    keeps_peers: bool = False

    @property
    def proximal_mu(self) -> float:
        """Return the coefficient of the proximal term; 0 for none."""
        return self.settings.get("proximal-mu", 0.0)


@dataclass(frozen=True, slots=True)
class FleetRequests:
    """Sends the requests of one experiment through ``port``.

    Attributes:
        narrow: Shapes of narrow networks by width; None if no client may train one.
    """

    experiment: Experiment
    port: ClientPort
    narrow: NarrowShapes | None = None
    knowledge: RunKnowledge = NO_KNOWLEDGE

    def request_fronts(self, names: Iterable[str], arrays: NamedArrays) -> Mapping[str, IncomingReply]:
        """Request each client's Pareto front, before any round; the size of ``arrays`` determines the transfer time.

        Returns:
            A reply for every client, with ``error`` if it failed or its front is impossible.
        """
        everyone = self.experiment.selection.count is None  # then the first round comes at once, with the same
        ask = RequestMessage(
            "front", policy=self.experiment.policy.name, model_bytes=count_bytes(arrays), keeps_peers=everyone
        )
        fixed, floats = self._fixed_compression, [name for name in arrays if arrays[name].dtype.kind == "f"]
        ask = dataclasses.replace(ask, up_share=compute_up_share(fixed or NOT_COMPRESSED, arrays, floats))
        asks = self._build_requests(ask, dict.fromkeys(names), {})
        replies = self.port.ask(
            {name: OutgoingRequest(each) for name, each in asks.items()}, self.experiment.reply_timeout_s
        )
        return {
            name: IncomingReply(dataclasses.replace(reply.answer, front=None, error=f"{REFUSED}impossible {wrong}"))
            if (wrong := describe_impossible_front(reply.answer.front))
            else reply
            for name, reply in replies.items()
        }

    def request_training(
        self,
        task: RoundTask,
        goals: Mapping[str, RoundGoal],
        states: Mapping[str, ClientState],
        histories: Mapping[str, ClientHistory] = NO_HISTORIES,
        residuals: Mapping[str, Floats32] = MappingProxyType({}),
    ) -> Mapping[str, IncomingReply]:
        """Request one round of training from every client that has a goal.

        Args:
            histories: History by client, which holds the measured rate of its link.
            residuals: What the encodings of emulated clients' updates left out, by client.

        Returns:
            A reply for every client; arrays that do not fit the model turn it into a reply with ``error``.
        """
        ask = RequestMessage(
            "train",
            task.round,
            task.start_s,
            self.experiment.policy.name,
            model_bytes=count_bytes(task.arrays),
            proximal_mu=task.proximal_mu,
            learning_rate=task.learning_rate,
            cancel_s=task.cut.cancel_s,
            keeps_peers=task.keeps_peers,
        )
        if self.experiment.mods:
            ask = dataclasses.replace(ask, settings=task.settings, trainable=task.trainable)
        if (fixed := self._fixed_compression) is not None:
            goals = {name: dataclasses.replace(goal, compression=fixed) for name, goal in goals.items()}
        asks = self._build_requests(ask, goals, states, histories)
        asks = {name: _add_encoding(each, task) for name, each in asks.items()}
        models = self._cut_models(task.arrays, goals, states)
        questions = {
            name: OutgoingRequest(
                each,
                models[name],
                task.cut.within_s,
                residuals.get(name) if goals[name].compression.kind == "topk" else None,
            )
            for name, each in asks.items()
        }
        replies = self.port.ask(
            questions, self.experiment.reply_timeout_s, partial(_is_round_complete, task, self.narrow)
        )
        valid = {
            board: validate_reply(board, reply, task.arrays, self.narrow, trainable=task.trainable)
            for board, reply in replies.items()
        }
        return refuse_outliers(valid, task.arrays)

    def _cut_models(
        self, arrays: NamedArrays, goals: Mapping[str, RoundGoal], states: Mapping[str, ClientState]
    ) -> dict[str, NamedArrays]:
        """Return the model that each client receives: the part that it may train, one object for all of a width."""
        if self.narrow is None:
            return dict.fromkeys(goals, arrays)
        may = {board.name: board.entry.width for board in list_boards(self.experiment)}
        whole = {name for name, state in states.items() if state.whole_only}
        widths = {name: 1.0 if name in whole else min(goal.width, may[name]) for name, goal in goals.items()}
        models = {width: _cut_model(arrays, self.narrow, width) for width in {*widths.values()} - {1.0}}
        return {name: models.get(width, arrays) for name, width in widths.items()}

    @property
    def _fixed_compression(self) -> Compression | None:
        """Return the encoding that the experiment gives all clients; None if it leaves the choice to the plan."""
        spec = self.experiment.compression
        return None if spec.kind is None else Compression(spec.kind, spec.keep)

    def request_evaluation(
        self, number: int, fleet: FleetState, arrays: NamedArrays, names: Iterable[str]
    ) -> Mapping[str, IncomingReply]:
        """Request an evaluation of the model of round ``number`` from the clients ``names`` of ``fleet``.

        Returns:
            A reply for every client, with ``error`` if its figures are impossible.
        """
        ask = RequestMessage(
            "evaluate", number, fleet.clock_s, self.experiment.policy.name, model_bytes=count_bytes(arrays)
        )
        questions = {
            name: OutgoingRequest(
                dataclasses.replace(
                    ask,
                    state=self._find_state(name, fleet.states),
                    link_mbps=fleet.histories.get(name, UNKNOWN_CLIENT).link_mbps,
                ),
                arrays,
            )
            for name in names
        }
        replies = self.port.ask(questions, self.experiment.reply_timeout_s)
        return {board: validate_evaluation(board, reply) for board, reply in replies.items()}

    def _build_requests(
        self,
        ask: RequestMessage,
        goals: Mapping[str, RoundGoal | None],
        states: Mapping[str, ClientState],
        histories: Mapping[str, ClientHistory] = NO_HISTORIES,
    ) -> dict[str, RequestMessage]:
        """Return the request for each client: its goal, its state, and measurements of peers and of earlier runs."""
        recalled = {
            name: measurements
            for name, measurements in self.knowledge.own.items()
            if not self._find_state(name, states).doubts_recalled
        }
        shared: Mapping[str, tuple[Measurement, ...]] = {}
        if self.experiment.share_samples:
            kinds = self._add_peer_kinds(find_kinds(self.experiment))
            peers = {peer.name for peer in self.knowledge.peers}
            told = states if renews_peers(ask.round) else omit_unshared(states, histories)
            shared = share_measurements(kinds, self._recall_states(told, recalled), goals.keys(), peers)
        return {
            name: dataclasses.replace(
                ask,
                goal=goal,
                state=self._find_state(name, states),
                shared=shared.get(name, ()),
                recalled=recalled.get(name, ()),
                references=self.knowledge.references.get(name, ()),
                link_mbps=histories.get(name, UNKNOWN_CLIENT).link_mbps,
                gives_back=bool(self.knowledge.folder),
                recalls_recorded=name in self.knowledge.recorded if self.knowledge.origins.get(name) else None,
            )
            for name, goal in goals.items()
        }

    def _find_state(self, name: str, states: Mapping[str, ClientState]) -> ClientState:
        """Return a client's state; before its first reply, what is known of the board's memory from earlier runs."""
        return states.get(name) or ClientState(memory=self.knowledge.memory.get(name, ()))

    def _add_peer_kinds(self, kinds: Mapping[str, Hashable]) -> Mapping[str, Hashable]:
        """Add the kinds of recalled peers, none of which may have the name of a client or of another peer."""
        known = {**kinds, **{peer.name: kinds[peer.like] for peer in self.knowledge.peers}}
        if len(known) < len(kinds) + len(self.knowledge.peers):
            raise BadInput(KNOWLEDGE_FILE, "a peer with another board's name", "the file of the run's start")
        return known

    def _recall_states(
        self, states: Mapping[str, ClientState], recalled: Mapping[str, tuple[Measurement, ...]]
    ) -> Mapping[str, ClientState]:
        """Return the states with the measurements of earlier runs first, and those of boards that do not take part."""
        own = {
            name: dataclasses.replace(state, measurements=(*measurements, *state.measurements))
            for name, measurements in recalled.items()
            for state in [self._find_state(name, states)]
        }
        peers = {peer.name: ClientState(peer.measurements) for peer in self.knowledge.peers}
        return {**peers, **states, **own}


def _cut_model(arrays: NamedArrays, narrow: NarrowShapes, width: float) -> NamedArrays:
    """Return the leading part for a width, or the whole model for one that a client's offer made up."""
    try:
        return take_leading(arrays, narrow(width))
    except (BadInput, Refusal):
        return arrays


def omit_unshared(
    states: Mapping[str, ClientState], histories: Mapping[str, ClientHistory]
) -> Mapping[str, ClientState]:
    """Return the states with what was measured until peers were last told of it."""
    new = {name: histories.get(name, UNKNOWN_CLIENT).unshared for name in states}
    return {
        name: dataclasses.replace(state, measurements=state.measurements[: -new[name]]) if new[name] else state
        for name, state in states.items()
    }


def _add_encoding(ask: RequestMessage, task: RoundTask) -> RequestMessage:
    """Return a request with what the client needs to encode its update as its goal says."""
    if ask.goal is None or ask.goal.compression.kind == "none":
        return ask
    share = compute_up_share(ask.goal.compression, task.arrays, task.trainable)
    return dataclasses.replace(ask, trainable=task.trainable, up_share=share)


def to_contribution(board: str, reply: IncomingReply) -> Contribution | None:
    """Convert a reply to a contribution; None if the client did not train."""
    report, trained = reply.answer.report, reply.trained
    if report is None or trained is None:
        return None
    steps = _count_equivalent_steps(report)
    return Contribution(
        board,
        arrays=trained.arrays,
        samples=report.samples,
        loss=trained.loss,
        accuracy=trained.accuracy,
        steps=steps,
        metrics=trained.metrics,
    )


def _count_equivalent_steps(report: RoundReport) -> int:
    """Return the number of steps, scaled to the requested batch size: smaller batches move the model by less."""
    memory = report.memory
    if memory is None or memory.used.batch_size == memory.asked.batch_size:
        return report.steps
    return max(1, round(report.steps * memory.used.batch_size / memory.asked.batch_size))


def _is_round_complete(task: RoundTask, narrow: NarrowShapes | None, replies: Collection[IncomingReply]) -> bool:
    """Return True if these replies are enough to end a round of real boards."""
    useful = [
        validate_reply(reply.answer.board, reply, task.arrays, narrow, trainable=task.trainable)
        for reply in replies
        if not reply.answer.cut
    ]
    reports = [each.answer.report for each in useful if each.trained is not None]
    return has_enough_replies(task.cut, [report.busy_s for report in reports if report is not None])


def count_bytes(arrays: NamedArrays) -> int:
    """Return the size of a model on the network link, in bytes."""
    return sum(value.nbytes for value in arrays.values())


def validate_reply(
    board: str,
    reply: IncomingReply,
    arrays: NamedArrays,
    narrow: NarrowShapes | None = None,
    trainable: Sequence[str] = (),
) -> IncomingReply:
    """Decode a reply's update, and check its arrays against the model, or the narrow shapes that the reply declares.

    Returns:
        The reply with the trained arrays, or a refused one if they do not fit. A report of figures that nothing can be
        booked from is dropped.
    """
    report = reply.answer.report
    if wrong := describe_impossible_answer(reply.answer):
        return IncomingReply(ReplyMessage(board, error=f"{REFUSED}impossible {wrong}"))
    if reply.trained is None or report is None:
        return reply
    try:
        expected = _select_expected_arrays(reply, arrays, narrow)
        trained = decode_result(expected, trainable, reply.trained)
        decoded = reply if trained is reply.trained else dataclasses.replace(reply, trained=trained)
        if report.steps and NOTHING not in arrays:
            _check_loss(trained.loss)
        contribution = to_contribution(board, decoded)
        assert contribution is not None, "it has a report and a result"
        check_arrays(expected, contribution)
    except (ArrayMismatch, UndecodableUpdate, Refusal, BadInput) as error:
        return _refuse(reply, str(error))
    return decoded


def _check_loss(loss: float) -> None:
    """Raise ``ArrayMismatch`` for a loss that is no number: some strategies weight results by it."""
    if not math.isfinite(loss):
        raise ArrayMismatch(f"its loss is {loss}; {LOWER_RATE}")


def refuse_outliers(replies: Mapping[str, IncomingReply], arrays: NamedArrays) -> dict[str, IncomingReply]:
    """Return the replies; those are refused whose results would decide the model alone (``find_outliers``)."""
    results = {board: reply.trained.arrays for board, reply in replies.items() if reply.trained is not None}
    wrong = find_outliers(arrays, results)
    return {
        board: _refuse(reply, f"{describe_outlier(wrong[board])} in its round") if board in wrong else reply
        for board, reply in replies.items()
    }


def find_outliers(arrays: NamedArrays, results: Mapping[T, NamedArrays]) -> dict[T, float]:
    """Return the results that change the model ``arrays`` out of all proportion to the others.

    Returns:
        The norm of the change in medians of ``results``, where it is more than ``MAX_NORM_RATIO``. With fewer than
        three results nobody can tell who is right.
    """
    norms = {name: compute_change_norm(arrays, result) for name, result in results.items()}
    usual = statistics.median(norms.values()) if len(norms) >= 3 else 0.0
    return {name: norm / usual for name, norm in norms.items() if usual > 0.0 and norm > MAX_NORM_RATIO * usual}


def describe_outlier(ratio: float) -> str:
    return f"it changes the model {ratio:,.0f} times as much as is usual"


def compute_change_norm(arrays: NamedArrays, trained: NamedArrays) -> float:
    """Return the Euclidean norm of the change of all floating-point arrays; a narrow model's of the part it has."""
    changes = [
        np.asarray(value, np.float64) - np.asarray(arrays[name], np.float64)[tuple(map(slice, value.shape))]
        for name, value in trained.items()
        if value.dtype.kind == "f"
    ]
    return math.sqrt(sum(float(np.vdot(change, change)) for change in changes))


def _refuse(reply: IncomingReply, reason: str) -> IncomingReply:
    """Keep of a reply what its client spent, and nothing that it learnt."""
    answer = reply.answer
    spent = ReplyMessage(answer.board, report=answer.report, error=f"{REFUSED}{reason}", trace=answer.trace)
    return IncomingReply(spent)


def validate_evaluation(board: str, reply: IncomingReply) -> IncomingReply:
    """Return the reply, or one with ``error`` if its evaluation can be neither booked nor averaged."""
    report = reply.answer.evaluation
    if report is None:
        return reply
    impossible = describe_impossible_figures(report)
    reasons = {
        f"it is of {report.board}": report.board != board,
        f"{report.samples} test samples": report.samples < 1,
        f"loss {report.loss}, accuracy {report.accuracy}": not np.isfinite([report.loss, report.accuracy]).all(),
        impossible or "no work": bool(impossible) or report.work_s == 0.0,
    }
    wrong = [reason for reason, holds in reasons.items() if holds]
    return IncomingReply(ReplyMessage(board, error=f"an impossible evaluation: {'; '.join(wrong)}")) if wrong else reply


def _select_expected_arrays(reply: IncomingReply, arrays: NamedArrays, narrow: NarrowShapes | None) -> NamedArrays:
    """Return the model, or its leading part for the reply's width; raises ``BadInput`` or ``Refusal``."""
    report, trained = reply.answer.report, reply.trained
    width = 1.0 if report is None or report.memory is None else report.memory.used.width
    if width == 1.0 or narrow is None or trained is None or array_shapes(trained.arrays) == array_shapes(arrays):
        return arrays
    return take_leading(arrays, narrow(width))


def find_narrow_shapes(experiment: Experiment, task: LearningTask) -> NarrowShapes | None:
    """Return the shapes of narrow networks by width, or None if the strategy or task does not support them."""
    shapes: NarrowShapes | None = getattr(task, "narrow_shapes", None)
    return shapes if can_narrow_clients(experiment) else None
