"""A transfer takes the latency and the bytes' time, and the radio draws power meanwhile."""

from __future__ import annotations

import pytest

from fedge.devices.network_link import NetworkLink


def test_a_megabyte_over_eight_megabit_per_second_takes_a_second_and_the_latency() -> None:
    use = NetworkLink(down_mbps=8.0, up_mbps=4.0, latency_s=0.1, radio_w=2.0).transfer(1_000_000)

    assert use.down_s == pytest.approx(1.1)
    assert use.up_s == pytest.approx(2.1)
    assert use.radio_j == pytest.approx(2.0 * 3.2)
