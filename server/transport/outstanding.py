"""How long the server waits for real boards: their own time, and an allowance learnt from earlier replies; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from server.transport.client_port import IncomingReply, LateReply, OutgoingRequest
from server.transport.node_registry import NodeAddress

INITIAL_ALLOWANCE_S = 60.0
"""Before any reply has shown what comes on top of a board's work: a slow board starts a process for every message."""
MIN_ALLOWANCE_S = 15.0
"""Flower polls on both sides, so that even a quick board's reply may take so long."""
ALLOWANCE_FACTOR = 1.5
"""So many times what was seen is allowed, since the next message may take longer."""
MAX_OVERHEADS = 100
"""What the newest so many replies took counts, so that one bad moment is forgotten. All four are chosen by us."""


def reply_allowance_s(overheads_s: Sequence[float]) -> float:
    """What to allow on top of a board's work, from what the newest replies took on top of theirs, oldest first."""
    seen = overheads_s[-MAX_OVERHEADS:]
    return max(MIN_ALLOWANCE_S, ALLOWANCE_FACTOR * max(seen)) if seen else INITIAL_ALLOWANCE_S


def reply_wait_s(timeout_s: float, within_s: float | None, overheads_s: Sequence[float]) -> float:
    """Real seconds to wait for a reply that counts for ``within_s`` of its board's work (None: always)."""
    return timeout_s if within_s is None else min(timeout_s, within_s + reply_allowance_s(overheads_s))


GIVE_UP_FACTOR = 2.0
"""A message unanswered for so many times as long as a reply may take is given up: something on its board hangs. Chosen
by us."""


@dataclass(frozen=True, slots=True, eq=False)
class SentRequest:
    """A message: to where, which board that was, what it asked, when, and when it is given up.

    ``spare``: its round went on without it because enough other boards were done.
    """

    address: NodeAddress
    board: str
    question: OutgoingRequest
    at_s: float
    until_s: float
    spare: bool = False


@dataclass(slots=True, eq=False)
class OutstandingRequests:
    """Unanswered messages by Flower's message id, and the replies that came in since somebody took them."""

    sent: dict[str, SentRequest] = field(default_factory=dict)
    _late: list[LateReply] = field(default_factory=list)

    def busy_boards(self, seats: Mapping[str, NodeAddress]) -> dict[str, int]:
        """The boards that such a message keeps busy, and the newest round that one asked for.

        A node handles one message after the other, so another question would only wait behind it. A board that came
        back since, with another node or the same one, has forgotten it and is free; so is one that is not there, where
        somebody else has to say so.
        """
        rounds: dict[str, int] = {}
        for each in self.sent.values():
            if seats.get(each.board) == each.address:
                rounds[each.board] = max(each.question.ask.round, rounds.get(each.board, 0))
        return rounds

    def record_reply(self, message_id: str, reply: IncomingReply) -> None:
        """The reply to one of them is in."""
        sent = self.sent.pop(message_id)
        self._late.append(LateReply(sent.board, sent.question, reply, sent.spare))

    def take_late_replies(self) -> Sequence[LateReply]:
        """The replies that came in since the last time, by board name and then by round."""
        late, self._late = self._late, []
        return sorted(late, key=lambda one: (one.board, one.question.ask.round))

    def drop_expired(self, now_s: float) -> None:
        """Give up what is too old."""
        self.sent = {message_id: each for message_id, each in self.sent.items() if now_s < each.until_s}

    def list_ids_except(self, ids: Collection[str]) -> tuple[str, ...]:
        """The ids of all but ``ids``."""
        return tuple(message_id for message_id in self.sent if message_id not in ids)
