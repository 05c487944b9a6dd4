"""A signal is a step per line of its file; what boards draw costs its mean over their time."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices.availability import ALWAYS_AVAILABLE, TracedAvailability
from fedge.devices.energy_signal import J_PER_KWH, EnergySignal, LowSignalStart, ZoneValues, build_signal, read_signal
from fedge.errors import BadInput
from fedge.experiment import Experiment, FleetEntry, SignalSpec

LINES = "at_s,north,South\n0,100,400\n60,300,0\n120,200,200\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "carbon.csv"
    path.write_text(text, encoding="utf-8")
    return path


def a_signal(*values: float, every_s: float = 60.0) -> EnergySignal:
    starts_s = every_s * np.arange(len(values))
    return EnergySignal(ZoneValues(starts_s, {"here": np.array(values)}), {"a": "here"})


def test_lines_may_be_in_any_order_and_names_in_any_case(tmp_path):
    shuffled = "at_s;north;South\n120;200;200\n0;100;400\n60;300;0,0\n"
    for text in (LINES, shuffled):
        (tmp_path / str(len(text))).mkdir()
        zones = read_signal(written(tmp_path / str(len(text)), text))
        assert zones.starts_s.tolist() == [0.0, 60.0, 120.0]
        assert {name: values.tolist() for name, values in zones.by_zone.items()} == {
            "north": [100.0, 300.0, 200.0],
            "south": [400.0, 0.0, 200.0],
        }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got no header; columns at_s"),
        ("\n\n", "got no header; columns at_s"),
        ("0,100\n60,200\n", "got no column at_s; columns at_s (found 0, 100)"),
        ("at_s\n0\n", "got no column beside at_s; a column per zone, such as north"),
        ("at_s,north\n", "got no line below the header; at least one, from at_s 0"),
        ("at_s,north,North\n0,1,2\n", "got two columns north; every zone once"),
        ("at_s,north\n0,1\n60,-2\n", "line 3, north: got '-2'; a number of at least 0"),
        ("at_s,north\n0,nan\n", "line 2, north: got 'nan'; a number of at least 0"),
        ("at_s,north\n0,\n", "line 2, north: got ''; a number of at least 0"),
        ("at_s,north\nnoon,1\n", "line 2, at_s: got 'noon'; a number of at least 0"),
        ("at_s,north\n0,inf\n", "line 2, north: got 'inf'; a number of at least 0"),
        ("at_s,north\n0,1\n0,2\n", "got two lines of at_s 0; every time once"),
        ("at_s,north\n60,1\n", "got the first line at 60 s; one of at_s 0, the run's start"),
        ("at_s,north\n0,0\n", "got only zeros; a value above 0: prices are relative to the mean"),
    ],
)
def test_a_file_that_is_no_signal_is_refused(tmp_path, text, message):
    with pytest.raises(BadInput) as raised:
        read_signal(written(tmp_path, text))
    assert message in str(raised.value)


def build(folder: Path, *zones: str | None, text: str = LINES) -> EnergySignal | None:
    fleet = tuple(FleetEntry(device="nano", name=f"b{i}", count=2, zone=zone) for i, zone in enumerate(zones))
    return build_signal(Experiment(fleet=fleet, signal=SignalSpec(trace=str(written(folder, text)))))


def test_every_board_has_the_zone_of_its_entry_or_the_only_one(tmp_path):
    assert build(tmp_path, "North", "south").zone_of == {
        "b0-1": "north",
        "b0-2": "north",
        "b1-1": "south",
        "b1-2": "south",
    }
    (tmp_path / "one").mkdir()
    assert set(build(tmp_path / "one", None, text="at_s,all\n0,5\n").zone_of.values()) == {"all"}


def test_a_zone_that_is_missing_unknown_or_of_no_use_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"fleet\[1\].zone: got nothing; a zone of the signal: north, south"):
        build(tmp_path, "north", None)
    with pytest.raises(BadInput, match=r"fleet\[0\].zone: got 'nort'; did you mean north"):
        build(tmp_path, "nort")
    with pytest.raises(BadInput, match=r"fleet\[0\].zone: got 'north'; no zone, or a signal"):
        build_signal(Experiment(fleet=(FleetEntry(device="nano", zone="north"),)))
    with pytest.raises(BadInput, match=r"signal.trace: /nowhere.csv: got no such file"):
        build_signal(Experiment(fleet=(FleetEntry(device="nano"),), signal=SignalSpec(trace="/nowhere.csv")))


def test_a_cost_is_the_mean_over_the_interval_and_the_last_line_has_no_end():
    signal = a_signal(100.0, 300.0, 200.0)
    assert signal.compute_cost("a", J_PER_KWH, 0.0, 60.0) == 100.0
    assert signal.compute_cost("a", J_PER_KWH, 30.0, 120.0) == pytest.approx((30 * 100 + 60 * 300) / 90)
    assert signal.compute_cost("a", J_PER_KWH, 90.0, 1e6) == pytest.approx(200.0, rel=1e-3)
    assert signal.compute_cost("a", 2.0 * J_PER_KWH, 60.0, 60.0) == 600.0
    assert signal.compute_cost("a", 0.0, 0.0, 60.0) == 0.0


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=5), st.floats(0.0, 400.0), st.floats(0.0, 400.0))
def test_the_cost_of_two_intervals_is_that_of_both(values, one_s, other_s):
    signal, (from_s, until_s) = a_signal(*values), sorted((one_s, other_s))
    watts, half_s = 7.0, 0.5 * (from_s + until_s)
    parts = [
        signal.compute_cost("a", watts * (b - a), a, b)
        for a, b in ((from_s, half_s), (half_s, until_s), (from_s, until_s))
    ]
    assert parts[0] + parts[1] == pytest.approx(parts[2], abs=1e-9)


def test_a_price_is_relative_to_the_mean_over_time_and_zones(tmp_path):
    signal = build(tmp_path, "north", "south")
    assert signal.zones.mean == 200.0
    assert [signal.find_price("b1-1", at_s) for at_s in (0.0, 59.9, 60.0, 1e9)] == [2.0, 2.0, 0.0, 1.0]
    uneven = EnergySignal(ZoneValues(np.array([0.0, 90.0, 100.0]), {"x": np.array([1.0, 3.0, 5.0])}), {"a": "x"})
    assert uneven.zones.mean == pytest.approx((90 * 1 + 10 * 3 + 10 * 5) / 110)


def test_work_begins_while_the_signal_is_low_and_may_end_later():
    signal = a_signal(1.0, 5.0, 1.0, 1.0, 5.0)
    low_times = signal.find_low_times("a", 0.5)
    assert low_times == [(0.0, 60.0), (120.0, 240.0)]
    board = LowSignalStart(ALWAYS_AVAILABLE, low_times)
    assert [board.next_available_s(at_s) for at_s in (0.0, 59.0, 60.0, 150.0, 240.0)] == [0.0, 59.0, 120.0, 150.0, None]
    assert board.available_until_s(30.0) == np.inf
    away = LowSignalStart(TracedAvailability([(50.0, 70.0), (230.0, 300.0)]), low_times)
    assert [away.next_available_s(at_s) for at_s in (0.0, 55.0, 61.0, 235.0, 241.0)] == [50.0, 55.0, 230.0, 235.0, None]
    assert away.available_until_s(55.0) == 70.0
    assert a_signal(1.0).find_low_times("a", 1.0) == [(0.0, np.inf)]
