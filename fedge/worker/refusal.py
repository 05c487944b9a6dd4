"""Refused requests: errors, their kinds and answers on the wire, and the validation of a request's fields.

Fields are validated before any state is changed.
"""

from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

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
TEST_SAMPLES_NEEDED = "at least one: fewer clients, so that each has some of the test set, or evaluation.by: server"


class Refusal(Exception):
    """An error of the caller: ``where`` is the field, file or part, ``got`` the value, ``right`` what would be valid.

    Attributes:
        kind: One of ``KINDS``.
    """

    kind = "bad-request"

    def __init__(self, where: str, got: str, right: str) -> None:
        self.where, self.got, self.right = one_line(where), one_line(got), right
        super().__init__("{}: got {}; {}".format(self.where, self.got, right))


class BadCall(Refusal):
    """Arrays of another model, no samples, no steps, or a missing device."""


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


class BadField(Refusal):
    """An invalid field of a request; no state was changed."""


class NoTaskLoaded(BadField):
    """A job that needs a loaded task, before any was loaded."""

    kind = "no-task"


def get_object(fields: Mapping[str, Any], name: str) -> Dict[str, Any]:
    """Return the JSON object called ``name``.

    Raises:
        BadField: The field is missing or not an object.
    """
    value = fields.get(name)
    if not isinstance(value, dict):
        raise BadField(name, _shorten(value), "an object")
    return value


def get_text(fields: Mapping[str, Any], name: str) -> str:
    """Return the non-empty string called ``name``.

    Raises:
        BadField: The field is missing, empty or not a string.
    """
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise BadField(name, _shorten(value), "text")
    return value


def get_count(fields: Mapping[str, Any], name: str, least: int) -> int:
    """Return the integer called ``name``; ``least`` if it is missing.

    Raises:
        BadField: The value is not an integer from ``least`` to 2**63 - 1.
    """
    value = fields.get(name, least)
    if type(value) is not int or not least <= value < 2**63:
        raise BadField(name, _shorten(value), f"a whole number from {least}")
    return value


def get_number(fields: Mapping[str, Any], name: str) -> float:
    """Return the finite number called ``name``.

    Raises:
        BadField: The field is missing or not a finite number.
    """
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise BadField(name, _shorten(value), "a number")
    return float(value)


def get_seconds(fields: Mapping[str, Any], name: str) -> Optional[float]:
    """Return the seconds called ``name``; None (no limit) if the field is missing or null.

    Raises:
        BadField: The value is not a finite number above 0.
    """
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise BadField(name, _shorten(value), "seconds above 0, or null for no limit")
    return float(value)


def _shorten(value: Any) -> str:
    return repr(str(value)[:80])
