"""What is known of Flower's nodes: their boards, which cannot be asked, this run's claim, unanswered requests."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fedge.wire import ReplyMessage
from server.transport.client_port import IncomingReply, LateReply, OutgoingRequest
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
        one. A second node with the name of a connected board is treated as a stranger: two boards share one settings
        file.
        """
        identified = {node: answer for node, answer in answers.items() if _is_identified(answer)}
        self._pause_nodes(set(asked) - set(identified), now_s)
        for node, answer in identified.items():
            if answer.board in self.boards and self.find_address(answer.board) is None:
                self._node_of[answer.board] = node
                self.record_foreign_claim(answer, now_s)
                continue
            self._strangers.add(node)
            if answer.board in self.boards:
                name = answer.board
                logger.warning("a second node says that it is %s: left alone; give every board its own name", name)

    def _pause_nodes(self, nodes: Collection[int], now_s: float) -> None:
        """Pause nodes that did not identify themselves, each twice as long as the last time."""
        for node in nodes:
            earlier = self._silent.get(node)
            length_s = SILENT_RETRY_S if earlier is None else 2 * earlier.length_s
            self._silent[node] = _Pause(length_s, now_s + length_s)


def _is_identified(answer: ReplyMessage) -> bool:
    """Return True if a node has reported its board name; a board that another run holds does so too."""
    return answer.error is None or answer.held_s is not None


MIN_CLAIM_S = 120.0
"""Shortest claim in seconds. A default: boards of a run that died are blocked for this long."""
CLAIM_FACTOR = 3.0
"""Claim length in multiples of the expected round length, since a board may be left out of one."""
INITIAL_CLAIM_S = 300.0
"""Claim length in seconds before the length of a round is known."""
CLAIM_MARGIN_S = 60.0
"""Seconds by which a claim may exceed the reply timeout. A default that covers the time between two requests."""


def claim_duration_s(round_s: float | None, planned_s: float | None, timeout_s: float) -> float:
    """Return the seconds for which a board stays claimed after its reply.

    Claims are short because only their expiry frees the boards of a run that was killed.

    Args:
        round_s: Length of the last round in seconds of wall time; None before the first.
        planned_s: Planned length of this round in seconds; None without a deadline.
        timeout_s: Seconds that the server waits for a reply.
    """
    known_s = max((each for each in (round_s, planned_s) if each is not None), default=None)
    wanted_s = INITIAL_CLAIM_S if known_s is None else max(MIN_CLAIM_S, CLAIM_FACTOR * known_s)
    return min(wanted_s, timeout_s + CLAIM_MARGIN_S)


@dataclass(slots=True, eq=False)
class ClaimTerms:
    """Claim of one run. Mutable: it measures the wall time of rounds.

    Attributes:
        is_over: Returns True if the run with a name is known to be over, so that its boards may be taken over.
    """

    run: str
    timeout_s: float = 600.0
    is_over: Callable[[str], bool] = lambda _run: False
    _began_s: float | None = None
    _round_s: float | None = None

    def begin_round(self, now_s: float) -> None:
        """Record that clients are asked to train at wall time ``now_s``."""
        if self._began_s is not None:
            self._round_s = now_s - self._began_s
        self._began_s = now_s

    def add_to_request(self, question: OutgoingRequest) -> OutgoingRequest:
        """Return the request with the name of the run and the length of the claim; one in another run's name stays."""
        if question.ask.run:
            return question
        goal = question.ask.goal
        claim_s = claim_duration_s(self._round_s, None if goal is None else goal.deadline_s, self.timeout_s)
        return dataclasses.replace(question, ask=dataclasses.replace(question.ask, run=self.run, claim_s=claim_s))


INITIAL_ALLOWANCE_S = 60.0
"""Seconds allowed beyond a board's work before any reply was seen. A default: Flower starts a process for every
message, which takes long on a slow board.
"""
MIN_ALLOWANCE_S = 15.0
"""Least seconds allowed beyond a board's work: Flower polls on both sides, which delays even a quick board's reply."""
ALLOWANCE_FACTOR = 1.5
"""Allowance in multiples of the largest recent overhead; a default that leaves room for a slower next message."""
MAX_OVERHEADS = 100
"""Number of recent replies whose overhead counts, so that a single slow reply is forgotten eventually."""


def reply_allowance_s(overheads_s: Sequence[float]) -> float:
    """Return the seconds to allow beyond a board's work, given the overheads of earlier replies, oldest first."""
    recent_s = overheads_s[-MAX_OVERHEADS:]
    return max(MIN_ALLOWANCE_S, ALLOWANCE_FACTOR * max(recent_s)) if recent_s else INITIAL_ALLOWANCE_S


def reply_wait_s(timeout_s: float, within_s: float | None, overheads_s: Sequence[float]) -> float:
    """Return the seconds of wall time to wait for a reply.

    Args:
        timeout_s: Upper limit.
        within_s: Seconds of the board's work within which the reply counts; None if it always counts.
        overheads_s: Overheads of earlier replies in seconds, oldest first.
    """
    return timeout_s if within_s is None else min(timeout_s, within_s + reply_allowance_s(overheads_s))


GIVE_UP_FACTOR = 2.0
"""A request that is unanswered for this many reply timeouts is dropped, since something on its board hangs. A default
that allows for one request that waits behind another.
"""


@dataclass(frozen=True, slots=True, eq=False)
class SentRequest:
    """A request that was sent.

    Attributes:
        at_s: Wall time at which it was sent.
        until_s: Wall time at which it is dropped.
        spare: True if its round continued because enough other clients were done.
    """

    address: NodeAddress
    board: str
    question: OutgoingRequest
    at_s: float
    until_s: float
    spare: bool = False


@dataclass(slots=True, eq=False)
class OutstandingRequests:
    """Unanswered requests by Flower's message id, and the late replies that have not been taken yet."""

    sent: dict[str, SentRequest] = field(default_factory=dict)
    _late: list[LateReply] = field(default_factory=list)

    def busy_boards(self, seats: Mapping[str, NodeAddress]) -> dict[str, int]:
        """Return the boards that are busy with such a request, with its newest round.

        A node handles one message after the other, so another request would only queue behind it. A board that has
        reconnected since, through the same or another node, has lost the request and is free.
        """
        rounds: dict[str, int] = {}
        for each in self.sent.values():
            if seats.get(each.board) == each.address:
                rounds[each.board] = max(each.question.ask.round, rounds.get(each.board, 0))
        return rounds

    def record_reply(self, message_id: str, reply: IncomingReply) -> None:
        """Record the reply to a request, which is no longer outstanding."""
        sent = self.sent.pop(message_id)
        self._late.append(LateReply(sent.board, sent.question, reply, sent.spare))

    def take_late_replies(self) -> Sequence[LateReply]:
        """Return the replies since the last call, ordered by client name and then by round."""
        late, self._late = self._late, []
        return sorted(late, key=lambda one: (one.board, one.question.ask.round))

    def drop_expired(self, now_s: float) -> None:
        """Drop requests that are older than their limit."""
        self.sent = {message_id: each for message_id, each in self.sent.items() if now_s < each.until_s}

    def list_ids_except(self, ids: Collection[str]) -> tuple[str, ...]:
        """Return the message ids of all requests but ``ids``."""
        return tuple(message_id for message_id in self.sent if message_id not in ids)
