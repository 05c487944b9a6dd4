"""YAML that users write: one reader, which bounds size, depth and aliases and refuses a key that stands twice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

import yaml

from fedge.errors import BadInput, list_known, one_line

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

R = TypeVar("R", bound="BaseModel")
MAX_BYTES = 2_000_000
"""Largest file. A fleet of 1,000 boards, each with an entry of its own, has a tenth of it."""
MAX_DEPTH = 40
"""Deepest nesting of lists and mappings. Experiments have 6 levels."""
MAX_NODES = 200_000
"""Most values, keys included, once every alias is written out: a few lines of aliases can stand for billions."""
UNUSED_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("binary", "set", "omap", "pairs")}
"""Kinds that no key takes: bytes and sets are neither text nor lists."""
MAX_BITS = 64
"""Largest whole number. Larger ones are no floats and fit into no column, and Python refuses to print long ones."""
OPENED = {"while parsing a flow": "bracket", "while scanning a quoted scalar": "quote"}
"""What was opened where, by the beginning of PyYAML's context."""
MAX_VALUE_LENGTH = 60
"""Characters of a wrong value that a message shows."""


def read_yaml_mapping(path: Path, right: str) -> dict[str, Any]:
    """Read the mapping in a YAML file.

    Raises:
        BadInput: See ``read_yaml``, or the file holds no mapping.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        got = "an empty file" if content is None else f"a {type(content).__name__}"
        raise BadInput(str(path), got, right)
    return content


def read_yaml(path: Path | Traversable) -> Any:
    """Read a YAML file.

    Raises:
        BadInput: The file cannot be read, is larger than ``MAX_BYTES``, or is refused by ``parse_yaml``.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise BadInput(str(path), "a larger file", f"a YAML file of at most {MAX_BYTES // 1_000_000} MB")
        return parse_yaml(text.decode("utf-8"), str(path))
    except FileNotFoundError as error:
        raise BadInput(str(path), "no such file", "the path of a YAML file") from error
    except (OSError, UnicodeDecodeError) as error:
        if path.is_dir():
            raise BadInput(str(path), "a folder", "the path of a YAML file") from error
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(str(path), "a file that cannot be read", f"a readable YAML file ({reason})") from error


def parse_yaml(text: str, where: str) -> Any:
    """Parse one YAML document.

    Raises:
        BadInput: The text is not YAML, has a value that its form promises but that does not exist (``2024-13-45``),
            repeats a key, has a list or mapping as a key, or exceeds ``MAX_DEPTH`` or ``MAX_NODES``.
    """
    try:
        loader = _BoundedLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _measure_node(node, {})
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        line, right = _locate_problem(error)
        at = f"{where}: line {line}" if line and "\n" in text else where
        raise BadInput(at, "text that is not YAML", right) from error
    except RecursionError as error:
        raise BadInput(where, "deeply nested lists or mappings", f"at most {MAX_DEPTH} levels") from error


def _locate_problem(error: yaml.YAMLError) -> tuple[int | None, str]:
    """Return the line of an error, counted from 1, and what is wrong there.

    YAML notices an open bracket or quote only where the text cannot go on, which may be the end of the file: the line
    is where it was opened.
    """
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return None, one_line(error)
    line, problem = error.problem_mark.line + 1, one_line(error.problem or error)
    problem = problem.replace("'<stream end>'", "the end of the text").replace("'<scalar>'", "a value")
    opened = next((what for start, what in OPENED.items() if (error.context or "").startswith(start)), None)
    if opened is None or error.context_mark is None or error.context_mark.line + 1 == line:
        return line, problem
    return error.context_mark.line + 1, f"the {opened} opened here is not closed: {problem} in line {line}"


def format_value(value: object) -> str:
    """Format a value for a message as the user wrote it, shortened to ``MAX_VALUE_LENGTH`` characters."""
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 3] + "..."


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
EXPECTED = {
    "string_pattern_mismatch": "a name of letters, digits, '.', '_' and '-' that begins with a letter or digit",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "text that is not empty",
    "string_type": "text, in quotes where YAML would read something else",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list, such as [a, b]",
    "dict_type": "a mapping (key: value)",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "literal_error": "{expected}",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "tuple_type": "a list, such as [a, b]",
    "invalid_key": "keys that are text",
}
"""The right value by pydantic's type of error; for other types its own message is used."""


