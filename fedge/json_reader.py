"""JSON of others: bounded in size, depth and digits, in UTF-8, no key twice; and values for JSON of ours."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from fedge.errors import BadInput, FedgeError, one_line

MAX_BYTES = 200_000_000
"""Largest file. The layers of a network and the knowledge of a fleet have megabytes; LEAF's largest file has 100 MB."""
MAX_DEPTH = 60
"""Deepest nesting of lists and objects. A message has 8 levels; Python ends the process's stack at about 1,000."""
MAX_WHOLE = 2**63
"""Whole numbers are from -MAX_WHOLE to below it: others fit into no column of the store, large ones into no float."""


class MalformedJson(FedgeError):
    """JSON that is invalid or does not match what is expected."""


def read_json(path: Path, right: str, *, finite: bool = True) -> Any:
    """Read a JSON file.

    ``right`` describes the file in messages; for ``finite`` see ``parse_json``.

    Raises:
        BadInput: The file cannot be read, is larger than ``MAX_BYTES``, or is refused by ``parse_json``.
    """
    try:
        with path.open("rb") as file:
            return parse_json(file.read(MAX_BYTES + 1), finite=finite)
    except (OSError, MalformedJson) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(str(path), f"a file that cannot be read ({reason})", right) from error


def parse_json(data: bytes | str, *, finite: bool = True) -> Any:
    """Parse JSON.

    With ``finite``, NaN and infinite numbers are refused, also those written as ``1e999``.

    Raises:
        MalformedJson: It is no JSON, or exceeds a bound of this module.
    """
    if len(data) > MAX_BYTES:
        raise MalformedJson(f"more than {MAX_BYTES // 1_000_000} MB")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value = (_FINITE if finite else _ANY).decode(text)
        _check_depth(value)
        if not text.isascii() or "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # of half a character there is no UTF-8
    except UnicodeError as error:
        raise MalformedJson("not UTF-8 text") from error
    except RecursionError as error:
        raise MalformedJson(f"more than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise MalformedJson(f"not JSON: {one_line(error)}") from error
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        lists: list[Collection[Any]] = [part for part in level if type(part) is list]
        lists += [part.values() for part in level if type(part) is dict]
        if not lists:
            return
        level = list(chain.from_iterable(lists))
    raise RecursionError


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key comes twice")
    return fields


def _parse_int(digits: str) -> int:
    if len(digits) > 20 or not -MAX_WHOLE <= int(digits) < MAX_WHOLE:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _parse_finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number beyond all floats")
    return value


_ANY = json.JSONDecoder(parse_int=_parse_int, object_pairs_hook=_reject_duplicates)
_FINITE = json.JSONDecoder(
    parse_int=_parse_int,
    parse_float=_parse_finite,
    parse_constant=_reject_constant,
    object_pairs_hook=_reject_duplicates,
)
"""Shared: creating a decoder takes as long as decoding a small message."""


def to_json_value(value: Any, digits: int | None = None) -> Any:
    """Convert a value for JSON: keys become text, tuples lists, numbers that are not finite null, half characters "?".

    Floats are rounded to ``digits`` significant ones if given.
    """
    if isinstance(value, float):
        return None if not math.isfinite(value) else value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {to_json_value(str(key)): to_json_value(one, digits) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(one, digits) for one in value]
    return value
