"""The time of a change of mode: each knob that changes, and every core, has its price, with a label."""

from __future__ import annotations

import pytest

from fedge.devices.mode_switch import SWITCH_S, mode_change_s
from fedge.types import PowerMode

MODE = PowerMode(4, 1500.0, 900.0, 1600.0)


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        (MODE, 0.0),
        (PowerMode(4, 700.0, 900.0, 1600.0), 0.001),
        (PowerMode(4, 1500.0, 300.0, 1600.0), 0.005),
        (PowerMode(4, 1500.0, 900.0, 204.0), 0.008),
        (PowerMode(2, 1500.0, 900.0, 1600.0), 2 * 0.005),
        (PowerMode(6, 700.0, 300.0, 204.0), 0.014 + 2 * 0.005),
    ],
)
def test_every_knob_that_changes_has_its_price_and_cores_one_each(after: PowerMode, seconds: float) -> None:
    assert mode_change_s(MODE, after) == pytest.approx(seconds)
    assert mode_change_s(after, MODE) == pytest.approx(seconds)


def test_prices_are_labelled_estimated_with_their_source() -> None:
    assert {price.label for price in SWITCH_S.values()} == {"estimated"}
    assert all(price.source for price in SWITCH_S.values())
