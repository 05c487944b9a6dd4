"""Reads an experiment: YAML plus overrides to the resolved record, with one clear message for whatever is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from fedge.errors import BadInput
from fedge.experiment import (
    DataSpec,
    Experiment,
    FleetEntry,
    LateSpec,
    LinkSpec,
    PolicySpec,
    StrategySpec,
    WorkloadSpec,
)

SHORT_FORMS = ("policy", "strategy")
"""Keys that take a bare name instead of a mapping with ``name``."""
_PARTS: dict[str, type[BaseModel]] = {
    "workload": WorkloadSpec,
    "data": DataSpec,
    "policy": PolicySpec,
    "strategy": StrategySpec,
    "wraps": StrategySpec,
    "late": LateSpec,
    "link": LinkSpec,
    "fleet": FleetEntry,
}


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment of a YAML file with ``key=value`` overrides; raises ``BadInput`` naming file and field."""
    raw = read_yaml(path)
    for override in overrides:
        apply_override(raw, override)
    return resolve(raw, path)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(str(path), "a file that cannot be read", f"a readable YAML file ({reason})") from error
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}: line {mark.line + 1}" if mark else str(path)
        raise BadInput(where, "text that is not YAML", str(getattr(error, "problem", error))) from error
    if not isinstance(raw, dict):
        raise BadInput(str(path), type(raw).__name__, "a mapping of keys such as fleet, policy, rounds")
    return raw


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Put ``a.b=value`` into the nested mapping; the value is read as YAML, numbers index lists."""
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise BadInput("--set", repr(override), "key=value, for example --set policy=maxn or --set fleet.0.count=4")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"--set {key}", repr(text), "a YAML value") from error
    node: Any = raw
    *parents, last = key.strip().split(".")
    for depth, name in enumerate(parents):
        node = _child(node, name, f"--set {'.'.join(parents[: depth + 1])}")
    _assign(node, last, value, f"--set {key}")


def _child(node: Any, name: str, where: str) -> Any:
    if isinstance(node, list):
        return node[_position(node, name, where)]
    if not isinstance(node, dict):
        raise BadInput(where, type(node).__name__, "a mapping or a list to go into")
    if isinstance(node.get(name), str) and name in SHORT_FORMS:
        node[name] = {"name": node[name]}
    if node.get(name) is None:
        node[name] = {}
    return node[name]


def _assign(node: Any, name: str, value: Any, where: str) -> None:
    if isinstance(node, list):
        node[_position(node, name, where)] = value
    elif isinstance(node, dict):
        node[name] = value
    else:
        raise BadInput(where, type(node).__name__, "a mapping or a list to go into")


def _position(node: list[Any], name: str, where: str) -> int:
    if not name.isdigit() or int(name) >= len(node):
        raise BadInput(where, repr(name), f"a place from 0 to {len(node) - 1}")
    return int(name)


def resolve(raw: Mapping[str, Any], path: Path) -> Experiment:
    """The validated record; relative paths in it are taken from the YAML file's folder."""
    filled = dict(raw)
    for key in SHORT_FORMS:
        if isinstance(filled.get(key), str):
            filled[key] = {"name": filled[key]}
    fleet = filled.get("fleet")
    if isinstance(fleet, list):
        filled["fleet"] = [{"device": entry} if isinstance(entry, str) else entry for entry in fleet]
    try:
        experiment = Experiment.model_validate(filled)
    except ValidationError as error:
        raise _bad_field(path, error) from error
    return _with_absolute_paths(experiment, path.resolve().parent)


def _bad_field(path: Path, error: ValidationError) -> BadInput:
    first = error.errors()[0]
    where = f"{path}: {_dotted(first['loc'])}"
    if first["type"] == "extra_forbidden":
        known = ", ".join(_known_keys(first["loc"][:-1]))
        return BadInput(where, "an unknown key", f"known here: {known}")
    if first["type"] == "missing":
        return BadInput(where, "nothing", "this key is needed")
    return BadInput(where, repr(first["input"]), first["msg"][:1].lower() + first["msg"][1:])


def _dotted(location: Sequence[int | str]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _known_keys(location: Sequence[int | str]) -> tuple[str, ...]:
    names = [part for part in location if isinstance(part, str)]
    record: type[BaseModel] = _PARTS.get(names[-1], Experiment) if names else Experiment
    return tuple(record.model_fields)


def _with_absolute_paths(experiment: Experiment, folder: Path) -> Experiment:
    def absolute(text: str) -> str:
        return str((folder / Path(text).expanduser()).resolve())

    fleet = tuple(
        entry.model_copy(update={"truth": "table:" + absolute(entry.truth.removeprefix("table:"))})
        if entry.truth.startswith("table:")
        else entry
        for entry in experiment.fleet
    )
    data = experiment.data
    if data.dir is not None:
        data = data.model_copy(update={"dir": absolute(data.dir)})
    plugins = tuple(absolute(plugin) for plugin in experiment.plugins)
    return experiment.model_copy(update={"fleet": fleet, "data": data, "plugins": plugins})
