"""The client port to nodes that emulate boards: a message has the requests of several boards, which predict together.

Boards are emulated, so any node can answer for any of them: a message says which boards it is for, and of which
experiment.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Protocol

from flwr.app import ArrayRecord, Message

from fedge.errors import RunFailed
from fedge.experiment import Experiment, list_boards
from fedge.flower.messages import to_array_record
from fedge.groups import group_by
from fedge.knowledge.evidence_files import find_kinds
from fedge.protocols import Clock
from fedge.types import NamedArrays
from fedge.wire import ReplyMessage
from server.rounds.shared_measurements import divide_boards
from server.transport.client_port import IncomingReply, OutgoingRequest, ReplyPredicate, never_enough
from server.transport.grid_port import REJECTED_TEXT, MessageGrid, poll, push
from server.transport.message_codec import check_processes, decode_group, encode_group, read_process

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


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """Who answered for a group of boards.

    Attributes:
        node: The Flower node that the message was for.
        group: Number of the group in its round.
        process: Id of the process; None if it is not known.
        ended_s: Unix time of the answer.
    """

    node: int
    group: int
    process: int | None
    ended_s: float


class ProcessStack:
    """Sends boards to the process that emulated them last: another would fit and predict for them anew.

    Flower keeps its free processes in a stack: the first message of a round goes to the process that was done last, the
    next one to that which was done before it. Messages to several nodes begin in an order of Flower's own, which is the
    same in all rounds, so one round shows it.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        """Processes, the one that was done last at the end; empty if that is not known."""
        self._group: dict[int, int] = {}
        self._rank: dict[int, int] = {}

    def assign(self, nodes: Sequence[int], groups: int) -> list[int]:
        """Return the node for each of the groups."""
        ranked = sorted(nodes, key=lambda node: self._rank.get(node, 0))
        if groups > min(len(nodes), len(self._free)):
            return list(islice(cycle(ranked), groups))
        chosen, others = dict[int, int](), list[int]()
        for node, process in zip(ranked, self._free[: -groups - 1 : -1], strict=False):
            group = self._group[process]
            if group < groups and group not in chosen:
                chosen[group] = node
            else:
                others.append(node)
        return [chosen[group] if group in chosen else others.pop(0) for group in range(groups)]

    def record(self, answers: Sequence[GroupAnswer], groups: int) -> None:
        """Record a round's answers to ``groups`` messages; without all of them the stack is not known."""
        known = {one.process: one for one in sorted(answers, key=lambda one: one.ended_s) if one.process is not None}
        if len(known) < groups:
            self._free = []
            return
        next_up = self._free[::-1]
        self._rank |= {one.node: next_up.index(process) for process, one in known.items() if process in next_up}
        self._free = [process for process in self._free if process not in known] + list(known)
        self._group |= {process: one.group for process, one in known.items()}


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
        self._kinds, self._processes = find_kinds(experiment), ProcessStack()
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
        groups, answers = list(_form_groups(questions, self._kinds, len(nodes))), list[GroupAnswer]()
        numbers = {id(group): number for number, group in enumerate(groups)}
        replies, waiting = self._send(self._processes.assign(nodes, len(groups)), groups, records)
        for pulled in poll(self._grid, self._clock, waiting, ends_s, every_s=POLL_S):
            for message in pulled:
                node, group = self._take(waiting, message)
                if (number := numbers.get(id(group))) is not None:
                    answers.append(GroupAnswer(node, number, read_process(message), message.metadata.created_at))
                if message.has_error() and len(group) > 1:  # which board is at fault shows once they are apart
                    failed, again = self._send(nodes, _halve(group), records)
                    replies |= failed
                    waiting |= again
                else:
                    replies |= decode_group(group, message)
        self._processes.record(answers, len(groups))
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

    def _take(self, waiting: dict[str, Questions], message: Message) -> tuple[int, Questions]:
        """Return node and group of a reply, which is no longer waited for; raise ``RunFailed`` if its process ended."""
        message_id = message.metadata.reply_to_message_id
        check_processes(waiting[message_id], message)
        return self._at_work.pop(message_id), waiting.pop(message_id)

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


def _form_groups(questions: Questions, kinds: Mapping[str, Hashable], nodes: int) -> Iterator[Questions]:
    """Yield the questions in groups with the same arrays, one for every node unless the replies would be too large."""
    for boards in group_by(questions, lambda board: id(questions[board].arrays)).values():
        most = max(1, MAX_GROUP_BYTES // max(1, *(_count_bytes(questions[board]) for board in boards)))
        count = min(len(boards), max(nodes, -(-len(boards) // most)))
        for share in divide_boards(kinds, boards, count):
            yield {board: questions[board] for board in share}


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
