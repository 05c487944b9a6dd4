"""Descriptions of an experiment for exporters: flat parameters, YAML, and the provenance of the boards' figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from fedge.devices.board_kinds import build_kind
from fedge.experiment import Experiment, list_boards
from fedge.types import Label

Plain = bool | int | float | str


def flatten_experiment(experiment: Experiment) -> dict[str, Plain]:
    """Return the experiment as flat parameters, such as ``policy.name`` -> ``balanced``.

    The fleet is summarised in one line; fields without a value are left out.
    """
    record = experiment.model_dump(mode="json", exclude={"fleet", "exporters"})
    counts: Counter[str] = Counter()
    for entry in experiment.fleet:
        counts[entry.name or entry.device] += entry.count
    named = ", ".join(f"{count} x {name}" for name, count in counts.items())
    return {**_flatten(record, ""), "fleet": named, "boards": len(list_boards(experiment))}


def _flatten(record: Mapping[str, Any], prefix: str) -> dict[str, Plain]:
    told: dict[str, Plain] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            told |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            told |= {f"{prefix}{key}": ", ".join(map(str, value))} if value else {}
        elif value is not None:
            told[f"{prefix}{key}"] = value
    return told


def to_yaml(experiment: Experiment) -> str:
    """Return the experiment as YAML, without its exporters, whose options do not affect the run."""
    return yaml.safe_dump(experiment.model_dump(mode="json", exclude={"exporters"}), sort_keys=False)


def collect_labels(experiment: Experiment, recorded: Collection[str] = ()) -> dict[str, Label]:
    """Return the label of each fleet entry's figures: measured, calibrated or estimated.

    Args:
        experiment: The resolved experiment.
        recorded: Names of real boards that are recorded folders, on which nothing is measured.

    Returns:
        Label by the name of the fleet entry.
    """
    told: dict[str, Label] = {}
    for board in list_boards(experiment):
        name = board.name.rpartition("-")[0]
        if experiment.backend != "fleet":
            if name not in told:
                told[name] = build_kind(board, experiment.workload).truth_label
        elif told.get(name) != "estimated":
            told[name] = "estimated" if board.name in recorded else "measured"
    return told
