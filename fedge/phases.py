"""The phase of long work in this process: whoever works names it as it begins, and a program's display shows it."""

from __future__ import annotations

from typing import Protocol


class PhaseListener(Protocol):
    """Is called with every phase that begins."""

    def __call__(self, name: str, /, *, announce: bool) -> None: ...


_listeners: list[PhaseListener] = []


def begin_phase(name: str, *, announce: bool = False) -> None:
    """Name what begins now; without a listener, nothing happens.

    Args:
        name: Such as "starting Ray" or "round 3 of 15".
        announce: Whether the phase usually takes long, so that it deserves a line of its own.
    """
    for listener in _listeners:
        listener(name, announce=announce)


def add_listener(listener: PhaseListener) -> None:
    """Call ``listener`` with every phase that begins from now on."""
    _listeners.append(listener)


def remove_listener(listener: PhaseListener) -> None:
    """Call ``listener`` no more."""
    _listeners.remove(listener)
