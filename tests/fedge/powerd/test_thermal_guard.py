"""The temperature guard: when it stops, when it lets go again."""

import math

import pytest

from fedge.powerd.thermal_guard import GuardStop, check_temperatures, find_hottest

HOT = GuardStop("too-hot", "it was")


@pytest.mark.parametrize("celsius", [20.0, 94.9, 95.0])
def test_up_to_the_limit_it_goes_on(celsius: float) -> None:
    assert check_temperatures(None, {"cpu": celsius}, 95.0) is None


def test_above_the_limit_it_stops_and_says_where_and_until_when() -> None:
    stop = check_temperatures(None, {"cpu": 40.0, "gpu": 95.1}, 95.0)
    assert stop is not None
    assert stop.kind == "too-hot"
    for word in ("gpu", "95.1", "95 C", "90 C"):
        assert word in stop.text


def test_after_a_stop_it_waits_until_the_board_is_five_degrees_cooler() -> None:
    assert check_temperatures(HOT, {"cpu": 94.0}, 95.0) is not None
    assert check_temperatures(HOT, {"cpu": 90.1}, 95.0) is not None
    assert check_temperatures(HOT, {"cpu": 90.0}, 95.0) is None


def test_a_needed_sensor_that_is_lost_stops_and_one_that_is_back_lets_go() -> None:
    for reading in ({"gpu": 40.0}, {"cpu": math.nan, "gpu": 40.0}):
        stop = check_temperatures(None, reading, 95.0, needed=("cpu",))
        assert stop is not None
        assert stop.kind == "sensor-lost"
        assert "cpu" in stop.text
    assert check_temperatures(stop, {"cpu": 40.0}, 95.0, needed=("cpu",)) is None


def test_temperatures_that_cannot_be_read_at_all_stop_with_the_reason() -> None:
    stop = check_temperatures(None, None, 95.0, lost="thermal_zone0 is gone")
    assert stop is not None
    assert stop.kind == "sensor-lost"
    assert "thermal_zone0 is gone" in stop.text


def test_a_zone_nobody_needs_may_read_nonsense() -> None:
    assert check_temperatures(None, {"cv0": math.nan, "cpu": 40.0}, 95.0, needed=("cpu",)) is None
    assert find_hottest({"cv0": math.nan, "cpu": 40.0}) == ("cpu", 40.0)
    assert find_hottest({}) == ("", None)
