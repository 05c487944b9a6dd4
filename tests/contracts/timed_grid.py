"""A fake of Flower's Grid on a virtual clock: a node handles one message after the other, and each takes its time."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from contracts.reports import answer, front
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedge.clock import SimulatedClock
from fedge.flower.messages import ensure_identity
from fedge.wire import ReplyMessage, RequestMessage, from_json, to_json

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
START_S = 2.0
"""What Flower takes for a message on top of the board's work."""


@dataclasses.dataclass(frozen=True)
class Passed:
    """A message on its way: what it asks, when it was sent and when the reply is there."""

    message: Message
    board: str
    ask: RequestMessage
    sent_s: float
    there_s: float


@dataclasses.dataclass(frozen=True)
class Up:
    """What Flower tells of a node that is up."""

    node_id: int
    last_activated_at: str = ""


class TimedGrid:
    """Nodes 11, 12, ... are the boards named; a training takes ``work_s`` of its board, any other message nothing.

    ``holders`` are boards that the run "other" holds until ``frees_s``, and how long each says that is; Flower itself
    answers for nodes that are ``lost``, takes no message to those that are ``refused``, and notes when each was
    ``activated`` last.
    """

    def __init__(self, clock: SimulatedClock, boards: Sequence[str], work_s: Mapping[str, float]) -> None:
        ensure_identity()
        self.clock, self.work_s = clock, dict(work_s)
        self.boards = {11 + i: board for i, board in enumerate(boards)}
        self.holders: dict[str, float] = {}
        self.frees_s = float("inf")
        self.lost: set[int] = set()
        self.refused: set[int] = set()
        self.activated: dict[int, str] = {}
        self.passed: dict[str, Passed] = {}
        self.free_s: dict[int, float] = {}

    @property
    def asked(self) -> list[tuple[str, str, int]]:
        """Board, kind and round of every message."""
        return [(each.board, each.ask.kind, each.ask.round) for each in self.passed.values()]

    def get_nodes(self) -> Iterable[Up]:
        return [Up(node, self.activated.get(node, "")) for node in self.boards if node not in self.lost]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        node, now_s = message.metadata.dst_node_id, self.clock.now_s()
        ask = from_json(RequestMessage, str(message.content.config_records["fedge"]["ask"]))
        board = self.boards[node]
        if node in self.refused:
            return ""
        work_s = self.work_s.get(board, 0.0) if ask.kind == "train" else 0.0
        there_s = max(now_s, self.free_s.get(node, 0.0)) + START_S + work_s
        self.free_s[node] = there_s
        message_id = f"m{len(self.passed)}"
        self.passed[message_id] = Passed(message, board, ask, now_s, there_s)
        return message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ids = tuple(message_ids)
        assert ids, "Flower refuses to be asked for nothing"
        replies = [self._reply(message_id) for message_id in sorted(ids)]
        return [reply for reply in replies if reply is not None]

    def _reply(self, message_id: str) -> Message | None:
        passed = self.passed[message_id]
        if passed.message.metadata.dst_node_id in self.lost:
            reply = Message(Error(5, "Node Unavailable - ..."), reply_to=passed.message)
        elif self.clock.now_s() < passed.there_s:
            return None
        else:
            reply = Message(self._content(passed.board, passed.ask), reply_to=passed.message)
        reply.metadata.__dict__["_reply_to_message_id"] = message_id
        return reply

    def _content(self, board: str, ask: RequestMessage) -> RecordDict:
        if (ask.kind, ask.run) == ("bye", "other"):
            self.holders.pop(board, None)
        if board in self.holders and ask.kind != "bye" and self.clock.now_s() < self.frees_s:
            left_s = self.holders[board]
            error = f'{board} works for run "other" (for {left_s:.0f} s more)'
            said = ReplyMessage(board, error=error, held_s=left_s, held_by="other")
            return RecordDict({"fedge": ConfigRecord({"answer": to_json(said)})})
        if ask.kind != "train":
            told = ReplyMessage(board, front() if ask.kind == "front" else None, samples=100)
            return RecordDict({"fedge": ConfigRecord({"answer": to_json(told)})})
        return RecordDict(
            {
                "fedge": ConfigRecord({"answer": to_json(answer(board, self.work_s.get(board, 0.0) or 1e-3))}),
                "arrays": ArrayRecord({name: Array(value + 1) for name, value in MODEL.items()}),
                "metrics": MetricRecord({"loss": 0.25, "accuracy": 0.75}),
            }
        )
