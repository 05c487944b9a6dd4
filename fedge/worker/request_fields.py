"""The fields of a request: each is what it should be, or the request is refused before anything is touched."""

from typing import Any, Dict, Mapping, Optional

from fedge.worker.refusal import Refusal


class BadField(Refusal):
    """A request that cannot be meant so; nothing was touched."""


class NoTaskLoaded(BadField):
    """Work was asked for before a task was loaded."""

    kind = "no-task"


def get_object(fields: Mapping[str, Any], name: str) -> Dict[str, Any]:
    """The JSON object called ``name``. Like all here: raises ``BadField``."""
    value = fields.get(name)
    if not isinstance(value, dict):
        raise BadField(name, _shorten(value), "an object")
    return value


def get_text(fields: Mapping[str, Any], name: str) -> str:
    """The text called ``name``, not empty."""
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise BadField(name, _shorten(value), "text")
    return value


def get_count(fields: Mapping[str, Any], name: str, least: int) -> int:
    """The whole number called ``name``, ``least`` or more; ``least`` where it is missing."""
    value = fields.get(name, least)
    if type(value) is not int or not least <= value < 2**63:
        raise BadField(name, _shorten(value), f"a whole number from {least}")
    return value


def get_number(fields: Mapping[str, Any], name: str) -> float:
    """The finite number called ``name``."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise BadField(name, _shorten(value), "a number")
    return float(value)


def get_seconds(fields: Mapping[str, Any], name: str) -> Optional[float]:
    """The seconds called ``name``, above 0; None where there is no limit."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise BadField(name, _shorten(value), "seconds above 0, or null for no limit")
    return float(value)


def _shorten(value: Any) -> str:
    return repr(str(value)[:80])
