"""Strict validation of JSON from elsewhere: finite numbers in their range, plain text, known fields."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fedge.errors import FedgeError

BOARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A board's name, at most 64 characters so that it fits into a certificate."""
MAX_SHOWN_CHARACTERS = 60
"""Characters of a wrong value shown in an error text: the value may be a megabyte."""


class MalformedJson(FedgeError):
    """JSON that is invalid or does not match what is expected."""


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The closed range from ``least`` to ``most``."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"


def parse_json(data: bytes) -> object:
    """Parse JSON; NaN and duplicate keys are refused.

    Raises:
        MalformedJson: The data is not valid JSON.
    """
    try:
        return _READER.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MalformedJson(f"not JSON: {str(error)[:MAX_SHOWN_CHARACTERS]}") from error


def check_fields(value: object, where: str, needed: Collection[str], allowed: Collection[str]) -> Mapping[str, Any]:
    """Return ``value`` as an object with all fields of ``needed`` and only those of ``allowed``.

    Args:
        value: A JSON value.
        where: Its name for the error text.
        needed: Required fields.
        allowed: All permitted fields.

    Raises:
        MalformedJson: It is not an object, or a field is missing or unknown.
    """
    if type(value) is not dict:
        raise MalformedJson(f"{where}: got {_format_value(value)}; an object is right")
    if missing := [name for name in needed if name not in value]:
        raise MalformedJson(f"{where}: {missing[0]} is missing")
    if strange := [name for name in value if name not in allowed]:
        raise MalformedJson(f"{where}: got the field {_format_value(strange[0])}; known: {', '.join(allowed)}")
    return value


def check_number(value: object, where: str, within: NumberRange) -> float:
    """Return a number within a range; booleans are refused.

    Raises:
        MalformedJson: It is not a number or out of range.
    """
    if type(value) not in {int, float} or not within.least <= value <= within.most:  # type: ignore[operator]
        raise MalformedJson(f"{where}: got {_format_value(value)}; {within} is right")
    return float(value)  # type: ignore[arg-type]


def check_optional_number(value: object, where: str, within: NumberRange) -> float | None:
    """Return a number within a range, or None for None.

    Raises:
        MalformedJson: It is not a number or out of range.
    """
    return None if value is None else check_number(value, where, within)


def check_int(value: object, where: str, least: int, most: int) -> int:
    """Return an integer from ``least`` to ``most``, written without a decimal point.

    Raises:
        MalformedJson: It is not an integer or out of range.
    """
    if type(value) is not int or not least <= value <= most:
        raise MalformedJson(f"{where}: got {_format_value(value)}; a whole number from {least} to {most} is right")
    return value


def check_text(value: object, where: str, longest: int) -> str:
    """Return printable text of at most ``longest`` characters.

    Raises:
        MalformedJson: It is not such a text.
    """
    if type(value) is not str or len(value) > longest or not value.isprintable():
        raise MalformedJson(
            f"{where}: got {_format_value(value)}; text of up to {longest} printable characters is right"
        )
    return value


def check_pattern(value: object, where: str, pattern: re.Pattern[str]) -> str:
    """Return text that matches ``pattern`` as a whole.

    Raises:
        MalformedJson: It does not match.
    """
    if type(value) is not str or not pattern.fullmatch(value):
        raise MalformedJson(f"{where}: got {_format_value(value)}; text like {pattern.pattern} is right")
    return value


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


_READER = json.JSONDecoder(parse_constant=_reject_constant, object_pairs_hook=_reject_duplicates)
"""Shared: creating a decoder takes as long as decoding a small message."""


def _format_value(value: object) -> str:
    """Format a value for an error text, shortened; huge integers are not converted to digits."""
    if type(value) is int and value.bit_length() > 64:
        return "a number of very many digits"
    if type(value) in {dict, list}:
        return f"{'an object' if type(value) is dict else 'a list'}"
    return repr(value if type(value) is not str else value[:MAX_SHOWN_CHARACTERS])
