"""The port over Flower's Grid: finds which node is which board, pushes questions, pulls replies until time is up."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fedge.errors import RunFailed
from fedge.interfaces import Clock
from fedge.types import TrainResult
from fedge.wire import Answer, Ask, Unreadable, from_json, to_json
from server.flower_messages import arrays_of, message, record_of
from server.port import Question, Reply

POLL_S = 0.05
FIRST_HELLO_WITHIN_S = 60.0
"""A node is given so long to say who it is: it starts a process for every message, which takes a slow board a while."""
HELLO_WITHIN_S = 30.0
"""One that comes up while a run is on is given less, since the round waits for it; both are chosen by us."""
SILENT_S = 60.0
"""A node that did not is asked again after so long, then after twice as long, and so on; chosen by us."""
UNNAMED = "node "
"""What a node is called before it has told its board's name."""
_TYPES = {"hello": MessageType.QUERY, "front": MessageType.QUERY, "train": MessageType.TRAIN}


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pause:
    """For how long, and until when, a node is not asked who it is."""

    length_s: float
    until_s: float


class Grid(Protocol):
    """The three calls of ``flwr.serverapp.Grid`` that are used."""

    def get_node_ids(self) -> Iterable[int]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class GridPort:
    """A ``ClientPort``; boards are known by their own names, which their answers to ``hello`` tell."""

    def __init__(
        self,
        grid: Grid,
        boards: Collection[str],
        clock: Clock,
        connect_timeout_s: float = 120.0,
        least: int | None = None,
    ) -> None:
        """``least`` boards must come up within ``connect_timeout_s``, all of them by default."""
        self._grid = grid
        self._boards = tuple(boards)
        self._clock = clock
        self._connect_timeout_s = connect_timeout_s
        self._least = len(self._boards) if least is None else least
        self._node_of: dict[str, int] = {}
        self._strangers: set[int] = set()
        """Nodes whose board is not of this fleet."""
        self._silent: dict[int, _Pause] = {}

    def ask(self, questions: Mapping[str, Question], timeout_s: float) -> Mapping[str, Reply]:
        self._meet(self._nodes())
        reached = {board: question for board, question in questions.items() if board in self._node_of}
        replies = self._exchange({self._node_of[board]: question for board, question in reached.items()}, timeout_s)
        return {
            board: replies.get(self._node_of[board], _silent(board, timeout_s)) if board in reached else _lost(board)
            for board in questions
        }

    def _nodes(self) -> tuple[int, ...]:
        """The nodes that are up; before any is known it waits for the whole fleet, for a while.

        Raises ``RunFailed`` when too few come up.
        """
        started_s = self._clock.now_s()
        nodes = tuple(self._grid.get_node_ids())
        while not self._node_of and len(nodes) < len(self._boards):
            if self._clock.now_s() - started_s > self._connect_timeout_s:
                break
            self._clock.sleep_s(POLL_S)
            nodes = tuple(self._grid.get_node_ids())
        if not self._node_of and len(nodes) < max(1, self._least):
            waited_s = self._connect_timeout_s
            raise RunFailed(f"{len(nodes)} of {len(self._boards)} nodes came up in {waited_s:.0f} s")
        return nodes

    def _meet(self, nodes: Collection[int]) -> None:
        """Ask every node that is new who it is; a board that came back with another node is known by that one."""
        now_s = self._clock.now_s()
        known = {*self._node_of.values(), *self._strangers}
        silent = {node for node, pause in self._silent.items() if now_s < pause.until_s}
        unknown = [node for node in nodes if node not in known | silent]
        if not unknown:
            return
        within_s = HELLO_WITHIN_S if self._node_of else max(FIRST_HELLO_WITHIN_S, self._connect_timeout_s)
        replies = self._exchange({node: Question(Ask("hello")) for node in unknown}, within_s)
        told = {node: reply.answer.board for node, reply in replies.items() if reply.answer.error is None}
        self._leave_alone(set(unknown) - set(told))
        ours = self._ours(told, nodes)
        if not ours and not self._node_of:
            reasons = (reply.answer.error for reply in replies.values() if reply.answer.error)
            strange = f"the boards that did, {', '.join(sorted(told.values()))}, are not in this fleet"
            raise RunFailed(f"no board answered: {next(reasons, strange if told else 'silence')}")
        self._node_of |= ours

    def _ours(self, told: Mapping[int, str], nodes: Collection[int]) -> dict[str, int]:
        """The fleet's boards among those that told their names; every other node is a stranger from now on.

        A second node that claims the name of a board whose node is up is one, too: two boards with one settings file.
        """
        ours: dict[str, int] = {}
        for node, board in told.items():
            if board in self._boards and board not in ours and self._node_of.get(board) not in nodes:
                ours[board] = node
                continue
            self._strangers.add(node)
            if board in self._boards:
                logger.warning("a second node says that it is %s: left alone; give every board its own name", board)
        return ours

    def _leave_alone(self, nodes: Collection[int]) -> None:
        """Nodes that did not say who they are, each left alone twice as long as the last time."""
        now_s = self._clock.now_s()
        for node in nodes:
            earlier = self._silent.get(node)
            length_s = SILENT_S if earlier is None else 2 * earlier.length_s
            self._silent[node] = _Pause(length_s, now_s + length_s)

    def _exchange(self, questions: Mapping[int, Question], timeout_s: float) -> dict[int, Reply]:
        """Push every question and pull replies until all are there or the time is up."""
        started_s = self._clock.now_s()
        ids = tuple(self._grid.push_messages([_packed(node, question) for node, question in questions.items()]))
        node_of = dict(zip(ids, questions, strict=True))
        replies: dict[int, Reply] = {}
        while node_of and self._clock.now_s() - started_s < timeout_s:
            for reply in self._grid.pull_messages(tuple(node_of)):
                node = node_of.pop(reply.metadata.reply_to_message_id)
                replies[node] = _unpacked(self._name_of(node), reply)
            if node_of:
                self._clock.sleep_s(POLL_S)
        return replies

    def _name_of(self, node: int) -> str:
        return next((board for board, known in self._node_of.items() if known == node), f"{UNNAMED}{node}")


