"""The coordinator's interface to clients, independent of the transport, and its in-process form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedge.types import Floats32, NamedArrays, TrainResult
from fedge.wire import ReplyMessage, RequestMessage

LOST_PROCESS_TEXT = "a process that emulates clients ended"
"""How the error begins that ends a run of which Ray lost a process."""


@dataclass(frozen=True, slots=True, eq=False)
class OutgoingRequest:
    """A request to one client.

    Attributes:
        arrays: The global model if the client is to train, else None.
        within_s: Seconds of the client's own time after which a round continues without it; None if the round waits.
        residual: What the client's earlier encodings left out, for emulated clients; None for nothing.
    """

    ask: RequestMessage
    arrays: NamedArrays | None = None
    within_s: float | None = None
    residual: Floats32 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class IncomingReply:
    """A client's reply.

    Attributes:
        answer: The message; its ``error`` is set if the request failed.
    """

    answer: ReplyMessage
    trained: TrainResult | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LateReply:
    """A reply that arrived after the server had stopped waiting for it.

    Attributes:
        spare: True if the round continued because enough other clients were done.
    """

    board: str
    question: OutgoingRequest
    reply: IncomingReply
    spare: bool = False


ReplyPredicate = Callable[[Collection[IncomingReply]], bool]
"""Returns True if these replies are enough, so that a round of real boards continues without the others."""


def never_enough(_: Collection[IncomingReply]) -> bool:
    """Return False, so that a round waits for every client."""
    return False


class OverdueReplies(Protocol):
    """Requests that the server no longer waits for; a real board cannot be interrupted while it works on one."""

    def busy_boards(self) -> Mapping[str, int]:
        """Return the clients that still work on such a request, with the number of its round."""
        ...

    def take_late_replies(self) -> Sequence[LateReply]:
        """Return the replies that arrived since the last call, ordered by client name."""
        ...

    def wait(self, timeout_s: float) -> float:
        """Wait until a client is free if all connected ones are busy or claimed by another run, at most ``timeout_s``.

        Returns:
            Seconds of wall time that it took.
        """
        ...


class NoOverdueReplies:
    """``OverdueReplies`` for clients that always reply at once."""

    def busy_boards(self) -> Mapping[str, int]:
        return {}

    def take_late_replies(self) -> Sequence[LateReply]:
        return ()

    def wait(self, timeout_s: float) -> float:
        return timeout_s


NO_OVERDUE_REPLIES = NoOverdueReplies()


class ClientPort(Protocol):
    """Sends requests to clients by their board names."""

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: ReplyPredicate = never_enough
    ) -> Mapping[str, IncomingReply]:
        """Send requests and collect the replies.

        Args:
            questions: Request by client name.
            timeout_s: Seconds of wall time after which a silent client counts as failed.
            enough: Returns True if the replies so far are enough; unfinished real boards then get one with ``error``.

        Returns:
            A reply for every request, with ``error`` for a client that failed.
        """
        ...


class LocalPort:
    """Asks clients in this process."""

    def __init__(self, respond: Callable[[Mapping[str, OutgoingRequest]], Mapping[str, IncomingReply]]) -> None:
        self._respond = respond

    def ask(
        self, questions: Mapping[str, OutgoingRequest], timeout_s: float, enough: ReplyPredicate = never_enough
    ) -> Mapping[str, IncomingReply]:
        return self._respond(questions)
