"""The board at hand as a whole: what a lost thermometer costs, which is nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedge.devices.local_board import LocalBoard
from fedge.errors import SensorLost
from fedge.types import SensorSample


class Sensor:
    """Says ``sample``, or is lost."""

    def __init__(self, sample: SensorSample | None) -> None:
        self._sample = sample

    def read(self) -> SensorSample:
        if self._sample is None:
            raise SensorLost("VDD_IN cannot be read")
        return self._sample


@pytest.mark.parametrize(
    ("sample", "hottest_c"),
    [
        (SensorSample(0.0, 5.0, temperatures_c={"cpu": 47.5, "gpu": 46.0}), 47.5),
        (SensorSample(0.0, 5.0, temperatures_c={"cpu": 0.0}), 0.0),
        (SensorSample(0.0, 5.0), None),
        (None, None),
    ],
)
def test_the_hottest_temperature_is_told_where_it_can_be_read(
    sample: SensorSample | None, hottest_c: float | None
) -> None:
    nobody: Any = SimpleNamespace()
    here = LocalBoard(nobody, Sensor(sample), nobody, nobody, nobody)  # type: ignore[arg-type]

    assert here.hottest_c() == hottest_c