def _packed(node: int, question: Question) -> Message:
    content = RecordDict({"fedge": ConfigRecord({"ask": to_json(question.ask)})})
    if question.arrays is not None:
        content["arrays"] = record_of(question.arrays)
    return message(content, _TYPES[question.ask.kind], node)


def _unpacked(board: str, reply: Message) -> Reply:
    """The reply's values; whatever is wrong with it is an answer with ``error``."""
    if reply.has_error():
        return Reply(Answer(board, error=f"Flower error {reply.error.code}: {reply.error.reason}"))
    try:
        return _read(board, reply.content)
    except Exception as error:  # noqa: BLE001 -- a board may send anything; none of it may end the server
        return Reply(Answer(board, error=f"unreadable reply: {type(error).__name__}: {error}"))


def _read(board: str, content: RecordDict) -> Reply:
    answer = from_json(Answer, str(content.config_records["fedge"]["answer"]))
    names = {answer.board} | ({answer.report.board} if answer.report else set())
    if names != {board} and not board.startswith(UNNAMED):
        raise Unreadable(f"it speaks for {', '.join(sorted(names))}")
    if answer.report is None:
        return Reply(answer)
    arrays = arrays_of(content.array_records["arrays"])
    loss, accuracy = (float(content.metric_records["metrics"][key]) for key in ("loss", "accuracy"))  # type: ignore[arg-type]
    return Reply(answer, TrainResult(arrays, loss, accuracy))


def _silent(board: str, timeout_s: float) -> Reply:
    return Reply(Answer(board, error=f"no reply within {timeout_s:g} s"))


def _lost(board: str) -> Reply:
    return Reply(Answer(board, error="never connected"))
