"""Requests that boards have not answered yet, and how long the server waits for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from server.transport.client_port import IncomingReply, LateReply, OutgoingRequest
from server.transport.node_registry import NodeAddress

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
