"""Messages that were sent and are not waited for any more: which board each keeps busy, what came of it; mutable."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from server.port import Late, Question, Reply
from server.roll_call import Seat

GIVEN_UP = 2.0
"""A message unanswered for so many times as long as a reply may take is given up: something on its board hangs. Chosen
by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A message: to where, which board that was, what it asked, when, and when it is given up.

    ``spare``: its round went on without it because enough other boards were done.
    """

    seat: Seat
    board: str
    question: Question
    at_s: float
    until_s: float
    spare: bool = False


@dataclass(slots=True, eq=False)
class Outstanding:
    """Unanswered messages by Flower's message id, and the replies that came in since somebody took them."""

    sent: dict[str, Sent] = field(default_factory=dict)
    _late: list[Late] = field(default_factory=list)

    def busy(self, seats: Mapping[str, Seat]) -> dict[str, int]:
        """The boards that such a message keeps busy, and the newest round that one asked for.

        A node handles one message after the other, so another question would only wait behind it. A board that came
        back since, with another node or the same one, has forgotten it and is free; so is one that is not there, where
        somebody else has to say so.
        """
        rounds: dict[str, int] = {}
        for each in self.sent.values():
            if seats.get(each.board) == each.seat:
                rounds[each.board] = max(each.question.ask.round, rounds.get(each.board, 0))
        return rounds

    def came(self, message_id: str, reply: Reply) -> None:
        """The reply to one of them is in."""
        sent = self.sent.pop(message_id)
        self._late.append(Late(sent.board, sent.question, reply, sent.spare))

    def taken(self) -> Sequence[Late]:
        """The replies that came in since the last time, by board name and then by round."""
        late, self._late = self._late, []
        return sorted(late, key=lambda one: (one.board, one.question.ask.round))

    def forget(self, now_s: float) -> None:
        """Give up what is too old."""
        self.sent = {message_id: each for message_id, each in self.sent.items() if now_s < each.until_s}

    def without(self, ids: Collection[str]) -> tuple[str, ...]:
        """The ids of all but ``ids``."""
        return tuple(message_id for message_id in self.sent if message_id not in ids)