def validate_fields(
    record: type[R],
    given: Any,
    where: str,
    examples: Mapping[str, str] | None = None,
    name_only: Collection[str] = (),
) -> R:
    """Validate parsed YAML as a record.

    Keys that a record takes besides its fields are in its attribute ``shorthands``. ``where`` is the file, and the
    place in it after ": "; ``examples`` has lines of fields by their names, and ``name_only`` the fields that, like
    entries of lists of records, may be a name alone. All three are for messages.

    Raises:
        BadInput: What is wrong with the first wrong field, and the names of the other ones.
    """
    from pydantic import ValidationError

    try:
        found = record.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    else:
        check_numbers(lambda location: format_field(where, location), given, found.model_dump(by_alias=True))
        return found
    first = _explain_error(record, given, where, error=errors[0], examples=examples or {}, name_only=name_only)
    fields = {format_field("", _trim_location(_list_steps(one), given)).removeprefix(": "): None for one in errors}
    # A list is wrong as a whole, too, if one of its entries is.
    parts = {field: (f"{field}.", f"{field}[") for field in fields}
    others = [field for field in list(fields)[1:] if field and not any(one.startswith(parts[field]) for one in fields)]
    also = f". Also wrong: {', '.join(others[:MAX_OTHERS])}{', ...' if len(others) > MAX_OTHERS else ''}"
    raise BadInput(first.where, first.got, first.right + (also if others else ""))


MAX_OTHERS = 5
"""Wrong fields that a message names besides the one that it explains."""


def _list_steps(error: ErrorDetails) -> list[int | str]:
    """Return the location of one of pydantic's errors; "[key]" at its end means the key itself."""
    return [part for part in error["loc"] if part != "[key]"]


def _explain_error(
    record: type[BaseModel],
    given: Any,
    where: str,
    *,
    error: ErrorDetails,
    examples: Mapping[str, str],
    name_only: Collection[str],
) -> BadInput:
    limits, full = error.get("ctx", {}), _list_steps(error)
    location = _trim_location(full, given)
    where = format_field(where, location)
    example = examples.get(str(location[-1]) if location else "", "")
    example = f", for example {example}" if example else ""
    if error["type"] == "extra_forbidden":
        keys = list_keys(record, location[:-1])
        return BadInput(where, "an unknown key", list_known(str(location[-1]), keys, "known here: "))
    if error["type"] == "missing":
        return BadInput(where, "nothing", f"this key is needed{example}")
    if len(location) < len(full):  # of the members of a union
        return BadInput(where, format_value(error["input"]), "a number, text, true or false")
    if error["type"] in {"model_type", "model_attributes_type"}:
        last = location[-1] if location else ""
        bare = "a name, or " if name_only and (last in name_only or isinstance(last, int)) else ""
        right = f"{bare}a mapping with some of {', '.join(list_keys(record, location))}"
    elif bounds := {mark: limits[mark] for mark in RANGE_ENDS if mark in limits}:
        right = _describe_range({**_find_bounds(record, location, bounds), **bounds})
    elif error["type"] in EXPECTED and limits.get("pattern", NAME_PATTERN) == NAME_PATTERN:
        right = EXPECTED[error["type"]].format(**limits)
    else:
        text = error["msg"].removeprefix("Value error, ").splitlines()[0]
        right = text[:1].lower() + text[1:]
    return BadInput(where, format_value(error["input"]), right + (example if error["type"].endswith("_type") else ""))


RANGE_ENDS = {"ge": "{:.10g} or more", "gt": "more than {:.10g}", "le": "{:.10g} or less", "lt": "less than {:.10g}"}
"""Words for a range with one end, by pydantic's name of the end."""
FAR = 1e9
"""An end as large as this is there for the machine, such as the largest 32-bit number: a user meant another value."""


def _describe_range(bounds: Mapping[str, float]) -> str:
    if len(bounds) == 1:
        return next(RANGE_ENDS[mark].format(end) for mark, end in bounds.items())
    if {"ge", "le"} <= bounds.keys():
        return f"from {bounds['ge']:.10g} to {bounds['le']:.10g}"
    low = f"more than {bounds['gt']:.10g}" if "gt" in bounds else f"at least {bounds['ge']:.10g}"
    high = f"less than {bounds['lt']:.10g}" if "lt" in bounds else f"at most {bounds['le']:.10g}"
    return f"{low} and {high}"


def _find_bounds(record: type[BaseModel], location: Sequence[Any], known: Mapping[str, float]) -> dict[str, float]:
    """Return both ends of a number's range from the hint of its field, empty unless it has those that are ``known``."""
    marks: tuple[Any, ...] = ()
    for part in location:
        field = next((one for name, one in record.model_fields.items() if part == (one.alias or name)), None)
        if field is not None:
            marks = (*field.metadata, *_iterate_marks(field.annotation))
            record = extract_record(field.annotation) or record
    found = {end: getattr(mark, end) for mark in marks for end in RANGE_ENDS if hasattr(mark, end)}
    return {end: value for end, value in found.items() if abs(value) < FAR} if known.items() <= found.items() else {}


