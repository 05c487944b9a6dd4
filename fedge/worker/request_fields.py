"""Validation of a request's fields: an invalid one is refused before any state is changed."""

from typing import Any, Dict, Mapping, Optional

from fedge.worker.refusal import Refusal


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
