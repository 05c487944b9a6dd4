"""JSON that somebody else wrote, read strictly: finite numbers in their range, plain text, known fields."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fedge.errors import FedgeError

BOARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A board's name: as in its settings, of at most 64 characters, so that it fits into a certificate."""
MAX_SHOWN_CHARACTERS = 60
"""Of what was got so many characters are shown at most: it may be a megabyte."""


class MalformedJson(FedgeError):
    """What came is not what it has to be."""


@dataclass(frozen=True, slots=True)
class NumberRange:
    """The numbers from ``least`` to ``most``, both allowed."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"


def parse_json(data: bytes) -> object:
    """The JSON value in ``data``; raises ``MalformedJson`` for what is not one, NaN and doubled keys included."""
    try:
        return _READER.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MalformedJson(f"not JSON: {str(error)[:MAX_SHOWN_CHARACTERS]}") from error


def check_fields(value: object, where: str, needed: Collection[str], allowed: Collection[str]) -> Mapping[str, Any]:
    """``value`` as an object that has all fields of ``needed``, and none but those of ``allowed``."""
    if type(value) is not dict:
        raise MalformedJson(f"{where}: got {_format_value(value)}; an object is right")
    if missing := [name for name in needed if name not in value]:
        raise MalformedJson(f"{where}: {missing[0]} is missing")
    if strange := [name for name in value if name not in allowed]:
        raise MalformedJson(f"{where}: got the field {_format_value(strange[0])}; known: {', '.join(allowed)}")
    return value


def check_number(value: object, where: str, within: NumberRange) -> float:
    """A finite number of ``within``; true and false are none."""
    if type(value) not in {int, float} or not within.least <= value <= within.most:  # type: ignore[operator]
        raise MalformedJson(f"{where}: got {_format_value(value)}; {within} is right")
    return float(value)  # type: ignore[arg-type]


def check_optional_number(value: object, where: str, within: NumberRange) -> float | None:
    """The same; None stays None."""
    return None if value is None else check_number(value, where, within)


def check_int(value: object, where: str, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``, written without a point."""
    if type(value) is not int or not least <= value <= most:
        raise MalformedJson(f"{where}: got {_format_value(value)}; a whole number from {least} to {most} is right")
    return value


def check_text(value: object, where: str, longest: int) -> str:
    """Up to ``longest`` printable characters."""
    if type(value) is not str or len(value) > longest or not value.isprintable():
        raise MalformedJson(
            f"{where}: got {_format_value(value)}; text of up to {longest} printable characters is right"
        )
    return value


def check_pattern(value: object, where: str, pattern: re.Pattern[str]) -> str:
    """Text that is of ``pattern`` as a whole."""
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
"""One for all: making it takes as long as reading a small message."""


def _format_value(value: object) -> str:
    """A value for an error's text; never all of it, nor the digits of a number that nobody could read."""
    if type(value) is int and value.bit_length() > 64:
        return "a number of very many digits"
    if type(value) in {dict, list}:
        return f"{'an object' if type(value) is dict else 'a list'}"
    return repr(value if type(value) is not str else value[:MAX_SHOWN_CHARACTERS])
