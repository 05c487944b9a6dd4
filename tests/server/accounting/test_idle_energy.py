"""Boards that rest draw idle power from mains or battery; the clock moves on to the first time somebody is there."""

from __future__ import annotations

import pytest
from contracts.reports import IDLE_W, front

from fedge.devices.battery import BatteryCharge, available_energy_j
from fedge.errors import RunFailed
from fedge.experiment import BatterySpec, Experiment, FleetEntry
from server.accounting.idle_energy import advance_to_available, charge_idle_clients
from server.state.checkpoint import ClientHistory, FleetState
from server.state.fleet_availability import build_availability

BATTERY = BatterySpec(capacity_wh=1.0, floor=0.5, charging_w=0.5)
CHARGED = build_availability(Experiment(fleet=(FleetEntry(device="nano", battery=BATTERY), FleetEntry(device="tx2"))))
MAINS = build_availability(Experiment(fleet=(FleetEntry(device="nano"), FleetEntry(device="tx2"))))
NEW = ClientHistory()


def fleet(clock_s: float, nano: ClientHistory = NEW, tx2: ClientHistory = NEW) -> FleetState:
    fronts = dict.fromkeys(("nano-1", "tx2-1"), front())
    return FleetState(clock_s, fronts=fronts, histories={"nano-1": nano, "tx2-1": tx2})


def test_rest_costs_idle_power_and_batteries_give_it() -> None:
    rested, joules = charge_idle_clients(CHARGED, fleet(10.0), CHARGED.names, 110.0)

    assert joules == pytest.approx(2 * IDLE_W * 100.0)
    assert rested.histories["nano-1"].charge_j == pytest.approx(3_600.0 - (IDLE_W - 0.5) * 100.0)
    assert rested.histories["tx2-1"].charge_j is None


def test_a_board_rests_from_when_it_is_free() -> None:
    _, joules = charge_idle_clients(
        MAINS, fleet(10.0, ClientHistory(free_at_s=60.0), ClientHistory(free_at_s=500.0)), MAINS.names, 110.0
    )

    assert joules == pytest.approx(IDLE_W * 50.0)


def test_an_empty_battery_gives_what_charges_it_and_no_more() -> None:
    rested, joules = charge_idle_clients(CHARGED, fleet(0.0, ClientHistory(charge_j=0.0)), ["nano-1"], 100.0)

    assert joules == pytest.approx(0.5 * 100.0)
    assert rested.histories["nano-1"].charge_j == 0.0


def test_mains_pay_for_everything_and_a_battery_for_what_is_in_it_and_charges_it() -> None:
    assert available_energy_j(200.0, 100.0, None) == 200.0
    assert available_energy_j(200.0, 100.0, BatteryCharge(BATTERY, 500.0)) == 200.0
    assert available_energy_j(200.0, 100.0, BatteryCharge(BATTERY, 30.0)) == 30.0 + 0.5 * 100.0


def test_nothing_happens_while_somebody_can_be_asked() -> None:
    before = fleet(10.0)
    advance = advance_to_available(MAINS, before, 4)

    assert (advance.fleet, advance.waited_j, advance.events) == (before, 0.0, ())


def test_the_clock_moves_to_when_the_first_board_is_free() -> None:
    busy = fleet(10.0, ClientHistory(free_at_s=60.0), ClientHistory(free_at_s=30.0))
    advance = advance_to_available(MAINS, busy, 4)

    assert advance.fleet.clock_s == 30.0
    assert advance.waited_j == 0.0
    assert [(event.at_s, event.round, event.kind) for event in advance.events] == [(30.0, 4, "waited")]


def test_when_no_board_ever_can_the_run_fails() -> None:
    alone = build_availability(
        Experiment(fleet=(FleetEntry(device="nano", battery=BatterySpec(capacity_wh=1.0, floor=0.5)),))
    )
    with pytest.raises(RunFailed, match="round 4: no board can be asked"):
        advance_to_available(alone, fleet(10.0, ClientHistory(charge_j=10.0)), 4)
