"""Messages that were sent and are not waited for any more: which board each keeps busy, and until when; mutable."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from server.port import Question

GIVEN_UP = 2.0
"""A message unanswered for so many times as long as a reply may take is given up: its board may have been started anew
since. Chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A message: to which node, which board that was, what it asked, when, and when it is given up."""

    node: int
    board: str
    question: Question
    at_s: float
    until_s: float


@dataclass(slots=True, eq=False)
class Outstanding:
    """Unanswered messages by Flower's message id."""

    sent: dict[str, Sent] = field(default_factory=dict)

    def busy(self, node_of: Mapping[str, int]) -> dict[str, int]:
        """The boards that such a message keeps busy, and the newest round that one asked for.

        A node handles one message after the other, so another question would only wait behind it. A board that came
        back with another node than ``node_of`` tells is free.
        """
        rounds: dict[str, int] = {}
        for each in self.sent.values():
            if node_of.get(each.board) == each.node:
                rounds[each.board] = max(each.question.ask.round, rounds.get(each.board, 0))
        return rounds

    def forget(self, now_s: float) -> None:
        """Give up what is too old."""
        self.sent = {message_id: each for message_id, each in self.sent.items() if now_s < each.until_s}

    def without(self, ids: Collection[str]) -> tuple[str, ...]:
        """The ids of all but ``ids``."""
        return tuple(message_id for message_id in self.sent if message_id not in ids)
