"""The phase of long work in this process: whoever works names it as it begins, and a program's display shows it."""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[str], None]] = []


def begin_phase(name: str) -> None:
    """Name the phase that begins now, such as "starting Ray"; without a listener, nothing happens."""
    for listener in _listeners:
        listener(name)


def add_listener(listener: Callable[[str], None]) -> None:
    """Call ``listener`` with the name of every phase that begins from now on."""
    _listeners.append(listener)


def remove_listener(listener: Callable[[str], None]) -> None:
    """Call ``listener`` no more."""
    _listeners.remove(listener)
