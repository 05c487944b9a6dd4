"""The daemon's wire format: one bounded JSON object per line, and the validated fields of each verb."""

import json
import math
from typing import Any, Dict, List, Optional, Tuple

from fedge.powerd import PROTOCOL
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


LONGEST_REQUEST = 4096
"""Bytes of a request without its line end."""
LONGEST_GOT = 80
"""Characters of a wrong value that a reply repeats: enough to recognise it on one line."""


LONGEST_TEXT = 1000
"""Characters of an error's text that a client keeps."""


class LineBuffer:
    """Splits received bytes into lines; never keeps much more than one request."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Append received bytes."""
        self._received += chunk

    def pop_line(self) -> Optional[bytes]:
        """Remove and return the next complete line without its end; None if there is none.

        Raises:
            PowerdRefusal: The line is too long.
        """
        end = self._received.find(b"\n", 0, LONGEST_REQUEST + 1)
        if end < 0 and len(self._received) > LONGEST_REQUEST:
            text = f"a line of more than {LONGEST_REQUEST} bytes; send one short JSON object"
            raise PowerdRefusal("bad-request", text)
        if end < 0:
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def has_line(self) -> bool:
        """Return whether ``pop_line`` would return a line or raise."""
        return len(self._received) > LONGEST_REQUEST or b"\n" in self._received

    def drain(self) -> int:
        """Discard the buffer and return its length in bytes."""
        left = len(self._received)
        self._received.clear()
        return left


def format_value(value: Any) -> str:
    """Format a wrong value for a reply or the log: one line, shortened."""
    text = json.dumps(value)
    return text if len(text) <= LONGEST_GOT else text[: LONGEST_GOT - 3] + "..."


def one_line(text: Any) -> str:
    """Return a text of the other side for a terminal: one line, bounded, without control characters."""
    line = " ".join(str(text)[: 4 * LONGEST_TEXT].split())[:LONGEST_TEXT]
    return line if line.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in line)


def decode_request(line: bytes) -> Dict[str, Any]:
    """Parse a request and check its version.

    Raises:
        PowerdRefusal: Of kind bad-request.
    """
    try:
        text = line.decode("utf-8")
        request = json.loads(text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        why = "too deeply nested" if isinstance(error, RecursionError) else str(error)[:LONGEST_GOT]
        raise PowerdRefusal("bad-request", f"got no JSON ({why}); send one JSON object per line, in UTF-8") from error
    if not isinstance(request, dict):
        raise PowerdRefusal("bad-request", f"got {format_value(request)}; send one JSON object per line")
    version = request.get("v")
    if isinstance(version, bool) or version != PROTOCOL:
        text = f'got v={format_value(version)}; this daemon speaks "v":{PROTOCOL}'
        raise PowerdRefusal("bad-request", f"{text}; client and daemon must be of one version")
    verb = request.get("verb")
    if not isinstance(verb, str):
        raise PowerdRefusal("bad-request", f'got verb={format_value(verb)}; name one, such as "verb":"get"')
    return request


def _reject_duplicates(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field stands twice")
    return found


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def encode_reply(fields: Dict[str, Any]) -> bytes:
    """Return the reply line of a successful request."""
    return _encode_line(dict(fields, ok=True))


def encode_refusal(refused: PowerdRefusal) -> bytes:
    """Return the reply line of a refused request."""
    error: Dict[str, Any] = {"kind": refused.kind, "text": refused.text}
    if refused.got is not None:
        error["got"] = refused.got
    return _encode_line({"ok": False, "error": error})


def _encode_line(fields: Dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"
