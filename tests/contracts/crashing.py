"""A process that stops at any one of the steps that change files, and everything a test needs to count them."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest


class Crash(BaseException):
    """Nobody catches it, as nobody catches SIGKILL."""


def disk_full(*_: Any, **__: Any) -> Any:
    """In place of a step."""
    raise OSError(errno.ENOSPC, "No space left on device")


class Stopping:
    """Counts the steps; at number ``stop`` the step is not done (``how`` before), done, or half done (a write)."""

    def __init__(self, stop: int, how: str) -> None:
        self.stop, self.how, self.done = stop, how, 0

    def step(self, real: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.done += 1
        if self.done != self.stop + 1:
            return real(*args, **named)
        if self.how == "half" and real is WRITE:
            WRITE(args[0], bytes(args[1])[: len(args[1]) // 2])
        elif self.how == "half" and real is WRITE_TABLE:
            Path(args[1]).write_bytes(b"PAR1 and no more")
        elif self.how == "after":
            real(*args, **named)
        raise Crash


WRITE, WRITE_TABLE = os.write, pq.write_table
STEPS: tuple[tuple[Any, str], ...] = (
    (os, "write"),
    (os, "fsync"),
    (os, "ftruncate"),
    (pq, "write_table"),
    (Path, "replace"),
    (Path, "unlink"),
    (Path, "mkdir"),
    (Path, "write_text"),
)


@contextmanager
def stopping(monkeypatch: pytest.MonkeyPatch, stop: int, how: str) -> Iterator[Stopping]:
    """Every step that changes files is counted, and one of them is the last."""
    made = Stopping(stop, how)
    with monkeypatch.context() as patch:
        for home, name in STEPS:
            real = getattr(home, name)
            patch.setattr(home, name, lambda *args, _real=real, **named: made.step(_real, *args, **named))
        yield made


def every_crash(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[int, str], None], check: Callable[[int, str], None]
) -> int:
    """Do ``work`` with a crash at its first step, its second ... and ``check`` after each; returns how many there were.

    Both are told which crash it is, so that each has a folder of its own.
    """
    crashes = 0
    for how in ("before", "half", "after"):
        stop = 0
        while True:
            crashed = False
            with stopping(monkeypatch, stop, how):
                try:
                    work(stop, how)
                except Crash:
                    crashed = True
            check(stop, how)
            if not crashed:
                break
            crashes, stop = crashes + 1, stop + 1
    return crashes
