"""The YAML schema of a plan as strict records, and one-line messages for anything that does not match it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fedge.errors import BadInput

MAX_SHOWN_CHARS = 60
"""Maximum length of a wrong value that a message repeats."""
Record = TypeVar("Record", bound=BaseModel)

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=64)]
_Count = Annotated[int, Field(ge=1, le=10**9)]
_Share = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


def expand_count(value: object) -> object:
    """Expand the shorthand ``images: 512`` to ``images: {count: 512}``."""
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ImagesRecord(_StrictModel):
    """The ``images`` of a workload."""

    count: _Count
    width: Annotated[int, Field(ge=1, le=20_000)]
    height: Annotated[int, Field(ge=1, le=20_000)]
    channels: Literal[1, 3] = 3
    source: Literal["files", "memory"] = "files"
    kb: Annotated[float, Field(gt=0, le=1e6)] | None = None
    folder: str | None = None


class WorkloadRecord(_StrictModel):
    """An entry of ``workloads``."""

    model: Annotated[str, Field(min_length=1)]
    input: Annotated[list[Annotated[int, Field(ge=1, le=20_000)]], Field(min_length=3, max_length=3)]
    classes: _Count
    images: Annotated[ImagesRecord, BeforeValidator(expand_count)]
    learning_rate: Annotated[float, Field(gt=0, le=100)] = 0.01
    momentum: _Share = 0.9


class StorageRecord(_StrictModel):
    """An entry of ``storages``."""

    path: Annotated[str, Field(min_length=1)] | None = None
    model: Annotated[str, Field(min_length=1)] | None = None


class CourseRecord(_StrictModel):
    """The ``course`` of a plan: how long each point is measured."""

    epochs: Annotated[int, Field(ge=1, le=10_000)] = 3
    discard: Annotated[int, Field(ge=0)] = 1
    minibatches: _Count | None = None
    repeats: Annotated[int, Field(ge=1, le=10_000)] = 1
    every_s: Annotated[float, Field(ge=0, le=1e7)] = 0.0
    sample_hz: Annotated[float, Field(gt=0, le=100)] = 5.0


class BoardRecord(_StrictModel):
    """An entry of ``boards``."""

    device: str
    count: Annotated[int, Field(ge=1, le=1000)] = 1


class PlanRecord(_StrictModel):
    """The top level of a plan."""

    name: _Name
    board: str | None = None
    boards: Annotated[list[Any], Field(min_length=1)] | None = None
    workloads: Any = None
    storages: dict[_Name, StorageRecord] = Field(default_factory=dict)
    course: CourseRecord = CourseRecord()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    modes: dict[_Name, str] = Field(default_factory=dict)
    base: dict[str, Any] = Field(default_factory=dict)
    sweeps: list[dict[str, Any]] = Field(default_factory=list)


SHORTHAND_KEYS: Mapping[type[BaseModel], Sequence[str]] = {WorkloadRecord: ("like", "count")}
"""Keys that are expanded before the record is validated."""
EXAMPLES = {
    "name": "name: my-board",
    "model": "model: mobilenet_v3_small",
    "input": "input: [3, 224, 224] (channels, height, width)",
    "classes": "classes: 10",
    "images": "images: {count: 2000, width: 800, height: 600}",
    "count": "count: 2000",
    "width": "width: 800",
    "height": "height: 600",
}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file.

    Raises:
        BadInput: The file cannot be read, is not YAML, repeats a key, or is not a mapping.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)  # noqa: S506 -- a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(str(path), "a file that cannot be read", f"a plan's YAML file ({reason})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}: line {mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise BadInput(where, "text that is not YAML", problem) from error
    if not isinstance(raw, dict):
        got = "an empty file" if raw is None else f"a {type(raw).__name__}"
        raise BadInput(str(path), got, f"a mapping with some of {', '.join(PlanRecord.model_fields)}")
    return raw


class _UniqueKeys(yaml.SafeLoader):
    """A safe YAML loader that rejects duplicate keys, of which the standard loader silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands here twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def validate_record(record: type[Record], given: Any, where: str) -> Record:
    """Validate ``given`` as a ``record``.

    Args:
        record: The record's class.
        given: The parsed YAML.
        where: Prefix of the field in messages.

    Raises:
        BadInput: With the first field that is wrong.
    """
    try:
        return record.model_validate(given)
    except ValidationError as error:
        raise _to_bad_input(record, error, where) from error


def _to_bad_input(record: type[BaseModel], error: ValidationError, where: str) -> BadInput:
    first = error.errors(include_url=False)[0]
    location = [part for part in first["loc"] if part != "[key]"]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    where = f"{where}{'.' if ': ' in where else ': '}{field}" if field else where
    if first["type"] == "extra_forbidden":
        short = SHORTHAND_KEYS.get(record, ()) if len(location) == 1 else ()
        known = [*short, *_list_record_keys(record, location[:-1])]
        return BadInput(where, "an unknown key", f"known here: {', '.join(known)}")
    key = str(location[-1]) if location else ""
    example = f", for example {EXAMPLES[key]}" if key in EXAMPLES else ""
    if first["type"] == "missing":
        return BadInput(where, "nothing", f"this key is needed{example}")
    if first["type"] in {"model_type", "model_attributes_type"}:
        return BadInput(
            where,
            format_value(first["input"]),
            f"a mapping with some of {', '.join(_list_record_keys(record, location))}",
        )
    right = _describe_expected(first["type"], first["msg"], first.get("ctx", {}))
    return BadInput(where, format_value(first["input"]), right + (example if first["type"].endswith("_type") else ""))


def _describe_expected(kind: str, message: str, limits: Mapping[str, Any]) -> str:
    """Describe the expected value in plain words, or in pydantic's own words for kinds without a text here."""
    limit = next(iter(limits.values()), "")
    limit = f"{limit:.10g}" if isinstance(limit, float) else limit
    words = {
        "string_pattern_mismatch": "a name of letters, digits, '.', '_' and '-' that begins with a letter or digit",
        "string_too_long": f"at most {limit} characters",
        "string_too_short": "text that is not empty",
        "string_type": "text",
        "int_type": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "list_type": "a list, in brackets or with a dash before each entry",
        "dict_type": "a mapping (key: value)",
        "greater_than_equal": f"{limit} or more",
        "greater_than": f"more than {limit}",
        "less_than_equal": f"{limit} or less",
        "less_than": f"less than {limit}",
        "too_short": f"at least {limits.get('min_length')} of them",
        "too_long": f"at most {limits.get('max_length')} of them",
        "literal_error": f"{limits.get('expected')}",
    }
    return words.get(kind, message[:1].lower() + message[1:])


def _list_record_keys(record: type[BaseModel], location: Sequence[Any]) -> list[str]:
    """Return the keys of the record at a location within ``record``."""
    found: Any = record
    for part in location:
        hint = found.model_fields[part].annotation if found is not None and part in found.model_fields else None
        inner = [
            one
            for one in (hint, *getattr(hint, "__args__", ()))
            if isinstance(one, type) and issubclass(one, BaseModel)
        ]
        found = inner[0] if inner else found
    return list(found.model_fields)


def format_value(value: object) -> str:
    """Format a value for a message, shortened to ``MAX_SHOWN_CHARS`` characters."""
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
