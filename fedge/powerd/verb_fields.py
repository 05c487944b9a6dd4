"""Fields of a request: what each verb takes, and the validated value of each field."""

import math
from typing import Any, Dict, Optional, Tuple

from fedge.powerd import line_protocol
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


def parse_verb(request: Fields) -> str:
    """Return the verb if all fields belong to it.

    Raises:
        PowerdRefusal: Of kind unknown-verb or bad-request.
    """
    name: str = request["verb"]
    if name not in FIELDS:
        raise PowerdRefusal("unknown-verb", f"got {line_protocol.format_value(name)}; known: {', '.join(FIELDS)}")
    unknown = sorted(set(request) - set(FIELDS[name]) - {"v", "verb"})
    if unknown:
        known = ", ".join(FIELDS[name]) or "none"
        raise PowerdRefusal(
            "bad-request", f"got field {line_protocol.format_value(unknown[0])}; fields of {name}: {known}"
        )
    return name


def parse_mode(request: Fields) -> Mode:
    """Return the requested mode; whether the board has its values is checked later.

    Raises:
        PowerdRefusal: Of kind bad-request.
    """
    raw, known = request["mode"], Mode._fields
    if not isinstance(raw, dict) or not raw:
        right = 'it must look like {"cores":4,"gpu_hz":510000000}'
        raise PowerdRefusal(
            "bad-request", f"got mode={line_protocol.format_value(raw)}; {right} with some of: {', '.join(known)}"
        )
    for knob, value in raw.items():
        if knob not in known:
            raise PowerdRefusal(
                "bad-request", f"got knob {line_protocol.format_value(knob)}; known: {', '.join(known)}"
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise PowerdRefusal(
                "bad-request", f"got {knob}={line_protocol.format_value(value)}; it must be a whole number"
            )
    return Mode(**{knob: raw.get(knob) for knob in known})


def parse_text(request: Fields, field: str) -> str:
    """Return a short printable name; it goes into the log.

    Raises:
        PowerdRefusal: Of kind bad-request.
    """
    value = request.get(field)
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= LONGEST_NAME:
        right = f"it must be a text of 1 to {LONGEST_NAME} printable characters"
        raise PowerdRefusal("bad-request", f"got {field}={line_protocol.format_value(value)}; {right}")
    return value


def parse_token(request: Fields) -> Optional[str]:
    """Return the holder's token, or None; the error text never repeats it, since it may be somebody's secret.

    Raises:
        PowerdRefusal: Of kind bad-request.
    """
    value = request.get("token")
    if value is not None and not isinstance(value, str):
        raise PowerdRefusal("bad-request", "got a token that is no text; it must be what hold replied")
    return value


def parse_flag(request: Fields, field: str) -> bool:
    """Return a boolean field; a missing one is False.

    Raises:
        PowerdRefusal: Of kind bad-request.
    """
    value = request.get(field, False)
    if not isinstance(value, bool):
        raise PowerdRefusal("bad-request", f"got {field}={line_protocol.format_value(value)}; it must be true or false")
    return value


def parse_number(request: Fields, field: str) -> float:
    """Return a finite number, clamped to +-1e9 so that texts can show it.

    Raises:
        PowerdRefusal: Of kind bad-request.
    """
    value = request.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise PowerdRefusal("bad-request", f"got {field}={line_protocol.format_value(value)}; it must be a number")
    return min(max(value, -1e9), 1e9)  # so that a text can show it
