"""A board can be asked when it is free, there, and charged enough; the next such time is found."""

import pytest
from contracts.reports import IDLE_W, front

from fedge.devices.battery import BatteryCharge, draw_idle
from fedge.errors import RunFailed
from fedge.experiment import (
    AvailabilitySpec,
    BatterySpec,
    Experiment,
    FleetEntry,
    ModSpec,
    SelectionSpec,
    SignalSpec,
    StrategySpec,
    WorkloadSpec,
)
from server.state.checkpoint import ClientHistory, FleetState
from server.state.fleet_availability import (
    FleetAvailability,
    advance_to_available,
    build_availability,
    charge_idle_clients,
)


def fleet(clock_s: float, **histories: ClientHistory) -> FleetState:
    names = {name.replace("_", "-"): history for name, history in histories.items()}
    return FleetState(clock_s, fronts=dict.fromkeys(("nano-1", "nano-2"), front()), histories=names)


def next_s(availability: FleetAvailability, known: FleetState) -> float | None:
    """The first time at which any board can be asked."""
    return min(availability.next_times_s(known).values(), default=None)


def availability(**entry: object) -> FleetAvailability:
    return build_availability(Experiment(fleet=(FleetEntry(device="nano", count=2, **entry),)))


def test_a_busy_board_can_be_asked_when_it_is_free():
    busy = fleet(5.0, nano_1=ClientHistory(free_at_s=9.0), nano_2=ClientHistory(free_at_s=7.0))

    assert availability().available(busy) == ()
    assert next_s(availability(), busy) == 7.0


