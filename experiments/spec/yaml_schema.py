"""The keys of the user's YAML files, from the records that read them: type, default, range and meaning, as text or as
a JSON schema for editors.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel

from experiments.spec.experiment_loader import NAME_ONLY_FIELDS, NAME_ONLY_LISTS
from fedge.errors import UnknownName
from fedge.yaml_files import extract_record

DRAFT = "https://json-schema.org/draft/2020-12/schema"
FILLED_IN = "filled in by the launcher"
"""Ends the meaning of a key that no user writes."""
KEYS_OWN = "its keys' own"
"""Stands for the default of a mapping."""
RANGE_WORDS = {
    "exclusiveMinimum": "above {}",
    "minimum": "at least {}",
    "exclusiveMaximum": "below {}",
    "maximum": "at most {}",
    "minItems": "{} or more entries",
    "pattern": "of the form {}",
}
EXAMPLES = {
    "superlink.root_certificates": "ca.crt",
    "fleet[].device": "agx-orin",
    "fleet[].name": "office",
    "fleet[].references": "[agx-orin/train/resnet18-imagenet.csv]",
    "fleet[].cost": "resnet50-imagenet",
    "fleet[].availability.on_s": 600,
    "fleet[].availability.off_s": 60,
    "fleet[].availability.trace": "presence.csv",
    "fleet[].battery.capacity_wh": 50,
    "fleet[].zone": "north",
    "fleet[].serving.cost": "resnet50-imagenet",
    "fleet[].serving.rate_hz": 20,
    "fleet[].serving.latency_s": 0.5,
    "fleet[].serving.batch_sizes": "[1, 4, 16]",
    "fleet[].serving.model": "cifar10-cnn",
    "fleet[].serving.network.model": "resnet50",
    "fleet[].serving.network.input": "[3, 224, 224]",
    "fleet[].serving.placement": "plan.json",
    "fleet[].loader.workers": 4,
    "fleet[].loader.model": "loader.json",
    "fleet[].loader.storage": "emmc",
    "fleet[].loader.image_mpixel": 0.25,
    "fleet[].loader.file_mb": 0.11,
    "fleet[].memory_mb": 2000,
    "workload.schedule.name": "CosineAnnealingLR",
    "workload.memory.widths": "[1.0, 0.5]",
    "workload.network.model": "resnet50",
    "workload.network.input": "[3, 224, 224]",
    "workload.model_mb": 45,
    "data.dir": "data",
    "data.samples": 50000,
    "policy.power_w": 20,
    "policy.fleet_power_w": 100,
    "policy.round_energy_j": 5000,
    "policy.budget_j": 100000,
    "policy.deadline_s": 90,
    "policy.time_weight": 0.5,
    "policy.max_slowdown": 1.2,
    "policy.min_progress": 0.9,
    "policy.confidence": 0.9,
    "compression.kind": "int8",
    "signal.trace": "carbon.csv",
    "knowledge": "auto",
    "selection.count": 10,
    "mods[].name": "fixedclipping_mod",
    "jobs": 4,
    "exporters[].name": "tensorboard",
    "plugins": "[my_policies.py]",
}
"""Values of the keys of an experiment that have no default."""
ATTRIBUTES = re.compile(r"^Attributes:\n(.*?)(?:^\S|\Z)", re.MULTILINE | re.DOTALL)
ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n(?:     .*)?$)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """The values that a user may write for a key.

    Attributes:
        key: Its place, such as ``fleet[].link.up_mbps``.
        default: Its default as YAML; None if the key is needed.
        allowed: Its range or its values; empty if every value of its type is allowed.
        example: A line of YAML or of ``--set``.
    """

    key: str
    kind: str
    default: str | None
    allowed: str
    meaning: str
    example: str


@cache
def read_field_docs(record: type[BaseModel]) -> Mapping[str, str]:
    """Return the meaning of a record's fields: of "Attributes" in its docstring, or the text below the field."""
    found = {}
    section = ATTRIBUTES.search(inspect.cleandoc(record.__doc__ or "") + "\n")
    for name, text in ATTRIBUTE.findall(section.group(1) if section else ""):
        found[name] = " ".join(text.split())
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(body, ast.ClassDef)
    for field, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(below.value.value).split())
    return {name: re.sub(r"\bNone\b", "null", text.replace("``", "`")) for name, text in found.items()}


def build_schema(record: type[BaseModel], title: str) -> dict[str, Any]:
    """Build the JSON schema of a file with such a record, with the short forms that the reader accepts."""
    schema = record.model_json_schema()
    records = {one.__name__: one for one in _list_records(record)}
    for name, part in (*schema.get("$defs", {}).items(), (record.__name__, schema)):
        docs = read_field_docs(records[name])
        docs = {one.alias or field: docs[field] for field, one in records[name].model_fields.items() if field in docs}
        part["description"] = _first_paragraph(records[name])
        for key, field in part.get("properties", {}).items():
            field.pop("title", None)
            if key in docs:
                field["description"] = docs[key]
            _allow_short_form(key, field)
        part.pop("title", None)
        if "placement" in part.get("properties", {}):  # or `network` give the name, and the former gives the rate
            part["required"] = [key for key in part["required"] if key not in {"cost", "rate_hz"}]
    return {"$schema": DRAFT, "title": title, **schema}


