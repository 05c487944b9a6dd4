"""The temperature guard: what it reads, when it stops, when it lets go again."""

import pytest

from fedge.powerd.machine import Machine
from fedge.powerd.thermal_guard import GuardStop, check_temperatures, read_temperatures

HOT = GuardStop("too-hot", "it was")


@pytest.mark.parametrize(
    ("before", "celsius", "stops"),
    [(None, 95.0, False), (None, 95.1, True), (HOT, 90.1, True), (HOT, 90.0, False)],
)
def test_it_stops_above_the_limit_and_until_the_board_is_five_degrees_cooler(before, celsius, stops):
    stop = check_temperatures(before, {"cpu": 40.0, "gpu": celsius}, 95.0)
    assert (stop is not None) == stops
    if stop is not None:
        assert stop.kind == "too-hot"
        assert all(word in stop.text for word in ("gpu", f"{celsius}", "95 C", "90 C"))


def test_temperatures_that_cannot_be_read_stop_with_the_reason_and_a_board_without_zones_goes_on():
    stop = check_temperatures(None, None, 95.0, lost="thermal_zone0 is gone")
    assert stop.kind == "sensor-lost"
    assert "thermal_zone0 is gone" in stop.text
    assert check_temperatures(stop, {}, 95.0) is None


def test_of_two_zones_of_one_type_the_hotter_one_counts_and_what_is_no_sensor_only_where_it_is_needed(tmp_path):
    for number, (zone, milli_c) in enumerate([("cpu", 51000), ("cpu", 40000), ("PMIC-Die", 100000)]):
        folder = tmp_path / f"sys/class/thermal/thermal_zone{number}"
        folder.mkdir(parents=True)
        (folder / "type").write_text(zone + "\n")
        (folder / "temp").write_text(f"{milli_c}\n")
    machine = Machine(str(tmp_path))
    assert read_temperatures(machine, ()) == {"cpu": 51.0}
    assert read_temperatures(machine, ("PMIC-Die",)) == {"cpu": 51.0, "PMIC-Die": 100.0}
