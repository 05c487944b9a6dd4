"""The phase of long work in this process: whoever works names it as it begins, and a program's display shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class PhaseListener(Protocol):
    """Is called with every phase that begins."""

    def __call__(self, name: str, /, *, announce: bool) -> None: ...


_listeners: list[PhaseListener] = []
_tasks: list[str] = []


def begin_phase(name: str, *, announce: bool = False) -> None:
    """Name what begins now; without a listener, nothing happens.

    Args:
        name: Such as "starting Ray" or "round 3 of 15"; empty while nothing is under way, as in a server that waits.
        announce: Whether the phase usually takes long, so that it deserves a line of its own.
    """
    for listener in _listeners:
        listener(": ".join((*_tasks, name)), announce=announce)


@contextmanager
def open_task(name: str) -> Iterator[None]:
    """Begin a task that has phases of its own, which are named after it inside the block."""
    begin_phase(name)
    _tasks.append(name)
    try:
        yield
    finally:
        _tasks.pop()


def add_listener(listener: PhaseListener) -> None:
    """Call ``listener`` with every phase that begins from now on."""
    _listeners.append(listener)


def remove_listener(listener: PhaseListener) -> None:
    """Call ``listener`` no more."""
    _listeners.remove(listener)
