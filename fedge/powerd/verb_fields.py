"""Fields of a request: what each verb takes, and the validated value of each field."""

import math
from typing import Any, Dict, Optional, Tuple

from fedge.powerd.line_protocol import format_value
from fedge.powerd.mode_records import Mode, PowerdRefusal

LONGEST_NAME = 64
"""Characters of a holder's or a preset's name, so that log lines stay short."""

FIELDS: Dict[str, Tuple[str, ...]] = {
    "describe": (),
    "get": (),
    "set": ("mode", "preset", "token", "lock_min"),
    "restore": ("token",),
    "hold": ("name", "seconds", "token"),
    "drop-caches": ("token",),
    "fan": ("percent", "token"),
}
"""The fields of each verb, beside ``v`` and ``verb``."""

Fields = Dict[str, Any]


def _bad_field(field: str, value: Any, right: str) -> PowerdRefusal:
    return PowerdRefusal("bad-request", f"got {field}={format_value(value)}; {right}")


def parse_verb(request: Fields) -> str:
    """Return the verb if all fields belong to it.

    Raises:
        PowerdRefusal: Of kind unknown-verb or bad-request, as are those of all fields below.
    """
    name: str = request["verb"]
    if name not in FIELDS:
        raise PowerdRefusal("unknown-verb", f"got {format_value(name)}; known: {', '.join(FIELDS)}")
    unknown = sorted(set(request) - set(FIELDS[name]) - {"v", "verb"})
    if unknown:
        known = ", ".join(FIELDS[name]) or "none"
        raise PowerdRefusal("bad-request", f"got field {format_value(unknown[0])}; fields of {name}: {known}")
    return name


def parse_mode(request: Fields) -> Mode:
    """Return the requested mode; whether the board has its values is checked later."""
    raw, known = request["mode"], ", ".join(Mode._fields)
    if not isinstance(raw, dict) or not raw:
        right = f'it must look like {{"cores":4,"gpu_hz":510000000}} with some of: {known}'
        raise _bad_field("mode", raw, right)
    for knob, value in raw.items():
        if knob not in Mode._fields:
            raise PowerdRefusal("bad-request", f"got knob {format_value(knob)}; known: {known}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise _bad_field(knob, value, "it must be a whole number")
    return Mode(**raw)


def parse_text(request: Fields, field: str) -> str:
    """Return a short printable name; it goes into the log."""
    value = request.get(field)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= LONGEST_NAME:
        raise _bad_field(field, value, f"it must be a text of 1 to {LONGEST_NAME} printable characters")
    return value


def parse_token(request: Fields) -> Optional[str]:
    """Return the holder's token, or None; the error text never repeats it, since it may be somebody's secret."""
    value = request.get("token")
    if value is not None and not isinstance(value, str):
        raise PowerdRefusal("bad-request", "got a token that is no text; it must be what hold replied")
    return value


def parse_flag(request: Fields, field: str) -> bool:
    """Return a boolean field; a missing one is False."""
    value = request.get(field, False)
    if not isinstance(value, bool):
        raise _bad_field(field, value, "it must be true or false")
    return value


def parse_number(request: Fields, field: str) -> float:
    """Return a finite number, clamped to +-1e9 so that texts can show it."""
    value = request.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise _bad_field(field, value, "it must be a number")
    return min(max(value, -1e9), 1e9)
