"""The figures of a study's rows over their seeds: which rows belong together, their mean and the worst of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.report.quantities import UNKNOWN
from fedge.evaluation.cells import Row

Group = tuple[str, str, int]
"""What a target is called, method, number of modes."""


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a table; ``worst`` picks the worst seed's, where that is worth showing."""

    heading: str
    field: str
    digits: int = 1
    worst: Callable[[Sequence[float]], float] | None = max
    factor: float = 1.0
    """From the field's unit to the heading's."""

    def text(self, rows: Sequence[Row]) -> str:
        """The mean, and the worst in brackets; a dash where no seed has the figure."""
        values = [self.factor * value for value in values_of(rows, self.field)]
        if not values:
            return UNKNOWN
        mean = self._figure(sum(values) / len(values))
        return mean if self.worst is None or len(values) == 1 else f"{mean} ({self._figure(self.worst(values))})"

    def _figure(self, value: float) -> str:
        return f"{value:,.{0 if abs(value) >= 100 else self.digits}f}"


def values_of(rows: Sequence[Row], field: str) -> list[float]:
    """The figures that could be had."""
    found = [getattr(row, field) for row in rows]
    return [float(value) for value in found if value is not None]


def grouped(rows: Sequence[Row]) -> dict[Group, list[Row]]:
    """The rows of all seeds together, in the order of the rows."""
    names = target_names(rows)
    found: dict[Group, list[Row]] = {}
    for row in rows:
        found.setdefault((names[row.target], row.method, row.modes), []).append(row)
    return found


def target_names(rows: Sequence[Row]) -> dict[str, str]:
    """A target's path -> ``device/workload``, or the path where two targets would be called the same."""
    short = {row.target: f"{row.device}/{row.workload}" for row in rows}
    names = list(short.values())
    return {path: name if names.count(name) == 1 else path for path, name in short.items()}
