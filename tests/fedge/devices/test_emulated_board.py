"""An emulated board is a device, and it warms up, heats, throttles and rests as one."""

import math

import numpy as np
import pytest
from contracts.device import WORK, DeviceContract
from hypothesis import given
from hypothesis import strategies as st

from fedge.devices import catalogue
from fedge.devices.emulated_board import SWITCH_S, WARM_UP_STEPS, EmulatedBoard, find_top_mode, mode_change_s
from fedge.devices.mode_surface import ModeSurface
from fedge.devices.thermal_model import TRIP_C, ThermalModel
from fedge.types import Measurement, Modes, PowerMode

SLOW, FAST = PowerMode(2, 1132.8, 460.8, 800.0), PowerMode(4, 1479.0, 921.6, 1600.0)
SURFACE = ModeSurface(
    Modes(np.array([[2, 1132.8, 460.8, 800.0], [4, 1479.0, 921.6, 1600.0]])),
    step_s=np.array([2.0, 1.0]),
    power_w=np.array([4.0, 9.0]),
    idle_w=np.array([1.0, 1.5]),
)
COOL = ThermalModel(kelvin_per_w=4.5, ambient_c=25.0)


def board(seed: int = 1, thermal: ThermalModel = COOL, temperature_c: float = 25.0) -> EmulatedBoard:
    return EmulatedBoard(catalogue.find("nano"), SURFACE, thermal, temperature_c, np.random.default_rng(seed))


class TestEmulatedBoard(DeviceContract):
    modes = (FAST, SLOW)

    @pytest.fixture
    def device(self) -> EmulatedBoard:
        return board()


def test_it_is_found_in_its_fastest_mode():
    assert board().mode == FAST == find_top_mode(SURFACE)


def test_a_mode_that_it_does_not_have_is_refused_and_nothing_changes():
    device = board()
    with pytest.raises(LookupError), device.use_mode(PowerMode(3, 1479.0, 921.6, 1600.0)):
        pass

    assert device.mode == FAST


def test_over_many_measurements_the_mean_is_the_truth_without_warm_up():
    device = board()
    steps = 20
    times, powers = [], []
    for _ in range(400):
        device.temperature_c = 25.0
        measured = device.measure(WORK, steps, lambda _: None)
        times.append(measured.step_s)
        powers.append(measured.power_w)

    assert np.median(times) == pytest.approx(1.0, rel=0.002)
    assert np.median(powers) == pytest.approx(9.0, rel=0.002)
    assert 0.004 < np.std(np.log(times)[np.array(times) < 1.05]) < 0.015


def test_only_a_board_s_first_work_warms_up_and_it_counts_as_time_and_energy():
    device = board()
    first, second = (device.measure(WORK, 20, lambda _: None) for _ in range(2))

    assert first.warm_up_s == pytest.approx(WARM_UP_STEPS * first.step_s)
    assert first.work_s == pytest.approx((20 + WARM_UP_STEPS) * first.step_s)
    assert first.work_j == pytest.approx(first.work_s * first.power_w)
    assert second.warm_up_s == 0.0


def parts(device: EmulatedBoard, *modes: PowerMode) -> list[Measurement]:
    """One round of five minibatches in each of the modes in turn."""
    seen = []
    for mode in modes:
        with device.use_mode(mode):
            seen.append(device.measure(WORK, 5, lambda _: None))
    return seen


def test_each_change_of_mode_in_the_middle_of_the_work_costs_its_time_once():
    seen = parts(board(), SLOW, SLOW, FAST, FAST, SLOW)

    change_s = mode_change_s(SLOW, FAST)
    assert change_s > 0.0
    assert [part.switch_s for part in seen] == [None, None, change_s, None, change_s]
    assert [part.warm_up_s > 0.0 for part in seen] == [True, False, False, False, False]
    for part in seen:
        assert part.work_s == pytest.approx(5 * part.step_s + part.warm_up_s + (part.switch_s or 0.0))