def _allow_short_form(key: str, field: dict[str, Any]) -> None:
    """Let a key whose value may be a bare name be a string too, and the list of a sweep's seeds a number."""
    if key in NAME_ONLY_LISTS and "items" in field:
        field["items"] = {"anyOf": [{"type": "string"}, field["items"]]}
    elif key in NAME_ONLY_FIELDS and ("$ref" in field or "anyOf" in field):
        forms = field.pop("anyOf", None) or [{"$ref": field.pop("$ref")}]
        field["anyOf"] = [{"type": "string"}, *forms]
    elif key == "seeds":
        kept = {name: field.pop(name) for name in ("type", "items", "minItems")}
        field["anyOf"] = [{"type": "integer", "minimum": 1}, kept]


def _first_paragraph(record: type[BaseModel]) -> str:
    return " ".join(inspect.cleandoc(record.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`")


def _list_records(record: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield record
    for field in record.model_fields.values():
        inner = extract_record(field.annotation)
        if inner is not None and inner is not record:
            yield from _list_records(inner)


def describe_keys(record: type[BaseModel], place: str = "") -> Iterator[KeyDescription]:
    """Yield every key that a user may write in a file with such a record, in the order of the file."""
    schema, docs = record.model_json_schema(), read_field_docs(record)
    properties = schema.get("properties") or schema["$defs"][record.__name__]["properties"]
    for name, field in record.model_fields.items():
        key, meaning = f"{place}{field.alias or name}", docs.get(name, "")
        inner = extract_record(field.annotation)
        meaning = meaning or (_first_paragraph(inner) if inner else "")
        if FILLED_IN in meaning:
            continue
        shown = properties[field.alias or name]
        yield _describe_key(key, shown, field.is_required(), meaning)
        if inner is not None and inner is not record:
            many = "[]" if shown.get("type") == "array" else ""
            yield from describe_keys(inner, f"{key}{many}.")


def _describe_key(key: str, shown: Mapping[str, Any], required: bool, meaning: str) -> KeyDescription:
    forms = [one for one in shown.get("anyOf", [shown]) if one.get("type") != "null"]
    kind = " or ".join(dict.fromkeys(map(_format_kind, forms)))
    allowed = ", ".join(filter(None, map(_format_range, forms)))
    default = None if required else _format_value(shown["default"]) if "default" in shown else KEYS_OWN
    return KeyDescription(key, kind, default, allowed=allowed, meaning=meaning, example=_find_example(key, shown))


def _format_kind(form: Mapping[str, Any]) -> str:
    if "$ref" in form:
        return "mapping"
    if form.get("type") == "array":
        return f"list of {_format_kind(form.get('items', {}))}s"
    names = {"number": "number", "integer": "whole number", "string": "text", "boolean": "true or false"}
    return names.get(form.get("type", ""), "mapping")


def _format_range(form: Mapping[str, Any]) -> str:
    if "enum" in form or "const" in form:
        return "one of " + ", ".join(map(str, form.get("enum", [form.get("const")])))
    if form.get("type") == "array":
        inner = _format_range(form.get("items", {}))
        return ", ".join(filter(None, (_format_bounds(form), f"each {inner}" if inner else "")))
    return _format_bounds(form)


def _format_bounds(form: Mapping[str, Any]) -> str:
    return ", ".join(words.format(_format_value(form[key])) for key, words in RANGE_WORDS.items() if key in form)


def _format_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):  # as YAML reads a number: 1e+06 would be text
        return str(yaml.safe_dump(value)).split()[0].removesuffix(".0")
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, dict):
        return KEYS_OWN
    return str(value)


def _find_example(key: str, shown: Mapping[str, Any]) -> str:
    """Return the key set on a command line: to its usual example, else to its default."""
    value = EXAMPLES.get(key, shown.get("default"))
    if value is None or isinstance(value, dict | list):
        return ""
    return f"--set {key.replace('[]', '.0')}={_format_value(value)}"


def find_key(record: type[BaseModel], name: str) -> list[KeyDescription]:
    """Return a key and, if it is a mapping or a list of mappings, the keys below it.

    Raises:
        UnknownName: If the file has no such key.
    """
    plain = re.sub(r"\[\w*\]|\.\d+(?=\.|$)", "", name)
    every = list(describe_keys(record))
    found = [one for one in every if _is_within(one.key.replace("[]", ""), plain)]
    if not found:
        above, _, last = plain.rpartition(".")
        known = [one.key.replace("[]", "") for one in every]
        beside = tuple(key for key in known if key.rpartition(".")[0] == above)
        elsewhere = tuple(key for key in known if key.rpartition(".")[2] == last)
        raise UnknownName("KEY", name, elsewhere or beside or tuple(key for key in known if "." not in key))
    return found


def _is_within(key: str, place: str) -> bool:
    return key == place or key.startswith(f"{place}.")
