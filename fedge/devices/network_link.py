"""A board's network link: transfer times of a model, and the radio's power."""

from __future__ import annotations

from dataclasses import dataclass

from fedge.types import LinkUse


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """A network link.

    Attributes:
        latency_s: One-way latency in seconds.
    """

    down_mbps: float
    up_mbps: float
    latency_s: float
    radio_w: float

    def transfer(self, down_bytes: float, up_bytes: float) -> LinkUse:
        """Return the times and the radio energy of one download and one upload."""
        down_s = self.latency_s + 8e-6 * down_bytes / self.down_mbps
        up_s = self.latency_s + 8e-6 * up_bytes / self.up_mbps
        return LinkUse(down_s, up_s, self.radio_w * (down_s + up_s), moved_mb=1e-6 * (down_bytes + up_bytes))
