"""A board's network link: how long a model takes down and up, and what the radio draws meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from fedge.types import LinkUse


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """Rates in Mbit/s, one-way latency in seconds, radio power above idle in watts."""

    down_mbps: float
    up_mbps: float
    latency_s: float
    radio_w: float

    def transfer(self, n_bytes: int) -> LinkUse:
        """Fetching and sending ``n_bytes`` once each."""
        down_s = self.latency_s + 8e-6 * n_bytes / self.down_mbps
        up_s = self.latency_s + 8e-6 * n_bytes / self.up_mbps
        return LinkUse(down_s, up_s, self.radio_w * (down_s + up_s))
