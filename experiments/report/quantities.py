"""Number formatting: SI prefixes, durations, percentages, and a dash for unknown values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNKNOWN = "–"
LABEL_MARKS = {"measured": "", "calibrated": "^", "estimated": "~", "unknown": "?"}
"""Mark in front of a number in a narrow table, by its label."""
BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True, slots=True)
class UnitScale:
    """A unit for an axis; values in SI units are divided by ``per``."""

    unit: str
    per: float

    def convert(self, value: float | None) -> float | None:
        return None if value is None else value / self.per


def energy_scale(values_j: Iterable[float | None], below: float = 1e4) -> UnitScale:
    """Choose J, kJ or MJ, so that the largest value is less than ``below`` if possible."""
    largest_j = max((abs(v) for v in values_j if v is not None), default=0.0)
    return next(
        (s for s in (UnitScale("J", 1.0), UnitScale("kJ", 1e3)) if largest_j < below * s.per), UnitScale("MJ", 1e6)
    )


def time_scale(values_s: Iterable[float | None]) -> UnitScale:
    """Choose seconds for values below three hours, otherwise hours."""
    return (
        UnitScale("s", 1.0)
        if max((v for v in values_s if v is not None), default=0.0) < 10_800
        else UnitScale("h", 3600.0)
    )


def is_known(value: float | None) -> bool:
    """Return whether the value is a finite number."""
    return value is not None and math.isfinite(value)


def number(value: float | None, digits: int = 3, unit: str = "") -> str:
    """Format a number without exponent, to ``digits`` significant ones but all whole ones: 1234.5 -> 1,234."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:,.{max(0, digits - 1 - magnitude)}f}".replace("-", "−")
    return f"{text} {unit}" if unit else text


def join_names(names: Sequence[str], most: int) -> str:
    """Join names with commas, at most so many; the others are counted."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def capitalise(text: str) -> str:
    """Return the text with a capital first letter; the others stay."""
    return text[:1].upper() + text[1:]


def metric_scale(metric: str) -> UnitScale:
    """Return the unit of a task's figure of merit: percent for accuracies, none for metrics of a task's own."""
    return UnitScale("%", 0.01) if metric == "accuracy" else UnitScale("", 1.0)


def metric_title(metric: str) -> str:
    """Return the title of an axis of a task's figure of merit on the test samples."""
    unit = metric_scale(metric).unit
    return f"test {metric}" + (f" ({unit})" if unit else "")


def format_metric(metric: str, value: float | None) -> str:
    """Format a task's figure of merit: an accuracy in percent, a metric of the task's own as a number."""
    return percent(value) if metric == "accuracy" else number(value)


def energy(value_j: float | None) -> str:
    """Format an energy with a fitting prefix: 45.2 kJ."""
    return UNKNOWN if value_j is None or not math.isfinite(value_j) else energies(value_j)[0]


def energies(*values_j: float) -> tuple[str, ...]:
    """Format several energies in the unit that fits the largest, for use in one sentence."""
    scale = energy_scale(values_j, below=1e3)
    return tuple(number(value / scale.per, 3, scale.unit) for value in values_j)


def duration(value_s: float | None, digits: int = 3) -> str:
    """Format a duration: 45.3 s, 12 min 5 s, 3 h 12 min; ``digits`` 1 leaves out fractions from 1 s on."""
    if value_s is None or not math.isfinite(value_s):
        return UNKNOWN
    if value_s < 120:
        return number(value_s, digits, "s")
    minutes, seconds = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def data_size(value_bytes: float) -> str:
    """Format an amount of data: 46.8 MB."""
    unit, name = next(((unit, name) for unit, name in BYTE_UNITS if value_bytes >= unit), (1.0, "bytes"))
    return f"{value_bytes / unit:.3g} {name}"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share in percent: 0.234 -> 23.4 %."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %".replace("-", "−")


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return ``part / whole``, or None if either is unknown or ``whole`` is not positive."""
    return None if part is None or whole is None or whole <= 1e-9 else part / whole


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, or None if there is none."""
    given = [value for value in values if value is not None and math.isfinite(value)]
    return sum(given) / len(given) if given else None


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values, or None if there is none."""
    given = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(given) if given else None