def test_heating_counts_the_warm_up_and_the_change_of_mode():
    device = board()
    for mode in (SLOW, FAST):
        before_c = device.temperature_c
        (part,) = parts(device, mode)
        assert part.work_s > 5 * part.step_s
        assert device.temperature_c == pytest.approx(COOL.temperature_after_c(before_c, part.power_w, part.work_s))


boards = st.builds(
    board,
    st.integers(0, 9999),
    st.sampled_from([COOL, ThermalModel(9.0, 40.0)]),
    st.sampled_from([25.0, 90.0, TRIP_C - 0.5, TRIP_C]),
)


@given(boards, st.integers(1, 400), st.floats(-5.0, 500.0), st.booleans())
def test_work_with_a_limit_is_never_longer_and_at_least_one_minibatch(device, steps, limit_s, changed):
    """Heat, warm-up and the change of mode count; as many minibatches as fit are done."""
    if changed:
        parts(device, SLOW)
    done: list[int] = []

    seen = device.measure(WORK, steps, done.append, limit_s)

    assert done == [seen.steps]
    assert 1 <= seen.steps <= steps
    assert seen.work_s <= limit_s * (1 + 1e-9) or seen.steps == 1
    assert seen.steps == steps or seen.work_s + 1.3 * seen.step_s >= limit_s, "another minibatch would have fitted"


@given(st.integers(0, 9999), st.floats(1.0, 1e6))
def test_a_limit_that_is_long_enough_changes_nothing(seed, more_s):
    free = board(seed).measure(WORK, 20, lambda _: None)

    assert board(seed).measure(WORK, 20, lambda _: None, free.work_s + more_s) == free


def test_throttling_slows_the_warm_up_as_much_as_the_steps():
    hot = board(thermal=ThermalModel(9.0, 40.0), temperature_c=TRIP_C)
    measured = hot.measure(WORK, 20, lambda _: None)

    assert measured.throttled
    assert measured.warm_up_s == pytest.approx(WARM_UP_STEPS * measured.step_s)


def test_outliers_are_rare_and_slow():
    device = board()
    slow = 0
    for _ in range(2000):
        device.temperature_c = 25.0
        slow += device.measure(WORK, 100, lambda _: None).step_s > 1.1

    assert 5 <= slow <= 45


def test_work_heats_towards_the_settled_temperature_and_rest_cools():
    device = board()
    device.measure(WORK, 5000, lambda _: None)
    assert device.temperature_c == pytest.approx(25.0 + 4.5 * 9.0, abs=1.5)

    device.idle_for(1e6, FAST)
    assert device.temperature_c == pytest.approx(25.0 + 4.5 * 1.5, abs=0.1)


def test_past_the_trip_point_it_throttles_and_says_so():
    hot = board(thermal=ThermalModel(9.0, 40.0), temperature_c=90.0)
    measured = hot.measure(WORK, 2000, lambda _: None)
    cool = board(thermal=COOL).measure(WORK, 2000, lambda _: None)

    assert measured.throttled
    assert not cool.throttled
    assert measured.step_s > 1.1 * cool.step_s
    assert measured.power_w < cool.power_w
    assert hot.temperature_c <= TRIP_C


def test_the_time_to_a_temperature_agrees_with_the_temperature_after_that_time():
    thermal = ThermalModel(9.0, 40.0)
    seconds = thermal.seconds_until(97.0, 50.0, 9.0)

    assert thermal.temperature_after_c(50.0, 9.0, seconds) == pytest.approx(97.0)
    assert thermal.seconds_until(97.0, 98.0, 9.0) == 0.0
    assert math.isinf(thermal.seconds_until(97.0, 50.0, 1.0))


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
def test_every_knob_that_changes_has_its_price_and_cores_one_each(after, seconds):
    assert mode_change_s(MODE, after) == pytest.approx(seconds)
    assert mode_change_s(after, MODE) == pytest.approx(seconds)


def test_prices_are_labelled_estimated_with_their_source():
    assert {price.label for price in SWITCH_S.values()} == {"estimated"}
    assert all(price.source for price in SWITCH_S.values())
