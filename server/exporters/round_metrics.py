"""Named metrics of a round for exporters, collected from rows in batches of any size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fedge.experiment import Experiment, list_boards
from fedge.telemetry.store import Row
from fedge.telemetry.store_records import ClientRow, RoundRow

MAX_BOARD_METRICS = 64
"""Boards above which metrics are means by board kind; a default that keeps the exporters' lists of metrics readable."""
_UNFIT = re.compile(r"[^A-Za-z0-9_. -]")
"""Characters that the strictest exporter (MLflow) does not accept in a metric's name."""


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """Metrics of a round.

    Attributes:
        round: Number of the round.
        end_s: Simulated time at which it ended, in seconds from the start of the run.
        figures: Values by metric name.
    """

    round: int
    end_s: float
    figures: Mapping[str, float]


ROUND_METRICS: dict[str, Callable[[RoundRow], float | None]] = {
    "round/accuracy": lambda row: row.accuracy,
    "round/loss": lambda row: row.loss,
    "round/round_s": lambda row: row.round_s,
    "round/deadline_s": lambda row: row.deadline_s,
    "round/end_s": lambda row: row.end_s,
    "round/energy_j": lambda row: row.energy_j,
    "round/train_energy_j": lambda row: row.train_energy_j,
    "round/resting_energy_j": lambda row: row.resting_energy_j,
    "round/oracle_energy_j": lambda row: row.oracle_energy_j,
    "round/maxn_energy_j": lambda row: row.maxn_energy_j,
    "round/saving_vs_maxn": lambda row: _saving(row, row.maxn_energy_j),
    "round/saving_vs_maxn_parked": lambda row: _saving(row, row.maxn_parked_energy_j),
    "boards/available": lambda row: row.available,
    "boards/selected": lambda row: row.selected,
    "boards/done": lambda row: row.done,
    "boards/late": lambda row: row.late,
    "boards/failed": lambda row: row.failed,
    "boards/cancelled": lambda row: row.cancelled,
    "boards/stale": lambda row: row.stale,
}
"""Metrics of a round; unknown values are left out."""
BOARD_METRICS: dict[str, Callable[[ClientRow], float | None]] = {
    "power_w": lambda row: row.power_w,
    "work_s": lambda row: row.work_s if row.step_s is not None else None,
    "energy_j": lambda row: row.energy_j,
    "temperature_c": lambda row: row.temperature_c,
    "step_s_error": lambda row: _relative_error(row.predicted_step_s, row.step_s),
    "power_w_error": lambda row: _relative_error(row.predicted_power_w, row.power_w),
    "time_ape": lambda row: row.time_ape,
    "power_ape": lambda row: row.power_ape,
}
"""Metrics of a board in a round, or the mean over the boards of a kind."""


def _saving(row: RoundRow, baseline_j: float | None) -> float | None:
    """Return the saved share of the baseline's energy; None if a client was late, since it did less than its work."""
    return None if not baseline_j or row.late else 1.0 - row.energy_j / baseline_j


def _relative_error(predicted: float | None, measured: float | None) -> float | None:
    """Return |predicted - measured| / measured."""
    return None if predicted is None or not measured else abs(predicted - measured) / measured


@dataclass(slots=True)
class MetricCollector:
    """Collects the rows of unfinished rounds; a round is emitted once, with its own row, which is the last."""

    by_kind: bool
    """True for one metric per board kind (the mean) instead of one per board."""
    _clients: dict[int, list[ClientRow]] = field(default_factory=dict)

    def collect_rounds(self, rows: Iterable[Row]) -> Iterator[RoundMetrics]:
        """Yield the metrics of the rounds that ``rows`` complete."""
        for row in rows:
            if isinstance(row, ClientRow):
                self._clients.setdefault(row.round, []).append(row)
            elif isinstance(row, RoundRow):
                clients = self._clients.pop(row.round, [])
                yield RoundMetrics(
                    row.round,
                    row.end_s,
                    {**_compute_round_metrics(row), **_compute_board_metrics(clients, self.by_kind)},
                )


def build_collector(experiment: Experiment) -> MetricCollector:
    """Build a collector by board, or by board kind for a large fleet."""
    return MetricCollector(by_kind=len(list_boards(experiment)) > MAX_BOARD_METRICS)


def _compute_round_metrics(row: RoundRow) -> dict[str, float]:
    return {name: float(value) for name, of in ROUND_METRICS.items() if (value := of(row)) is not None}


def _compute_board_metrics(rows: Iterable[ClientRow], by_kind: bool) -> dict[str, float]:
    """Return ``board_power_w/nano-1`` or ``kind_power_w/nano`` and so on; the mean if a name has several rows."""
    named: dict[str, list[ClientRow]] = {}
    for row in sorted(rows, key=lambda row: (row.board, row.start_s)):
        # A board that never replied has no device and no metrics; its empty name is filtered out below.
        named.setdefault(row.device if by_kind else row.board, []).append(row)
    prefix, told = "kind" if by_kind else "board", {}
    for name in sorted(filter(None, named)):
        for figure, of in BOARD_METRICS.items():
            values = [value for row in named[name] if (value := of(row)) is not None]
            if values:
                told[f"{prefix}_{figure}/{sanitise_name(name)}"] = sum(values) / len(values)
    return told


def sanitise_name(name: str) -> str:
    """Replace characters that an exporter does not accept; different names stay different."""
    return _UNFIT.sub(lambda found: f"-{ord(found[0]):x}-", name)