def test_the_next_time_is_when_a_free_board_is_there(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("board,on_s,off_s\nnano-1,0,10\nnano-1,40,50\nnano-2,20,25\n")
    traced = availability(availability=AvailabilitySpec(trace=str(path)))

    assert traced.available(fleet(5.0)) == ("nano-1",)
    assert traced.departure_times_s(5.0) == {"nano-1": 10.0, "nano-2": 5.0}
    assert next_s(traced, fleet(12.0)) == 20.0
    assert next_s(traced, fleet(12.0, nano_2=ClientHistory(free_at_s=25.0))) == 40.0
    assert next_s(traced, fleet(50.0)) is None


def test_a_fedzero_like_round_waits_for_a_zone_of_low_signal(tmp_path):
    path = tmp_path / "carbon.csv"
    path.write_text("at_s,north,south\n0,500,300\n100,100,300\n200,500,100\n300,500,500\n")
    entries = (FleetEntry(device="nano", zone="north"), FleetEntry(device="nano", name="b", zone="south"))
    spec = SelectionSpec(name="fedzero-like", options={"threshold": 0.5})
    waiting = build_availability(Experiment(fleet=entries, signal=SignalSpec(trace=str(path)), selection=spec))

    assert waiting.available(fleet(0.0)) == ()
    assert advance_to_available(waiting, fleet(0.0), 1).fleet.clock_s == 100.0
    assert waiting.available(fleet(150.0)) == ("nano-1",)
    assert waiting.departure_times_s(150.0) == {}
    assert waiting.available(fleet(200.0)) == ("b-1",)
    with pytest.raises(RunFailed, match=r"no board can be asked, now or later; .* above the threshold of fedzero-like"):
        advance_to_available(waiting, fleet(300.0), 1)


def test_what_idle_boards_draw_costs_the_mean_of_their_zone_over_their_rest(tmp_path):
    path = tmp_path / "carbon.csv"
    path.write_text("at_s,north\n0,100\n60,300\n")
    priced = build_availability(
        Experiment(fleet=(FleetEntry(device="nano", count=2),), signal=SignalSpec(trace=str(path)))
    )
    _, drawn = charge_idle_clients(priced, fleet(30.0, nano_2=ClientHistory(free_at_s=60.0)), priced.names, 90.0)

    assert drawn.joules == pytest.approx(IDLE_W * 90.0)
    assert drawn.cost == pytest.approx(IDLE_W * (60.0 * 200.0 + 30.0 * 300.0) / 3.6e6)


def test_a_battery_below_its_floor_is_charged_first_or_never():
    half_full = ClientHistory(charge_j=18_000.0)
    both = {"nano_1": half_full, "nano_2": half_full}
    charging = availability(battery=BatterySpec(capacity_wh=10.0, floor=0.6, charging_w=IDLE_W + 3.0))
    alone = availability(battery=BatterySpec(capacity_wh=10.0, floor=0.6))

    assert charging.available(fleet(5.0, **both)) == ()
    assert next_s(charging, fleet(5.0, **both)) == pytest.approx(5.0 + 3_600.0 / 3.0)
    assert next_s(alone, fleet(5.0, **both)) is None


def test_a_battery_that_idles_away_before_its_board_is_there_again_does_not_count(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("board,on_s,off_s\nnano-1,5000,\nnano-2,9000,\n")
    battery = BatterySpec(capacity_wh=10.0, floor=0.6)
    traced = availability(availability=AvailabilitySpec(trace=str(path)), battery=battery)

    # Full at first; at 2 W it takes 7,200 s down to the floor.
    assert next_s(traced, fleet(0.0)) == 5_000.0
    assert traced.available(fleet(0.0)) == ()
    low = {"nano_1": ClientHistory(charge_j=1.0), "nano_2": ClientHistory(charge_j=21_700.0)}
    assert next_s(traced, fleet(5_001.0, **low)) is None


PROXIMAL = StrategySpec(name="FedProx", options={"proximal_mu": 0.1})


@pytest.mark.parametrize(
    "changed",
    [
        {"fleet": {"width": 0.5}},
        {"fleet": {"memory_mb": 4000.0}},
        {"fleet": {"cost": "vit-b16-cifar10"}},
        {"mods": ()},
        {"strategy": StrategySpec(name="FedProx", options={"proximal_mu": 0.0})},
        {"workload": WorkloadSpec(mixed_precision=True)},
        {"workload": WorkloadSpec(optimizer_state=0.0)},
    ],
)
def test_a_board_on_which_nothing_fits_is_asked_again_once_that_may_have_changed(changed):
    entry = FleetEntry(device="nano", name="nano", count=2)
    before = Experiment(fleet=(entry,), mods=(ModSpec(name="fixedclipping_mod"),), strategy=PROXIMAL)
    left_out = ClientHistory(unfit_terms=build_availability(before).memory_terms["nano-1"])
    update = {"fleet": (entry.model_copy(update=changed["fleet"]),)} if "fleet" in changed else changed

    assert build_availability(before).available(fleet(5.0, nano_1=left_out)) == ("nano-2",)
    asked = build_availability(before.model_copy(update=update)).available(fleet(5.0, nano_1=left_out))
    assert asked == ("nano-1", "nano-2")


BATTERY = BatterySpec(capacity_wh=1.0, floor=0.5, charging_w=0.5)
MAINS = build_availability(Experiment(fleet=(FleetEntry(device="nano"), FleetEntry(device="tx2"))))
NEW = ClientHistory()


def idle_fleet(clock_s: float, nano: ClientHistory = NEW, tx2: ClientHistory = NEW) -> FleetState:
    fronts = dict.fromkeys(("nano-1", "tx2-1"), front())
    return FleetState(clock_s, fronts=fronts, histories={"nano-1": nano, "tx2-1": tx2})


def test_a_board_rests_from_when_it_is_free():
    _, drawn = charge_idle_clients(
        MAINS, idle_fleet(10.0, ClientHistory(free_at_s=60.0), ClientHistory(free_at_s=500.0)), MAINS.names, 110.0
    )

    assert drawn.joules == pytest.approx(IDLE_W * 50.0)


def test_mains_pay_for_everything_and_a_battery_for_what_is_in_it_and_charges_it():
    full, low = BatteryCharge(BATTERY, 500.0), BatteryCharge(BATTERY, 30.0)

    assert draw_idle(None, 2.0, 100.0) == (200.0, None)
    assert draw_idle(full, 2.0, 100.0) == (200.0, BatteryCharge(BATTERY, 500.0 - 200.0 + 0.5 * 100.0))
    assert draw_idle(low, 2.0, 100.0) == (30.0 + 0.5 * 100.0, BatteryCharge(BATTERY, 0.0))


def test_the_clock_moves_to_when_the_first_board_is_free():
    busy = idle_fleet(10.0, ClientHistory(free_at_s=60.0), ClientHistory(free_at_s=30.0))
    advance = advance_to_available(MAINS, busy, 4)

    assert advance.fleet.clock_s == 30.0
    assert advance.waited.joules == 0.0
    assert [(event.at_s, event.round, event.kind) for event in advance.events] == [(30.0, 4, "waited")]


def test_when_no_board_ever_can_the_run_fails():
    alone = build_availability(
        Experiment(fleet=(FleetEntry(device="nano", battery=BatterySpec(capacity_wh=1.0, floor=0.5)),))
    )
    with pytest.raises(RunFailed, match="round 4: no board can be asked"):
        advance_to_available(alone, idle_fleet(10.0, ClientHistory(charge_j=10.0)), 4)