def _iterate_marks(hint: Any) -> Iterator[Any]:
    for mark in getattr(hint, "__metadata__", ()):
        yield from (mark, *getattr(mark, "metadata", ()))
    for part in get_args(hint):
        yield from _iterate_marks(part)


UNION_MEMBERS = ("bool", "int", "float", "str")
"""What pydantic puts at the end of the place of a value that may be one of several types."""


def _trim_location(location: Sequence[int | str], given: Any) -> Sequence[int | str]:
    """Return pydantic's location without the name of a union's member at its end, which the file does not have."""
    for place, part in enumerate(location):
        is_container = isinstance(given, Mapping | list | tuple)
        if not is_container:
            return location[:place]
        if part not in (given if isinstance(given, Mapping) else range(len(given))):
            return location[:place] if part in UNION_MEMBERS else location  # else missing, or the record's own
        given = given[part]
    return location


def format_field(where: str, location: Sequence[Any]) -> str:
    """Return the place of a field in messages: ``run.yaml: fleet[0].count``; ``where`` is as in ``validate_fields``."""
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    return f"{where}{'.' if ': ' in where else ': '}{field}" if field else where


def check_numbers(where: Callable[[Sequence[Any]], str], given: Any, read: Any, location: tuple[Any, ...] = ()) -> None:
    """Refuse a number that is given in quotation marks, or as ``true`` or ``false``, which Python counts as 1 and 0.

    Args:
        where: Describes a location.
        given: Parsed YAML.
        read: The same as it was read. Some numbers, such as 1e-3, are text to PyYAML.
        location: Location of both in the file.

    Raises:
        BadInput: For the first one.
    """
    if isinstance(given, bool) and not isinstance(read, bool):
        raise BadInput(where(location), format_value(given), "a number")
    if isinstance(given, str) and isinstance(read, int | float) and not isinstance(yaml.safe_load(given), str):
        right = "true or false" if isinstance(read, bool) else "a number"
        raise BadInput(where(location), format_value(given), f"{right}, without quotation marks")
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        for key in [key for key in given if key in read]:
            check_numbers(where, given[key], read[key], (*location, key))
    elif isinstance(given, list | tuple) and isinstance(read, list | tuple):
        for place, (one, its) in enumerate(zip(given, read, strict=False)):
            check_numbers(where, one, its, (*location, place))


def list_keys(record: type[BaseModel], location: Sequence[Any] = ()) -> list[str]:
    """List the keys of the record at a location within ``record``."""
    for part in location:
        field = next((one for name, one in record.model_fields.items() if part == (one.alias or name)), None)
        record = (extract_record(field.annotation) if field is not None else None) or record
    return [*getattr(record, "shorthands", ()), *(one.alias or name for name, one in record.model_fields.items())]


def extract_record(hint: Any) -> type[BaseModel] | None:
    """Return the first record in a type hint, such as that of the entries of a tuple; None without one."""
    if isinstance(hint, type) and hasattr(hint, "model_fields"):
        return hint
    return next((found for part in get_args(hint) if (found := extract_record(part))), None)


class _BoundedLoader(yaml.SafeLoader):
    """YAML's safe loader with the line in every error; of a repeated key it would silently take the last value."""

    yaml_constructors: ClassVar = {
        tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items() if tag not in UNUSED_TAGS
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:  # of int(), datetime() ...
            kind = node.tag.rpartition(":")[2]
            raise _problem(f"{format_value(node.value)} is no {kind} ({one_line(error)})", node) from error
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _problem(f"a whole number of more than {MAX_BITS} bits", node)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _problem("a list or mapping stands where a key is wanted", key)
            if key.value in keys:
                raise _problem(f"the key {key.value!r} stands here twice", key)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


def _problem(text: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, text, node.start_mark)


def _measure_node(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Return the numbers of values and of levels in a node with its aliases written out.

    ``known`` holds the results by the identity of the node; None while a node is being measured.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1, 0
    if id(node) not in known:
        known[id(node)] = None
        parts = [_measure_node(part, known) for part in _list_parts(node)]
        values, levels = 1 + sum(size for size, _ in parts), 1 + max((below for _, below in parts), default=0)
        if values > MAX_NODES:
            raise _problem(f"more than {MAX_NODES:,} values, with aliases written out", node)
        if levels > MAX_DEPTH:
            raise _problem(f"more than {MAX_DEPTH} levels of lists and mappings", node)
        known[id(node)] = values, levels
    measured = known[id(node)]
    if measured is None:
        raise _problem("an alias stands inside of what it names", node)
    return measured


def _list_parts(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return (part for pair in node.value for part in pair)
    parts: Iterable[yaml.Node] = node.value
    return parts
