"""The errors that fedge raises deliberately: each says what was wrong, what is expected, and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


MAX_NAME, MAX_SHOWN, MAX_MESSAGE = 100, 300, 2_000
"""Characters that a message shows of a name and of another's text, and characters of a whole message."""


def one_line(text: object, longest: int = MAX_SHOWN) -> str:
    """Return a text of others for a message, a row or a page: one line, bounded, without signs that rule a terminal."""
    line = escape_controls(" ".join(str(text)[: 4 * longest].split()))
    return line if len(line) <= longest else line[: longest - 3] + "..."


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: "1 point", "1,200 minibatches", "2 replies"."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("ly") else f"{noun}{'es' if noun.endswith(('tch', 'sh')) else 's'}"
    return f"{count:,} {plural}"


def escape_controls(text: str) -> str:
    """Return a text without signs that rule a terminal, except ends of lines and tabs, and without half characters."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode() for sign in text
    )


LOWER_RATE = "a lower learning rate may help"
"""Advice where a loss or a weight is not finite; the launcher knows a run that failed for it by this."""


class FedgeError(Exception):
    """Base class of the errors that fedge raises deliberately; the text is meant for the user and safe to print."""

    def __init__(self, text: object = "") -> None:
        super().__init__(escape_controls(str(text)))


class BadInput(FedgeError):
    """Invalid user input: a file, a field or an option.

    The message is one line of the form ``<where>: got <got>; <right>``.

    Attributes:
        where: File and field, e.g. ``"exp.yaml: policy.power_w"``.
    """

    def __init__(self, where: str, got: str, right: str) -> None:
        self.where, self.got, self.right = one_line(where), one_line(got), one_line(right, MAX_MESSAGE)
        super().__init__(f"{self.where}: got {self.got}; {self.right}")


@contextmanager
def prefix_errors(where: str, joint: str = ": ") -> Iterator[None]:
    """Put a file or a field in front of what a ``BadInput`` of the block names, unless that names it already."""
    try:
        yield
    except BadInput as error:
        if where in error.where:
            raise
        raise BadInput(f"{where}{joint}{error.where}", error.got, error.right) from error


@contextmanager
def refuse_unwritable(path: Path, right: str, what: str = "file") -> Iterator[None]:
    """Raise ``BadInput`` if the block cannot write to ``path``, a file or another ``what``; ``right`` mends it."""
    try:
        yield
    except OSError as error:
        raise BadInput(str(path), f"a {what} that cannot be written ({error.strerror})", right) from error


MAX_SIMILAR = 3
"""Known names that a message suggests for an unknown one."""
MAX_DISTANCE = 0.1
"""Difference in likeness (0 to 1) to the most similar name from which a name is not suggested beside it: keys of one
section, such as ``policy.deadline_s`` and ``policy.power_w``, are alike by its name alone.
"""


class UnknownName(BadInput):
    """A name that no registry entry, preset or device has; the message lists the known ones."""

    def __init__(self, where: str, name: str, known: tuple[str, ...]) -> None:
        self.name, self.known = name, known
        super().__init__(where, repr(name), list_known(name, known))


def check_known(where: str, name: str, known: Collection[str]) -> None:
    """Raise ``UnknownName`` unless the name is one of ``known``."""
    if name not in known:
        raise UnknownName(where, name, tuple(known))


def list_known(name: str, known: Iterable[str], intro: str = "known: ") -> str:
    """Return the known names for a message; those that ``name`` may be a misspelling of come first, as a question."""
    listed = list(known)
    similar = find_similar(name, listed)
    question = f"did you mean {' or '.join(similar)}? " if similar else ""
    return f"{question}{intro}{', '.join(one_line(one, MAX_NAME) for one in listed)}"


def find_similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that ``name`` may be a misspelling of, the most similar first, whatever their case."""
    by_lower, wanted = {one.lower(): one for one in known}, str(name)[:MAX_SHOWN].lower()
    near = difflib.get_close_matches(wanted, by_lower, MAX_SIMILAR)
    likeness = [difflib.SequenceMatcher(None, one, wanted).ratio() for one in near]
    return [by_lower[one] for one, ratio in zip(near, likeness, strict=True) if ratio >= likeness[0] - MAX_DISTANCE]


class RunFailed(FedgeError):
    """A started run could not continue because Flower, Ray or every client failed."""


class BoardError(FedgeError):
    """A board failed: a mode could not be set, a sensor was lost or a worker died."""


class SensorLost(BoardError):
    """A required sensor cannot be read."""


class ModeNotSet(BoardError):
    """A power mode could not be set; the previous mode is restored, or the text says that it is not."""


class OutOfMemory(BoardError):
    """A training step needed more memory than the board has available.

    Attributes:
        lost_s: Seconds that the attempt took.
        detail: Message of the board's worker; empty on an emulated board.
        can_retry: Whether the board can try a smaller step at once.
    """

    def __init__(self, text: str, lost_s: float = 0.0, detail: str = "", *, can_retry: bool = True) -> None:
        self.lost_s, self.detail, self.can_retry = lost_s, detail, can_retry
        super().__init__(text)


class NarrowingRefused(BoardError):
    """The board's worker cannot train a narrower version of the network."""


class WorkerFailed(BoardError):
    """The worker could not complete a request.

    Attributes:
        kind: The kind of the worker's error (``fedge.worker.refusal.KINDS``), ``unreachable`` or ``died`` if it did not
            reply, or ``cancelled`` if its training was stopped early.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


def describe_error(error: BaseException) -> str:
    """Return an error's text for the user; the name of its class comes first unless fedge raised it deliberately."""
    return str(error) if isinstance(error, FedgeError) else f"{type(error).__name__}: {one_line(error)}"


def try_call(call: Callable[[], T]) -> T | Exception:
    """Return a call's result, or the exception that it raised: one client's failure must not end another's work."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  whatever it is, the caller hands it to the client that it belongs to
        return error
