"""A battery falls by what is drawn and rises by what charges it, within its limits; its floor and its end are found."""

import math

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from fedge.devices import battery
from fedge.devices.battery import Batteries, BatteryCharge
from fedge.experiment import BatterySpec

SPECS = st.builds(
    BatterySpec,
    capacity_wh=st.floats(0.01, 5.0),
    charge=st.floats(0.05, 1.0),
    charging_w=st.floats(0.0, 20.0),
    floor=st.floats(0.0, 0.9),
)
PHASES = st.lists(st.tuples(st.floats(0.01, 500.0), st.floats(0.0, 30.0)), min_size=1, max_size=6)


def one(left_j: float, charging_w: float = 0.0, floor: float = 0.1) -> Batteries:
    """Of 36 kJ."""
    return of_spec(BatterySpec(capacity_wh=10.0, charging_w=charging_w, floor=floor), left_j)


def of_spec(spec: BatterySpec, left_j: float) -> Batteries:
    return battery.stack_batteries([BatteryCharge(spec, left_j)])


def test_it_begins_with_its_share():
    first = battery.initial_charge(BatterySpec(capacity_wh=10.0, charge=0.5))

    assert (first.left_j, first.capacity_j, first.share) == (18_000.0, 36_000.0, 0.5)


def test_it_falls_by_what_is_drawn_and_rises_by_what_charges():
    assert one(10_000.0, charging_w=2.0).update(500.0, 100.0).left_j.tolist() == [9_700.0]


@given(SPECS, st.floats(0.0, 1e6), st.floats(0.0, 1e5))
def test_it_is_never_below_empty_nor_above_full(spec, spent_j, seconds):
    left = battery.stack_batteries([battery.initial_charge(spec)]).update(spent_j, seconds)

    assert 0.0 <= left.left_j[0] <= left.capacity_j[0]


def test_below_its_floor_and_empty_it_is_not_enough():
    assert one(3_600.0).mask_sufficient()[0]
    assert not one(3_599.0).mask_sufficient()[0]
    assert not one(0.0, floor=0.0).mask_sufficient()[0]
    assert one(1.0, floor=0.0).mask_sufficient()[0]


@given(SPECS, st.floats(0.0, 1.0), st.floats(0.0, 10.0))
def test_after_the_rest_that_it_asks_for_it_is_enough_and_not_before(spec, share, idle_w):
    now = of_spec(spec, share * battery.initial_charge(spec).capacity_j)
    wait_s = float(now.recharge_time_s(idle_w)[0])
    if math.isinf(wait_s):
        assert not now.mask_sufficient()[0]
        assert not now.update(idle_w * 1e6, 1e6).mask_sufficient()[0]
        return
    assert now.update(idle_w * wait_s, wait_s).mask_sufficient()[0]
    missing_j = now.floor_j[0] - now.left_j[0]
    if missing_j > 1.0:
        assert not now.update(idle_w * wait_s * 0.5, wait_s * 0.5).mask_sufficient()[0]


@given(SPECS, PHASES)
def test_it_is_empty_when_small_steps_say_so(spec, phases):
    now = battery.stack_batteries([battery.initial_charge(spec)])
    columns = [(np.array([seconds]), np.array([watts])) for seconds, watts in phases]
    at_s = float(now.time_to_empty_s(columns)[0])

    left, past_s = now, 0.0
    for seconds, watts in phases:
        for _ in range(200):
            before, part_s = left, seconds / 200
            left = left.update(watts * part_s, part_s)
            gone_j = (watts - spec.charging_w) * part_s - float(before.left_j[0])
            past_s += part_s
            assume(abs(gone_j) > 1e-6)
            if gone_j > 0.0:
                assert past_s - part_s - 1e-6 <= at_s <= past_s + 1e-6
                return
    assert math.isinf(at_s)


@given(SPECS, PHASES)
def test_phases_booked_as_one_period_leave_what_they_leave_one_by_one(spec, phases):
    now = battery.stack_batteries([battery.initial_charge(spec), None])
    columns = [(np.full(2, seconds), np.full(2, watts)) for seconds, watts in phases]
    assume(np.isinf(now.time_to_empty_s(columns)).all())

    one_by_one = now
    for seconds, watts in columns:
        one_by_one = one_by_one.update(watts * seconds, seconds)
    spent_j, seconds = (sum(each) for each in zip(*((s * w, s) for s, w in columns), strict=True))
    booked = now.without_surplus(columns).update(spent_j, seconds)

    np.testing.assert_allclose(booked.left_j, one_by_one.left_j, atol=1e-6)


@given(st.lists(st.tuples(SPECS, st.floats(0.0, 1.0)), min_size=1, max_size=4), st.floats(0.0, 10.0))
def test_a_column_of_batteries_holds_each_of_them_and_mains_never_end(those, idle_w):
    charges = [BatteryCharge(spec, share * battery.initial_charge(spec).capacity_j) for spec, share in those]
    columns = battery.stack_batteries([*charges, None])
    drawn_j, left = columns.draw_idle(idle_w, 60.0)

    assert [battery.draw_idle(charge, idle_w, 60.0)[0] for charge in [*charges, None]] == drawn_j.tolist()
    alone = [battery.draw_idle(charge, idle_w, 60.0)[1] for charge in charges]
    assert [charge.left_j for charge in alone if charge is not None] == left.left_j[:-1].tolist()
    assert (left.left_j[-1], columns.recharge_time_s(idle_w)[-1]) == (math.inf, 0.0)
