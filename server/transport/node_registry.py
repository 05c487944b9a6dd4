"""Registry of Flower's nodes: the board of each, and which of them cannot be asked now."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedge.wire import ReplyMessage
from server.transport.message_codec import UNNAMED_PREFIX

logger = logging.getLogger(__name__)


SILENT_RETRY_S = 60.0
"""Seconds after which a node that did not identify itself is asked again; doubled after each failure. A default that
trades quick recovery for rounds that do not wait for a broken node.
"""
MAX_FOREIGN_CLAIM_S = 300.0
"""Maximum seconds for which a board that another run claimed is not asked; its run may end early. A default: asking
more often may make a round wait for one of the other run.
"""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Address of a board.

    Attributes:
        since: Flower's mark of when the node last connected; it changes with every reconnect.
    """

    node: int
    since: str


@dataclass(frozen=True, slots=True)
class _Pause:
    """Seconds for which a node is not asked for its name, and the wall time at which the pause ends."""

    length_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class _ForeignClaim:
    """Another run's claim on a board: the wall time until which the board is not asked, and the board's own answer."""

    until_s: float
    answer: ReplyMessage


@dataclass(slots=True, eq=False)
class NodeRegistry:
    """The nodes that are connected, and the boards of the fleet that they have identified themselves as."""

    boards: tuple[str, ...]
    up: Mapping[int, str] = field(default_factory=dict)
    _node_of: dict[str, int] = field(default_factory=dict)
    _strangers: set[int] = field(default_factory=set)
    """Nodes whose board is not in this fleet."""
    _silent: dict[int, _Pause] = field(default_factory=dict)
    _held: dict[str, _ForeignClaim] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)
    """Boards that are disconnected, and the first round that missed each."""

    @property
    def has_boards(self) -> bool:
        """True if any board of the fleet has identified itself."""
        return bool(self._node_of)

    def find_address(self, board: str) -> NodeAddress | None:
        """Return a board's address, or None while it is disconnected."""
        node = self._node_of.get(board)
        return None if node is None or node not in self.up else NodeAddress(node, self.up[node])

    def list_addresses(self) -> dict[str, NodeAddress]:
        """Return the addresses of all connected boards."""
        return {board: seat for board in self._node_of if (seat := self.find_address(board)) is not None}

    def list_available(self, now_s: float) -> tuple[str, ...]:
        """Return the boards that are connected and not claimed by another run."""
        return tuple(board for board in self.list_addresses() if self.find_foreign_claim(board, now_s) is None)

    def board_at(self, node: int) -> str:
        """Return the board at a node, or a placeholder with the node's number before it has identified itself."""
        return next((board for board, known in self._node_of.items() if known == node), f"{UNNAMED_PREFIX}{node}")

    def list_unidentified(self, now_s: float) -> list[int]:
        """Return the nodes that are to be asked for their board name."""
        known = {*self._node_of.values(), *self._strangers}
        silent = {node for node, pause in self._silent.items() if now_s < pause.until_s}
        return [node for node in self.up if node not in known | silent]

    def explain_absence(self, board: str, round_: int) -> str | None:
        """Return why a board is not connected in round ``round_``, or None if it is."""
        if self.find_address(board) is None:
            if board not in self._node_of:
                return "never connected"
            since = self._gone.setdefault(board, round_)
            return f"connection lost since {f'round {since}' if since else 'before the first round'}"
        self._gone.pop(board, None)
        return None

    def record_foreign_claim(self, answer: ReplyMessage, now_s: float) -> None:
        """Record that another run holds a board, if the reply says so."""
        if answer.held_s is not None:
            self._held[answer.board] = _ForeignClaim(now_s + min(answer.held_s, MAX_FOREIGN_CLAIM_S), answer)

    def find_foreign_claim(self, board: str, now_s: float) -> ReplyMessage | None:
        """Return the answer of a board that another run holds, with the seconds that are left, or None."""
        held = self._held.get(board)
        if held is None or now_s >= held.until_s:
            return None
        return dataclasses.replace(held.answer, held_s=held.until_s - now_s)

    def list_foreign_claims(self, now_s: float) -> dict[str, str]:
        """Return the run that holds each connected board which another run holds."""
        found = {board: self.find_foreign_claim(board, now_s) for board in self.list_addresses()}
        return {board: answer.held_by for board, answer in found.items() if answer is not None}

    def forget_foreign_claim(self, board: str) -> None:
        """Let the board be asked again."""
        self._held.pop(board, None)

    def record_hellos(self, asked: Collection[int], answers: Mapping[int, ReplyMessage], now_s: float) -> None:
        """Record the replies of nodes that were asked for their board name.

        A node without a reply stays unidentified. A board that reconnected through another node is known by the new
        one. A second node with the name of a connected board is asked again after a pause: either two boards share one
        settings file, or the board restarted without a key and has a new node while Flower still lists the old one.
        """
        identified = {node: answer for node, answer in answers.items() if _is_identified(answer)}
        self._pause_nodes(set(asked) - set(identified), now_s)
        for node, answer in identified.items():
            if answer.board not in self.boards:
                self._strangers.add(node)
            elif self.find_address(answer.board) is None:
                self._node_of[answer.board] = node
                self.record_foreign_claim(answer, now_s)
            else:
                self._pause_nodes([node], now_s)
                name = answer.board
                logger.warning("a second node says that it is %s: restarted, or give every board its own name", name)

    def _pause_nodes(self, nodes: Collection[int], now_s: float) -> None:
        """Pause nodes that did not identify themselves, each twice as long as the last time."""
        for node in nodes:
            earlier = self._silent.get(node)
            length_s = SILENT_RETRY_S if earlier is None else 2 * earlier.length_s
            self._silent[node] = _Pause(length_s, now_s + length_s)


def _is_identified(answer: ReplyMessage) -> bool:
    """Return True if a node has reported its board name; a board that another run holds does so too."""
    return answer.error is None or answer.held_s is not None
