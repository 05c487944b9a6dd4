"""Descriptions of an experiment for exporters: flat parameters, YAML, and the provenance of the boards' figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from fedge.costs.cost_priors import find_workload_cost
from fedge.costs.layered_work import build_workload
from fedge.devices import catalogue
from fedge.devices.tables.mode_table import read_table_label
from fedge.experiment import Experiment, FleetBoard, WorkloadSpec, list_boards
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
    parameters: dict[str, Plain] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            parameters |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            parameters |= {f"{prefix}{key}": ", ".join(map(str, value))} if value else {}
        elif value is not None:
            parameters[f"{prefix}{key}"] = value
    return parameters


def to_yaml(experiment: Experiment) -> str:
    """Return the experiment as YAML, without its exporters, whose options do not affect the run."""
    return yaml.safe_dump(experiment.model_dump(mode="json", exclude={"exporters"}), sort_keys=False)


def collect_labels(experiment: Experiment, recorded: Collection[str] = ()) -> dict[str, Label]:
    """Return the label of each fleet entry's figures, by its name: measured, calibrated or estimated.

    ``recorded`` names real boards that are recorded folders, on which nothing is measured.
    """
    labels: dict[str, Label] = {}
    for board in list_boards(experiment):
        name = board.name.rpartition("-")[0]
        if experiment.backend != "fleet":
            if name not in labels:
                labels[name] = _find_emulated_label(board, experiment.workload)
        elif labels.get(name) != "estimated":
            labels[name] = "estimated" if board.name in recorded else "measured"
    return labels


def _find_emulated_label(board: FleetBoard, workload: WorkloadSpec) -> Label:
    """Return the label of an emulated board's table or cost profile."""
    if board.truth.startswith("table:"):
        return read_table_label(Path(board.truth.removeprefix("table:")))
    work = build_workload(board.entry, workload)
    return find_workload_cost(catalogue.find(board.entry.device), work, catalogue.load_catalogue()).label
