"""Histogram of latencies with logarithmic bins: small when serialised; late answers are counted exactly."""

import math
from typing import Any, Dict, Mapping, Optional

FIRST_S = 1e-4
LAST_S = 1e3
"""Latencies outside the range fall into the first and last bin."""
RATIO = 1.05
"""Ratio of a bin's upper to its lower edge: percentiles have a resolution of 5 % with some 330 bins."""
ROUNDING_S = 1e-9
"""Tolerance of the budget: on a simulated clock an answer may come exactly at its deadline."""
LAST_BIN = math.ceil(math.log(LAST_S / FIRST_S) / math.log(RATIO))


class LatencyHistogram:
    """Latencies in seconds, compared with ``budget_s``."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.count = 0
        self.late = 0
        """Number of latencies above the budget."""
        self.total_s = 0.0
        self.worst_s = 0.0
        self.bins: Dict[int, int] = {}
        """Counts of the non-empty bins, by ``bin_index``."""

    def add(self, latency_s: float) -> None:
        """Count one latency."""
        self.count += 1
        self.late += latency_s > self.budget_s + ROUNDING_S
        self.total_s += latency_s
        self.worst_s = max(self.worst_s, latency_s)
        place = bin_index(latency_s)
        self.bins[place] = self.bins.get(place, 0) + 1

    def percentile(self, q: float) -> Optional[float]:
        """Return a percentile of the latencies in seconds.

        Args:
            q: Percentile from 0 to 100.

        Returns:
            The upper edge of the bin that contains it, at most the worst latency; None if nothing was counted.
        """
        if not self.count:
            return None
        wanted, seen = max(1, math.ceil(self.count * q / 100.0 - 1e-9)), 0
        for place in sorted(self.bins):
            seen += self.bins[place]
            if seen >= wanted:
                return min(bin_upper_s(place), self.worst_s) if place < LAST_BIN else self.worst_s
        return self.worst_s

    def as_data(self) -> Dict[str, Any]:
        """Return the histogram as JSON values."""
        bins = [[place, self.bins[place]] for place in sorted(self.bins)]
        data: Dict[str, Any] = {"budget_s": self.budget_s, "count": self.count, "late": self.late}
        data.update(total_s=self.total_s, worst_s=self.worst_s, bins=bins)
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "LatencyHistogram":
        """Restore the histogram that ``as_data`` returned."""
        histogram = cls(float(data["budget_s"]))
        histogram.count, histogram.late = int(data["count"]), int(data["late"])
        histogram.total_s, histogram.worst_s = float(data["total_s"]), float(data["worst_s"])
        histogram.bins = {int(place): int(count) for place, count in data["bins"]}
        return histogram

    def copy(self) -> "LatencyHistogram":
        """Return an independent copy."""
        return LatencyHistogram.from_data(self.as_data())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LatencyHistogram) and self.as_data() == other.as_data()

    __hash__ = None  # type: ignore[assignment]


def bin_index(latency_s: float) -> int:
    """Return the index of a latency's bin; bin 0 ends at ``FIRST_S``."""
    if latency_s <= FIRST_S:
        return 0
    return min(LAST_BIN, math.ceil(math.log(latency_s / FIRST_S) / math.log(RATIO) - 1e-9))


def bin_upper_s(place: int) -> float:
    """Return a bin's upper edge in seconds."""
    return FIRST_S * RATIO**place
