"""Refused requests and their kinds on the wire: what was got, what would be right, what to do."""

from typing import Any, Dict, Iterator, Optional, Tuple

KINDS = {
    "bad-request": "the request cannot be meant so, or is no frame",
    "unknown-verb": "there is no such verb",
    "no-task": "nothing is loaded, or the trainer was restarted since",
    "busy": "another job runs, too many connections are open, or a service had no room or time for a request",
    "hash": "a task file is not the one that was promised",
    "bad-source": "a task or its data is not what was promised, or lies outside the roots",
    "oom": "memory ran out, on the GPU or the board; the worker is usable again",
    "narrow": "a network of which no narrow one can be made",
    "failed": "an exception in the task, or a test, a load or a request cancelled; the worker is usable again",
}
"""Every kind of an answer's ``error``. The client adds two of its own, ``unreachable`` and ``died``."""
LONGEST_TEXT = 4000
"""Upper limit of an error's text in characters, to keep the reply's header small."""


class Refusal(Exception):
    """An error of the caller: ``where`` is the field, file or part, ``got`` the value, ``right`` what would be valid.

    Attributes:
        kind: One of ``KINDS``.
    """

    kind = "bad-request"

    def __init__(self, where: str, got: str, right: str) -> None:
        self.where, self.got, self.right = one_line(where), one_line(got), right
        super().__init__("{}: got {}; {}".format(self.where, self.got, right))


class JobStopped(Exception):
    """A job was stopped before its end and has no result."""


def error_reply(kind: str, text: str) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the answer to a request that failed: its header, and no arrays.

    Args:
        kind: One of ``KINDS``; any other becomes ``failed``.
        text: Description of the error; cut to ``LONGEST_TEXT`` characters.
    """
    return {"ok": False, "error": {"kind": kind if kind in KINDS else "failed", "text": text[:LONGEST_TEXT]}}, {}


def one_line(error: object) -> str:
    """Return an error's text on one line, at most 200 characters, without control characters."""
    line = " ".join(str(error).split())[:200]
    return line if line.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in line)


def iter_causes(error: Optional[BaseException]) -> Iterator[BaseException]:
    """Yield an exception and its chain of causes."""
    while error is not None:
        yield error
        error = error.__cause__
