"""Energy and battery accounting of idle clients, and advancing the clock while no client is available."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from fedge.devices import battery
from fedge.devices.battery import available_energy_j
from fedge.errors import RunFailed
from fedge.telemetry.store_records import EventRow
from server.state.checkpoint import UNKNOWN_CLIENT, FleetState
from server.state.fleet_availability import FleetAvailability, get_idle_w


@dataclass(frozen=True, slots=True, eq=False)
class ClockAdvance:
    """The fleet at a time at which a client is available.

    Attributes:
        waited_j: Energy that all boards drew while none was available, in joules.
    """

    fleet: FleetState
    waited_j: float = 0.0
    events: tuple[EventRow, ...] = ()


def advance_to_available(availability: FleetAvailability, fleet: FleetState, number: int) -> ClockAdvance:
    """Move the clock to the first time at which a client is available; ``availability`` is of those that are not busy.

    Raises:
        RunFailed: No client will ever be available.
    """
    at_s = min(availability.next_times_s(fleet).values(), default=None)
    if at_s is None:
        why = "all are away for good, too empty, or nothing fits into their memory"
        raise RunFailed(f"round {number}: no board can be asked, now or later; {why}")
    if at_s == fleet.clock_s:
        return ClockAdvance(fleet)
    message = f"nobody could be asked for {at_s - fleet.clock_s:.1f} s"
    event = EventRow(at_s, round=number, board=None, kind="waited", message=message)
    return ClockAdvance(*charge_idle_clients(availability, fleet, availability.names, at_s), (event,))


def charge_idle_clients(
    availability: FleetAvailability, fleet: FleetState, names: Iterable[str], until_s: float
) -> tuple[FleetState, float]:
    """Move the clock to ``until_s``; the clients ``names`` idle from now or from when their last work ends.

    A board draws the idle power that it last reported, even while it is unreachable. A board with an empty battery
    draws at most its charging power.

    Returns:
        The clients at ``until_s`` with updated batteries, and the energy that the idle ones drew in joules.
    """
    charges = availability.charges(fleet)
    histories, joules = dict(fleet.histories), 0.0
    for name in names:
        history = histories.get(name, UNKNOWN_CLIENT)
        seconds = max(0.0, until_s - max(fleet.clock_s, history.free_at_s))
        charge = charges.get(name)
        drawn_j = available_energy_j(get_idle_w(fleet.fronts, name) * seconds, seconds, charge)
        if charge is not None:
            left_j = battery.update_charge(charge, drawn_j, seconds).left_j
            histories[name] = dataclasses.replace(history, charge_j=left_j)
        joules += drawn_j
    return dataclasses.replace(fleet, clock_s=until_s, histories=histories), joules
