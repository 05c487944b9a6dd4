"""Faults at random instants: what a subject promises, and the count of points tried, held and failed."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random

KILL, TERMINATE, INTERRUPT, STOP = "kill", "terminate", "interrupt", "stop"
FULL_DISK, READ_ONLY, FILE_SIZE, MEMORY, CLOCK, MESSAGES = (
    "full disk",
    "read-only disk",
    "file size",
    "memory",
    "clock",
    "messages",
)


class NotHeld(AssertionError):
    """Something that a fault must not harm was harmed."""


Attack = Callable[[Random, Path, str], bool]
"""Attacks a process once with a fault, does what its user would do next, and checks the end.

Takes the instant's generator, an empty folder and the fault; returns whether the fault came before the process was
done; raises ``NotHeld``.
"""


@dataclass(frozen=True, slots=True)
class FaultSubject:
    """A process that faults befall.

    Attributes:
        open: Prepares in a folder what all attacks need, such as the result of an undisturbed run.
        faults: The faults it is tried with, in turn.
    """

    open: Callable[[Path], AbstractContextManager[Attack]]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """The result of one point.

    Attributes:
        number: The same number, the same instant as far as the machine allows.
        hit: Whether the fault came before the process was done.
        failure: What did not hold; empty if all did.
    """

    number: int
    fault: str
    hit: bool
    failure: str


def try_point(attack: Attack, fault: str, number: int) -> FaultOutcome:
    with tempfile.TemporaryDirectory(prefix="fedge-fault-", ignore_cleanup_errors=True) as folder:
        try:
            hit = attack(Random(number), Path(folder), fault)
        except NotHeld as failure:
            return FaultOutcome(number, fault, hit=True, failure=str(failure))
        except Exception:  # noqa: BLE001
            return FaultOutcome(number, fault, hit=True, failure=traceback.format_exc(limit=4))
    return FaultOutcome(number, fault, hit, "")


def require(condition: object, what: str) -> None:
    """Raise ``NotHeld`` unless the condition holds."""
    if not condition:
        raise NotHeld(what)
