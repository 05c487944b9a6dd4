"""The port through which the coordinator talks to clients, whatever carries the messages; and its in-process form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedge.types import NamedArrays, TrainResult
from fedge.wire import Answer, Ask


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What one board is asked, and the global arrays when it is to train.

    ``within_s`` are the board's seconds after which a round of real boards goes on without it; None: it waits.
    """

    ask: Ask
    arrays: NamedArrays | None = None
    within_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What one board answered, and what it trained; an answer with ``error`` has neither."""

    answer: Answer
    trained: TrainResult | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Late:
    """A reply that came in after its question was given up waiting for; ``spare``: enough others were done before."""

    board: str
    question: Question
    reply: Reply
    spare: bool = False


Enough = Callable[[Collection[Reply]], bool]
"""Whether these replies are all that a round of real boards needs, so that it goes on without the others."""


def never_enough(_: Collection[Reply]) -> bool:
    """A round waits for everybody that it asked."""
    return False


class Overdue(Protocol):
    """What is known of questions that are not waited for any more; real boards cannot be called back from them."""

    def busy(self) -> Mapping[str, int]:
        """The boards that are still at work on such a question, and the round that it was of."""
        ...

    def arrived(self) -> Sequence[Late]:
        """Their replies that came in since this was last asked, by board name."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Where every board that is there is busy: until one is free, ``timeout_s`` real seconds at most."""
        ...


class NothingOverdue:
    """Boards that answer at once."""

    def busy(self) -> Mapping[str, int]:
        return {}

    def arrived(self) -> Sequence[Late]:
        return ()

    def wait(self, timeout_s: float) -> None:
        pass


NOTHING_OVERDUE = NothingOverdue()


class ClientPort(Protocol):
    """Asks boards by their own names."""

    def ask(
        self, questions: Mapping[str, Question], timeout_s: float, enough: Enough = never_enough
    ) -> Mapping[str, Reply]:
        """A reply for every question; a board silent for ``timeout_s`` real seconds is a reply with ``error``.

        So is a real board that is not done when the replies that are in are ``enough``.
        """
        ...


class LocalPort:
    """Calls the clients in this process, one after the other."""

    def __init__(self, respond: Mapping[str, Callable[[Question], Reply]]) -> None:
        self._respond = respond

    def ask(
        self, questions: Mapping[str, Question], timeout_s: float, enough: Enough = never_enough
    ) -> Mapping[str, Reply]:
        return {board: self._respond[board](question) for board, question in questions.items()}
