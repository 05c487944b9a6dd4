"""The port through which the coordinator talks to clients, whatever carries the messages; and its in-process form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedge.types import NamedArrays, TrainResult
from fedge.wire import Answer, Ask


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What one board is asked, and the global arrays when it is to train."""

    ask: Ask
    arrays: NamedArrays | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """What one board answered, and what it trained; an answer with ``error`` has neither."""

    answer: Answer
    trained: TrainResult | None = None


class ClientPort(Protocol):
    """Asks boards by their own names."""

    def ask(self, questions: Mapping[str, Question], timeout_s: float) -> Mapping[str, Reply]:
        """A reply for every question; a board silent for ``timeout_s`` real seconds is a reply with ``error``."""
        ...


class LocalPort:
    """Calls the clients in this process, one after the other."""

    def __init__(self, respond: Mapping[str, Callable[[Question], Reply]]) -> None:
        self._respond = respond

    def ask(self, questions: Mapping[str, Question], timeout_s: float) -> Mapping[str, Reply]:
        return {board: self._respond[board](question) for board, question in questions.items()}
