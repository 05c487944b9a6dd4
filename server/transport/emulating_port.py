"""The client port to nodes that emulate boards: a message has the requests of several boards, which predict together.

Boards are emulated, so any node can answer for any of them: a message says which boards it is for, and of which
experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Protocol

from flwr.app import ArrayRecord, Message

from fedge.errors import RunFailed
from fedge.experiment import Experiment, list_boards
from fedge.flower.messages import to_array_record
from fedge.protocols import Clock
from fedge.types import NamedArrays
from fedge.wire import ReplyMessage
from server.transport.client_port import IncomingReply, OutgoingRequest, ReplyPredicate, never_enough
from server.transport.grid_port import REJECTED_TEXT, MessageGrid, poll, push
from server.transport.message_codec import check_processes, decode_group, encode_group

POLL_S = 0.02
"""Seconds between two looks for replies: a round may take a tenth of a second, and few messages are waited for."""
MAX_GROUP_BYTES = 64 << 20
"""Upper limit of the models and residuals in one message or reply, in bytes; bounds what a node holds, and what is
copied on the way.
"""
RESIDUAL_VALUE_BYTES = 4
BUSY_TEXT = "no process was free within {:.4g} s: each works on requests of an earlier round (reply_timeout_s)"

Questions = Mapping[str, OutgoingRequest]


class EmulatingGrid(MessageGrid, Protocol):
    """The three methods of ``flwr.serverapp.Grid`` that are used."""

    def get_node_ids(self) -> Iterable[int]: ...


class EmulatingNodes:
    """A ``ClientPort`` that deals the requests to the nodes, which emulate the boards of their messages."""

    def __init__(self, grid: EmulatingGrid, experiment: Experiment, clock: Clock, folder: Path | None = None) -> None:
        """Create the port.

        Args:
            folder: Folder of the run for the clients' progress, if all nodes see it under this path; else None.
        """
        self._grid, self._clock = grid, clock
        self._run = experiment.model_dump_json(), "" if folder is None else str(folder)
        self._index = {board.name: board.index for board in list_boards(experiment)}
        self._connect_timeout_s = experiment.superlink.connect_timeout_s
        self._at_work: dict[str, int] = {}
        """Node by the id of each message without a reply, also of earlier rounds: a node cannot be called back."""

    def ask(
        self, questions: Questions, timeout_s: float, enough: ReplyPredicate = never_enough
    ) -> Mapping[str, IncomingReply]:
        if not questions:
            return {}
        nodes = self._wait_for_free_nodes(timeout_s)
        if not nodes:
            return {board: _fail(board, BUSY_TEXT.format(timeout_s)) for board in questions}
        ends_s = self._clock.now_s() + timeout_s
        models = {id(question.arrays): question.arrays for question in questions.values()}
        records = {key: None if arrays is None else to_array_record(arrays) for key, arrays in models.items()}
        replies, waiting = self._send(nodes, _form_groups(questions, len(nodes)), records)
        for pulled in poll(self._grid, self._clock, waiting, ends_s, every_s=POLL_S):
            for message in pulled:
                group = self._take(waiting, message)
                if message.has_error() and len(group) > 1:  # which board is at fault shows once they are apart
                    failed, again = self._send(nodes, _halve(group), records)
                    replies |= failed
                    waiting |= again
                else:
                    replies |= decode_group(group, message)
        for group in waiting.values():
            others = f"; its process worked for {len(group) - 1} more" if len(group) > 1 else ""
            replies |= {board: _fail(board, f"no reply within {timeout_s:.4g} s{others}") for board in group}
        return {board: replies[board] for board in questions}

    def _send(
        self, nodes: Sequence[int], groups: Iterable[Questions], records: Mapping[int, ArrayRecord | None]
    ) -> tuple[dict[str, IncomingReply], dict[str, Questions]]:
        """Send each group to a node; return replies with ``error`` for those refused, and the others by message id."""
        dealt = list(zip(cycle(nodes), groups, strict=False))
        messages = [
            encode_group(
                node,
                {self._index[board]: question for board, question in group.items()},
                records[id(_arrays(group))],
                self._run,
            )
            for node, group in dealt
        ]
        failed, sent = dict[str, IncomingReply](), dict[str, Questions]()
        for message_id, (node, group) in zip(push(self._grid, messages), dealt, strict=True):
            if message_id:
                self._at_work[message_id], sent[message_id] = node, group
            else:
                failed |= {board: _fail(board, REJECTED_TEXT) for board in group}
        return failed, sent

    def _take(self, waiting: dict[str, Questions], message: Message) -> Questions:
        """Return the group of a reply, which is no longer waited for; raise ``RunFailed`` if its process ended."""
        message_id = message.metadata.reply_to_message_id
        del self._at_work[message_id]
        check_processes(waiting[message_id], message)
        return waiting.pop(message_id)

    def _wait_for_free_nodes(self, timeout_s: float) -> list[int]:
        """Return the connected nodes that have answered everything; wait for the first one, at most ``timeout_s``.

        Replies to requests that nobody waits for are thrown away.
        """
        nodes, ends_s = self._list_nodes(), self._clock.now_s() + timeout_s
        while True:
            for message in self._grid.pull_messages(tuple(self._at_work)) if self._at_work else ():
                self._at_work.pop(message.metadata.reply_to_message_id, None)
            busy = set(self._at_work.values())
            free = [node for node in nodes if node not in busy]
            if free or self._clock.now_s() >= ends_s:
                return free
            self._clock.sleep_s(POLL_S)

    def _list_nodes(self) -> list[int]:
        """Return the connected nodes; wait for the first one."""
        began_s = self._clock.now_s()
        while not (nodes := sorted(self._grid.get_node_ids())):
            if self._clock.now_s() - began_s > self._connect_timeout_s:
                raise RunFailed(f"no node came up in {self._connect_timeout_s:.0f} s")
            self._clock.sleep_s(POLL_S)
        return nodes


def _fail(board: str, error: str) -> IncomingReply:
    return IncomingReply(ReplyMessage(board, error=error))


def _form_groups(questions: Questions, nodes: int) -> Iterator[Questions]:
    """Yield the questions in groups with the same arrays, one for every node unless the replies would be too large."""
    alike: dict[int, list[str]] = {}
    for board, question in questions.items():
        alike.setdefault(id(question.arrays), []).append(board)
    for boards in alike.values():
        most = max(1, MAX_GROUP_BYTES // max(1, *(_count_bytes(questions[board]) for board in boards)))
        count = min(len(boards), max(nodes, -(-len(boards) // most)))
        for first in range(count):
            yield {board: questions[board] for board in boards[first::count]}


def _count_bytes(question: OutgoingRequest) -> int:
    """Return the bytes that a node holds of a client's reply: its model, and what its encoding leaves out."""
    arrays, goal = question.arrays or {}, question.ask.goal
    model_bytes = sum(array.nbytes for array in arrays.values())
    if goal is None or goal.compression.kind != "topk":
        return model_bytes
    return model_bytes + RESIDUAL_VALUE_BYTES * sum(arrays[name].size for name in question.ask.trainable)


def _halve(group: Questions) -> Iterator[Questions]:
    boards = list(group)
    for half in (boards[: len(boards) // 2], boards[len(boards) // 2 :]):
        yield {board: group[board] for board in half}


def _arrays(group: Questions) -> NamedArrays | None:
    """Return the arrays that all questions of a group have."""
    return next(iter(group.values())).arrays
