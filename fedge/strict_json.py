"""Strict validation of JSON from elsewhere: finite numbers in their range, plain text, known fields."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from fedge.errors import one_line
from fedge.json_reader import MalformedJson, parse_json

BOARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A board's name, at most 64 characters so that it fits into a certificate."""
MAX_SHOWN_CHARACTERS = 60
"""Characters of a wrong value shown in an error text: the value may be a megabyte."""
KNOWN_FIELDS = ConfigDict(extra="forbid")
"""Configuration of a record that refuses fields it does not have."""
EXPECTED = dict.fromkeys(("dataclass_type", "dict_type", "model_type"), "an object") | {"tuple_type": "a list"}
"""What is right instead of a wrong container, by pydantic's type of error."""
T = TypeVar("T")


def limit_number(least: float, most: float) -> Any:
    """Return the metadata of a finite number from ``least`` to ``most``; booleans and texts are refused."""
    return Field(strict=True, ge=least, le=most, allow_inf_nan=False)


def limit_int(least: int, most: int) -> Any:
    """Return the metadata of a whole number, written without a decimal point; booleans are refused."""
    return Field(strict=True, ge=least, le=most)


def limit_size(most: int) -> Any:
    """Return the metadata of a list or object of at most ``most`` items; a larger one is refused unread."""

    def require(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > most:
            raise ValueError(f"at most {most} items")
        return value

    return BeforeValidator(require)


def equal_version(version: int) -> Any:
    """Return the metadata of the version of a record's form; no other is accepted."""

    def require(value: int) -> int:
        if value != version:
            raise ValueError(f"{version}")
        return value

    return AfterValidator(require)


def match_text(pattern: re.Pattern[str]) -> Any:
    """Return the metadata of text that matches a pattern as a whole."""
    return Field(strict=True, pattern=rf"^(?:{pattern.pattern})$")


def _require_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("printable text")
    return text


PrintableText = Annotated[str, Field(strict=True), AfterValidator(_require_printable)]


def decode_json(data: bytes, kind: type[T], where: str) -> T:
    """Parse JSON and validate it as a record or another annotated type.

    Raises:
        MalformedJson: The data is no JSON, or a field is missing, unknown, of the wrong type or out of range.
    """
    return validate_json(parse_json(data), kind, where)


def validate_json(value: object, kind: type[T], where: str) -> T:
    """Return a parsed JSON value as a record or another annotated type.

    Raises:
        MalformedJson: A field is missing, unknown, of the wrong type or out of range.
    """
    try:
        record: T = _build_adapter(kind).validate_python(value)  # type: ignore[arg-type]
    except ValidationError as error:
        raise MalformedJson(describe_invalid(error, where)) from None
    return record


@cache
def _build_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def describe_invalid(error: ValidationError, where: str) -> str:
    """Return the first error as "where: got what; what is right", short whatever was sent."""
    first = error.errors(include_url=False)[0]
    names = [_shorten(part) for part in first["loc"] if isinstance(part, str)]
    if first["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        return f"{'.'.join(names[:-1]) or where}: got the field {_format_value(first['loc'][-1])}, which is unknown"
    place = one_line(".".join(names), 2 * MAX_SHOWN_CHARACTERS) or where
    if first["type"] == "missing":
        return f"{place} is missing"
    expected = re.sub(r"^(Value error,|\w+ should (be|have|match)) ", "", first["msg"])
    return f"{place}: got {_format_value(first['input'])}; {EXPECTED.get(first['type'], expected)} is right"


def _shorten(name: str) -> str:
    return one_line(name, MAX_SHOWN_CHARACTERS)


def _format_value(value: object) -> str:
    """Format a value for an error text, shortened."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return repr(value[:MAX_SHOWN_CHARACTERS] if isinstance(value, str) else value)
