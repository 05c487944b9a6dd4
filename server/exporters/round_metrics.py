"""What exporters tell of a round: its figures by name, gathered from rows in whatever portions they come."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fedge.experiment import Experiment, list_boards
from fedge.telemetry.store import Row
from fedge.telemetry.store_records import ClientRow, RoundRow

MAX_BOARD_METRICS = 64
"""A larger fleet is told by kind of board. Chosen by us."""
_UNFIT = re.compile(r"[^A-Za-z0-9_. -]")
"""What the strictest of the exporters (MLflow) takes in no name."""


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """A round's figures by name; ``end_s`` is its end on the fleet's clock, seconds from the run's start."""

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
"""Figures of a round; one that is not known is left out."""
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
"""Figures of a board in a round, or the mean over the boards of a kind."""


def _saving(row: RoundRow, baseline_j: float | None) -> float | None:
    """The share of the baseline's joules that was not spent; unknown where a board did less than its work."""
    return None if not baseline_j or row.late else 1.0 - row.energy_j / baseline_j


def _relative_error(predicted: float | None, measured: float | None) -> float | None:
    """|predicted - measured| / measured."""
    return None if predicted is None or not measured else abs(predicted - measured) / measured


@dataclass(slots=True)
class MetricCollector:
    """Rows of rounds that are not over yet; a round is told once, when its own row comes, which is the last."""

    by_kind: bool
    """One name per kind of board, with means, instead of one per board."""
    _clients: dict[int, list[ClientRow]] = field(default_factory=dict)

    def collect_rounds(self, rows: Iterable[Row]) -> Iterator[RoundMetrics]:
        """The rounds that ``rows`` complete."""
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
    """By board, or by kind where the fleet is large."""
    return MetricCollector(by_kind=len(list_boards(experiment)) > MAX_BOARD_METRICS)


def _compute_round_metrics(row: RoundRow) -> dict[str, float]:
    return {name: float(value) for name, of in ROUND_METRICS.items() if (value := of(row)) is not None}


def _compute_board_metrics(rows: Iterable[ClientRow], by_kind: bool) -> dict[str, float]:
    """``board_power_w/nano-1``, or ``kind_power_w/nano``: means where there are several rows of a name."""
    named: dict[str, list[ClientRow]] = {}
    for row in sorted(rows, key=lambda row: (row.board, row.start_s)):
        # A board that never answered has no kind; it has no figures either.
        named.setdefault(row.device if by_kind else row.board, []).append(row)
    prefix, told = "kind" if by_kind else "board", {}
    for name in sorted(filter(None, named)):
        for figure, of in BOARD_METRICS.items():
            values = [value for row in named[name] if (value := of(row)) is not None]
            if values:
                told[f"{prefix}_{figure}/{sanitise_name(name)}"] = sum(values) / len(values)
    return told


def sanitise_name(name: str) -> str:
    """``name`` in characters that every exporter takes, still different from every other one."""
    return _UNFIT.sub(lambda found: f"-{ord(found[0]):x}-", name)
