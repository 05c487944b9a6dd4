"""Short names of the runs of one page: what differs between them, otherwise their folders' names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedge.experiment import Experiment

UNTOLD_FIELDS = frozenset({"backend", "backend_options", "exporters", "jobs", "name", "plugins", "superlink", "tags"})
"""Fields that say where a run runs or what is called, not what it does."""
NETWORK_LAYERS = "workload.network.layers"
"""Beginning of fields that repeat the network, at length."""
MAX_PART_LENGTH = 24
"""Longest part of a folder's name, in characters."""
MAX_NAME_FIELDS = 3
"""Largest number of fields in a name; where more differ, the folder's name is shorter and as clear."""


@dataclass(frozen=True, slots=True)
class RunName:
    """Names of a run.

    Attributes:
        group: Name of the runs that differ from it only in the seed.
    """

    run: str
    group: str


def name_runs(experiments: Sequence[Experiment], folders: Sequence[Path]) -> list[RunName]:
    """Name runs by the fields in which their experiments differ; runs with several seeds add the seed."""
    by_folder = _name_by_folder(folders)
    by_key: dict[str, list[int]] = {}
    for i, experiment in enumerate(experiments):
        by_key.setdefault(experiment_key(experiment), []).append(i)
    names: dict[int, RunName] = {}
    differences = _describe_differences([experiments[members[0]] for members in by_key.values()])
    for difference, members in zip(differences, by_key.values(), strict=True):
        runs = Counter(experiments[i].seed for i in members)
        first = by_folder[members[0]]
        group = difference or f"{first} and its other seeds"
        for i in members:
            seed = experiments[i].seed
            if not difference or runs[seed] > 1:
                name = by_folder[i]
            elif len(runs) > 1:
                name = f"seed {seed}" if len(by_key) == 1 else f"{group}, seed {seed}"
            else:
                name = group
            names[i] = RunName(name, group if len(runs) > 1 else names[members[0]].run if i != members[0] else name)
    return [names[i] for i in range(len(experiments))]


def describe_changes(changes: Iterable[tuple[str, Any]]) -> list[str]:
    """Describe what tells a run apart from others of its file, as parts of a folder's name; the seed comes last.

    Args:
        changes: Overridden keys such as ``policy.max_slowdown``, with their values.
    """
    parts = {}
    for key, value in changes:
        first, last = key.partition(".")[0], key.rpartition(".")[2]
        if first in UNTOLD_FIELDS:
            continue
        told = value.get("name", last) if isinstance(value, Mapping) else last if isinstance(value, list) else value
        text = str(told) if isinstance(told, str) else f"{last}{told}"
        parts[key] = re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:MAX_PART_LENGTH]
    seed = parts.pop("seed", "")
    return [part for part in (*list(parts.values())[:MAX_NAME_FIELDS], seed) if part]


def experiment_key(experiment: Experiment) -> str:
    """Return a text that is equal for experiments that differ only in the seed."""
    return experiment.model_copy(update={"seed": 0, "tags": ()}).model_dump_json()


def _name_by_folder(folders: Sequence[Path]) -> list[str]:
    """Return the folders' names, or their paths if two have the same name, numbered if a folder occurs twice."""
    paths = [folder.resolve() for folder in folders]
    for names in ([path.name for path in paths], [str(folder) for folder in folders]):
        if len(set(names)) == len(names):
            return names
    return [f"{i}: {folder}" for i, folder in enumerate(folders, 1)]


def _describe_differences(experiments: Sequence[Experiment]) -> list[str]:
    """Describe each experiment by the fields in which they differ; empty texts if that would be long or ambiguous."""
    if len(experiments) == 1:
        return [experiments[0].policy.name]
    found = find_differences(experiments, without=("seed", "tags"))
    keys = sorted(dict.fromkeys(key for one in found for key in one), key=lambda key: not _is_name(key))
    ends = Counter(key.rpartition(".")[2] for key in keys)
    short = {key: key if "[" in key or ends[key.rpartition(".")[2]] > 1 else key.rpartition(".")[2] for key in keys}
    names = [
        ", ".join(one[key] if _is_name(key) else f"{short[key]} {one[key]}" for key in keys if key in one) or "the rest"
        for one in found
    ]
    return names if len(set(names)) == len(names) and len(keys) <= MAX_NAME_FIELDS else [""] * len(names)


def find_differences(experiments: Sequence[Experiment], without: Collection[str] = ()) -> list[dict[str, str]]:
    """Return for each experiment the fields in which they differ, with its values; one that it has not is left out.

    Args:
        experiments: The experiments.
        without: Keys of the file that are not compared, with all that is below them; a network's layers never are.
    """
    flat = [dict(_list_fields(one, without)) for one in experiments]
    values: dict[str, set[str]] = {}
    for one in flat:
        for key, value in one.items():
            values.setdefault(key, set()).add(value)
    counts = Counter(key for one in flat for key in one)
    differing = {key for key, found in values.items() if len(found) > 1 or counts[key] < len(flat)}
    return [{key: value for key, value in one.items() if key in differing} for one in flat]


def _list_fields(experiment: Experiment, without: Collection[str]) -> Iterator[tuple[str, str]]:
    for key, value in _flatten("", experiment.model_dump(mode="json")):
        if re.split(r"[.\[]", key, maxsplit=1)[0] not in without and not key.startswith(NETWORK_LAYERS):
            yield key, str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _is_name(key: str) -> bool:
    """Return whether a field's value stands for itself; other values are preceded by their field."""
    return key == "name" or key.endswith(".name")


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every field that is set, by its path: ``policy.name``, ``fleet[0].count``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _flatten(f"{prefix}[{i}]", inner)
    elif value is not None:
        yield prefix, value
