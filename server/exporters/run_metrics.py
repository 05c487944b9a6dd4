"""Content of exports of a run: the experiment as parameters, its boards' labels, and named metrics of each round."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from fedge.costs.cost_priors import find_workload_cost
from fedge.costs.layered_work import build_workload
from fedge.devices import catalogue
from fedge.devices.tables.mode_table import read_table_label
from fedge.experiment import Experiment, FleetBoard, WorkloadSpec, list_boards
from fedge.groups import group_by
from fedge.telemetry.savings import compute_saving, select_comparable
from fedge.telemetry.store import Row
from fedge.telemetry.store_records import ClientRow, RoundRow, relative_error
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


MAX_BOARD_METRICS = 64
"""Boards above which metrics are means by board kind; a default that keeps the exporters' lists of metrics readable."""
_UNFIT = re.compile(r"[^A-Za-z0-9_. -]")
"""Characters that the strictest exporter (MLflow) does not accept in a metric's name."""


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """Metrics of a round.

    Attributes:
        end_s: Simulated time at which it ended, in seconds from the start of the run.
    """

    round: int
    end_s: float
    figures: Mapping[str, float]


ROUND_FIGURES = (
    *("accuracy", "loss", "round_s", "deadline_s", "end_s"),
    *("client_accuracy", "client_loss", "evaluation_s", "evaluation_energy_j"),
    *("energy_j", "train_energy_j", "resting_energy_j", "oracle_energy_j", "maxn_energy_j"),
)
"""Columns of a round that are metrics under their own names; unknown values are left out."""
BOARD_COUNTS = ("available", "selected", "done", "late", "failed", "cancelled", "stale")
BOARD_METRICS: dict[str, Callable[[ClientRow], float | None]] = {
    **{name: attrgetter(name) for name in ("power_w", "energy_j", "temperature_c", "time_ape", "power_ape")},
    "work_s": lambda row: row.work_s if row.step_s is not None else None,
    "step_s_error": lambda row: relative_error(row.predicted_step_s, row.step_s),
    "power_w_error": lambda row: relative_error(row.predicted_power_w, row.power_w),
}
"""Metrics of a board in a round, or the mean over the boards of a kind."""


@dataclass(slots=True)
class MetricCollector:
    """Collects the rows of unfinished rounds; a round is emitted once, with its own row, which is the last.

    Attributes:
        by_kind: True for one metric per board kind (the mean) instead of one per board.
        policy: The run's policy.
    """

    by_kind: bool
    policy: str = ""
    _clients: dict[int, list[ClientRow]] = field(default_factory=dict)

    def collect_rounds(self, rows: Iterable[Row]) -> Iterator[RoundMetrics]:
        """Yield the metrics of the rounds that ``rows`` complete."""
        for row in rows:
            if isinstance(row, ClientRow):
                self._clients.setdefault(row.round, []).append(row)
            elif isinstance(row, RoundRow):
                clients = self._clients.pop(row.round, [])
                figures = _compute_round_metrics(row, self.policy) | _compute_board_metrics(clients, self.by_kind)
                yield RoundMetrics(row.round, row.end_s, figures)


def build_collector(experiment: Experiment) -> MetricCollector:
    """Build a collector by board, or by board kind for a large fleet."""
    return MetricCollector(len(list_boards(experiment)) > MAX_BOARD_METRICS, experiment.policy.name)


def _compute_round_metrics(row: RoundRow, policy: str) -> dict[str, float]:
    compared = select_comparable([row])
    metrics = {f"round/{name}": getattr(row, name) for name in ROUND_FIGURES}
    metrics |= {f"boards/{name}": getattr(row, name) for name in BOARD_COUNTS}
    metrics["round/saving_vs_maxn"] = compute_saving(compared, policy, "maxn", "energy_j")
    metrics["round/saving_vs_maxn_parked"] = compute_saving(compared, policy, "maxn_parked", "energy_j")
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _compute_board_metrics(rows: Iterable[ClientRow], by_kind: bool) -> dict[str, float]:
    """Return ``board_power_w/nano-1`` or ``kind_power_w/nano`` and so on; the mean if a name has several rows."""
    # A board that never replied has no device and no metrics; its empty name is filtered out below.
    ordered = sorted(rows, key=lambda row: (row.board, row.start_s))
    named = group_by(ordered, lambda row: row.device if by_kind else row.board)
    prefix, metrics = "kind" if by_kind else "board", {}
    for name in sorted(filter(None, named)):
        for figure, read in BOARD_METRICS.items():
            values = [value for row in named[name] if (value := read(row)) is not None]
            if values:
                metrics[f"{prefix}_{figure}/{sanitise_name(name)}"] = sum(values) / len(values)
    return metrics


def sanitise_name(name: str) -> str:
    """Replace characters that an exporter does not accept; different names stay different."""
    return _UNFIT.sub(lambda match: f"-{ord(match[0]):x}-", name)
