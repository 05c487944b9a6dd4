"""The port through which the coordinator talks to clients, whatever carries the messages; and its in-process form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedge.types import NamedArrays, TrainResult
from fedge.wire import ReplyMessage, RequestMessage


@dataclass(frozen=True, slots=True, eq=False)
class OutgoingRequest:
    """What one board is asked, and the global arrays when it is to train.

    ``within_s`` are the board's seconds after which a round of real boards goes on without it; None: it waits.
    """

    ask: RequestMessage
    arrays: NamedArrays | None = None
    within_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class IncomingReply:
    """What one board answered, and what it trained; an answer with ``error`` has neither."""

    answer: ReplyMessage
    trained: TrainResult | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LateReply:
    """A reply that came in after its question was given up waiting for; ``spare``: enough others were done before."""

    board: str
    question: OutgoingRequest
    reply: IncomingReply
    spare: bool = False


ReplyPredicate = Callable[[Collection[IncomingReply]], bool]
"""Whether these replies are all that a round of real boards needs, so that it goes on without the others."""


def never_enough(_: Collection[IncomingReply]) -> bool:
    """A round waits for everybody that it asked."""
    return False


class OverdueReplies(Protocol):
    """What is known of questions that are not waited for any more; real boards cannot be called back from them."""

    def busy_boards(self) -> Mapping[str, int]:
        """The boards that are still at work on such a question, and the round that it was of."""
        ...

    def take_late_replies(self) -> Sequence[LateReply]:
        """Their replies that came in since this was last asked, by board name."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Where every board that is there is busy: until one is free, ``timeout_s`` real seconds at most."""
        ...


class NoOverdueReplies:
    """Boards that answer at once."""

    def busy_boards(self) -> Mapping[str, int]:
        return {}

    def take_late_replies(self) -> Sequence[LateReply]:
        return ()

    def wait(self, timeout_s: float) -> None:
        pass


NO_OVERDUE_REPLIES = NoOverdueReplies()


class ClientPort(Protocol):
    """Asks boards by their own names."""

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: ReplyPredicate = never_enough
    ) -> Mapping[str, IncomingReply]:
        """A reply for every question; a board silent for ``timeout_s`` real seconds is a reply with ``error``.

        So is a real board that is not done when the replies that are in are ``enough``.
        """
        ...


class LocalPort:
    """Calls the clients in this process, one after the other."""

    def __init__(self, respond: Mapping[str, Callable[[OutgoingRequest], IncomingReply]]) -> None:
        self._respond = respond

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: ReplyPredicate = never_enough
    ) -> Mapping[str, IncomingReply]:
        return {board: self._respond[board](question) for board, question in questions.items()}
