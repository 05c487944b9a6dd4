"""Which node is which board: who has said so, who is gone, a stranger, silent or another run's; mutable."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedge.wire import ReplyMessage
from server.transport.message_codec import UNNAMED_PREFIX

SILENT_RETRY_S = 60.0
"""A node that did not say who it is is asked again after so long, then after twice as long, and so on; chosen by us."""
MAX_FOREIGN_CLAIM_S = 300.0
"""A board that another run holds is asked again when that ends, or after so long: its run may be over before. Asking
may mean to wait for a round of the other run, so it is done seldom. Chosen by us."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a board is: its node, and Flower's mark of when that came up last, a new one whenever it comes up anew."""

    node: int
    since: str


@dataclass(frozen=True, slots=True)
class _Pause:
    """For how long, and until when, a node is not asked who it is."""

    length_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class _ForeignClaim:
    """Until when a board is not asked, because it works for another run, and its own words for it."""

    until_s: float
    error: str


@dataclass(slots=True, eq=False)
class NodeRegistry:
    """The nodes that are ``up``, each with its mark, and what they have told of the fleet's ``boards``."""

    boards: tuple[str, ...]
    up: Mapping[int, str] = field(default_factory=dict)
    _node_of: dict[str, int] = field(default_factory=dict)
    _strangers: set[int] = field(default_factory=set)
    """Nodes whose board is not of this fleet."""
    _silent: dict[int, _Pause] = field(default_factory=dict)
    _held: dict[str, _ForeignClaim] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)
    """The boards that were there and are not, and the round that missed each first."""

    @property
    def has_boards(self) -> bool:
        """Whether any board of the fleet has said who it is."""
        return bool(self._node_of)

    def find_address(self, board: str) -> NodeAddress | None:
        """Where a board is; None while it is not there."""
        node = self._node_of.get(board)
        return None if node is None or node not in self.up else NodeAddress(node, self.up[node])

    def list_addresses(self) -> dict[str, NodeAddress]:
        """Of all boards that are there."""
        return {board: seat for board in self._node_of if (seat := self.find_address(board)) is not None}

    def list_available(self, now_s: float) -> tuple[str, ...]:
        """The boards that are there and not another run's."""
        return tuple(board for board in self.list_addresses() if self._find_claim_error(board, now_s) is None)

    def board_at(self, node: int) -> str:
        """The board at a node; before it has told its name, one made of the node's number."""
        return next((board for board, known in self._node_of.items() if known == node), f"{UNNAMED_PREFIX}{node}")

    def list_unidentified(self, now_s: float) -> list[int]:
        """The nodes that are to be asked who they are."""
        known = {*self._node_of.values(), *self._strangers}
        silent = {node for node, pause in self._silent.items() if now_s < pause.until_s}
        return [node for node in self.up if node not in known | silent]

    def explain_absence(self, board: str, round_: int, now_s: float) -> str | None:
        """Why a board cannot be asked in ``round_``; None when it can."""
        if self.find_address(board) is None:
            if board not in self._node_of:
                return "never connected"
            since = self._gone.setdefault(board, round_)
            return f"connection lost since {f'round {since}' if since else 'before the first round'}"
        self._gone.pop(board, None)
        return self._find_claim_error(board, now_s)

    def record_foreign_claim(self, answer: ReplyMessage, now_s: float) -> None:
        """Leave a board alone that another run holds."""
        if answer.held_s is not None:
            self._held[answer.board] = _ForeignClaim(
                now_s + min(answer.held_s, MAX_FOREIGN_CLAIM_S), answer.error or "held by another run"
            )

    def record_hellos(self, asked: Collection[int], answers: Mapping[int, ReplyMessage], now_s: float) -> None:
        """What the nodes in ``asked`` said when they were asked who they are.

        A board that came back with another node is known by that one. A second node that claims the name of a board
        whose node is up is a stranger: two boards with one settings file.
        """
        told = {node: answer for node, answer in answers.items() if _is_identified(answer)}
        self._pause_nodes(set(asked) - set(told), now_s)
        for node, answer in told.items():
            if answer.board in self.boards and self.find_address(answer.board) is None:
                self._node_of[answer.board] = node
                self.record_foreign_claim(answer, now_s)
                continue
            self._strangers.add(node)
            if answer.board in self.boards:
                name = answer.board
                logger.warning("a second node says that it is %s: left alone; give every board its own name", name)

    def _find_claim_error(self, board: str, now_s: float) -> str | None:
        """Another run's claim on a board, in its own words."""
        held = self._held.get(board)
        return held.error if held is not None and now_s < held.until_s else None

    def _pause_nodes(self, nodes: Collection[int], now_s: float) -> None:
        """Nodes that did not say who they are, each left alone twice as long as the last time."""
        for node in nodes:
            earlier = self._silent.get(node)
            length_s = SILENT_RETRY_S if earlier is None else 2 * earlier.length_s
            self._silent[node] = _Pause(length_s, now_s + length_s)


def _is_identified(answer: ReplyMessage) -> bool:
    """Whether a node has said who it is; one that another run holds does, too."""
    return answer.error is None or answer.held_s is not None
