"""A board's network link: transfer times of a model, and the radio's power."""

from __future__ import annotations

from dataclasses import dataclass

from fedge.types import LinkUse

ENCODED_BYTES_PER_S = 100e6
"""Bytes of the update that one core encodes per second, estimated: a tenth of what ``int8`` and ``topk`` reach on one
core of a server (933 and 1,135 MB/s for 11.7 M values), since no figures of a Jetson's cores are known."""
ENCODING_W = 2.0
"""Watts above idling of one core at work, estimated."""


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

    def transfer(self, down_bytes: float, up_bytes: float, up_share: float = 1.0) -> LinkUse:
        """Return the times and the energy of one download and one upload, with the encoding of the update before it.

        Args:
            down_bytes: Bytes of the model.
            up_bytes: Bytes of the update before it is encoded.
            up_share: Bytes of the encoded update relative to them; 1 for an update that is not encoded.
        """
        down_s = self.latency_s + 8e-6 * down_bytes / self.down_mbps
        up_s = self.latency_s + 8e-6 * up_share * up_bytes / self.up_mbps
        encode_s = up_bytes / ENCODED_BYTES_PER_S
        encode_j = ENCODING_W * encode_s
        spent_s, spent_j = (0.0, 0.0) if up_share == 1.0 else (encode_s, encode_j)
        return LinkUse(
            down_s,
            up_s=up_s + spent_s,
            radio_j=self.radio_w * (down_s + up_s) + spent_j,
            moved_mb=1e-6 * (down_bytes + up_share * up_bytes),
            latency_s=self.latency_s,
            up_share=up_share,
            encode_s=encode_s,
            encode_j=encode_j,
        )
