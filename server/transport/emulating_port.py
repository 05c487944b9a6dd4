"""The client port to nodes that emulate boards: a message has the requests of several boards, which predict together.

Boards are emulated, so any node can answer for any of them: a message says which boards it is for, and of which
experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Protocol

from fedge.errors import RunFailed
from fedge.experiment import Experiment, list_boards
from fedge.flower.messages import to_array_record
from fedge.protocols import Clock
from fedge.types import NamedArrays
from fedge.wire import ReplyMessage
from server.transport.client_port import IncomingReply, OutgoingRequest, ReplyPredicate, never_enough
from server.transport.grid_port import REJECTED_TEXT, MessageGrid, poll, push
from server.transport.message_codec import decode_group, encode_group

POLL_S = 0.02
"""Seconds between two looks for replies: a round may take a tenth of a second, and few messages are waited for."""
MAX_GROUP_BYTES = 64 << 20
"""Upper limit of the models in one reply, in bytes; bounds what a node holds, and what is copied on the way."""

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

    def ask(
        self, questions: Questions, timeout_s: float, enough: ReplyPredicate = never_enough
    ) -> Mapping[str, IncomingReply]:
        if not questions:
            return {}
        nodes = self._list_nodes()
        groups = list(_form_groups(questions, len(nodes)))
        models = {id(arrays): arrays for arrays in map(_arrays, groups)}
        records = {key: None if arrays is None else to_array_record(arrays) for key, arrays in models.items()}
        messages = [
            encode_group(
                node,
                {self._index[board]: question for board, question in group.items()},
                records[id(_arrays(group))],
                self._run,
            )
            for node, group in zip(cycle(nodes), groups, strict=False)
        ]
        ends_s = self._clock.now_s() + timeout_s
        sent = list(zip(push(self._grid, messages), groups, strict=True))
        replies = dict[str, IncomingReply]()
        for message_id, group in sent:
            error = f"no reply within {timeout_s:.4g} s" if message_id else REJECTED_TEXT
            replies |= {board: IncomingReply(ReplyMessage(board, error=error)) for board in group}
        waiting = {message_id: group for message_id, group in sent if message_id}
        for pulled in poll(self._grid, self._clock, waiting, ends_s, every_s=POLL_S):
            for message in pulled:
                replies |= decode_group(waiting.pop(message.metadata.reply_to_message_id), message)
        return {board: replies[board] for board in questions}

    def _list_nodes(self) -> list[int]:
        """Return the connected nodes; wait for the first one."""
        began_s = self._clock.now_s()
        while not (nodes := sorted(self._grid.get_node_ids())):
            if self._clock.now_s() - began_s > self._connect_timeout_s:
                raise RunFailed(f"no node came up in {self._connect_timeout_s:.0f} s")
            self._clock.sleep_s(POLL_S)
        return nodes


def _form_groups(questions: Questions, nodes: int) -> Iterator[Questions]:
    """Yield the questions in groups with the same arrays, one for every node unless the replies would be too large."""
    alike: dict[int, list[str]] = {}
    for board, question in questions.items():
        alike.setdefault(id(question.arrays), []).append(board)
    for boards in alike.values():
        arrays = questions[boards[0]].arrays or {}
        most = max(1, MAX_GROUP_BYTES // max(1, sum(array.nbytes for array in arrays.values())))
        count = min(len(boards), max(nodes, -(-len(boards) // most)))
        for first in range(count):
            yield {board: questions[board] for board in boards[first::count]}


def _arrays(group: Questions) -> NamedArrays | None:
    """Return the arrays that all questions of a group have."""
    return next(iter(group.values())).arrays
