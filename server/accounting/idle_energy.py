"""Energy and battery accounting of idle clients, and advancing the clock while no client is available."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from fedge.devices import battery
from fedge.devices.battery import BatteryCharge
from fedge.errors import RunFailed
from fedge.telemetry.store_records import EventRow
from server.state.checkpoint import ClientHistory, RunState
from server.state.fleet_availability import FleetAvailability, get_idle_w


@dataclass(frozen=True, slots=True, eq=False)
class ClockAdvance:
    """The state of a run at a time at which a client is available.

    Attributes:
        progress: The run, with its clock and batteries advanced.
        waited_j: Energy that all boards drew while none was available, in joules.
        events: An event about the wait, if there was one.
    """

    progress: RunState
    waited_j: float = 0.0
    events: tuple[EventRow, ...] = ()


def advance_to_available(reach: FleetAvailability, progress: RunState) -> ClockAdvance:
    """Move the clock to the first time at which a client is available.

    Args:
        reach: Availability of the fleet.
        progress: The run before the round.

    Raises:
        RunFailed: No client will ever be available.
    """
    at_s = reach.next_available_s(progress)
    number = progress.round + 1
    if at_s is None:
        raise RunFailed(f"round {number}: no board can be asked, now or later; all are away for good, or too empty")
    if at_s == progress.clock_s:
        return ClockAdvance(progress)
    waited_s = at_s - progress.clock_s
    event = EventRow(
        at_s, round=number, board=None, kind="waited", message=f"nobody could be asked for {waited_s:.1f} s"
    )
    rested, waited_j = charge_idle_clients(reach, progress, reach.names, at_s)
    return ClockAdvance(dataclasses.replace(rested, clock_s=at_s), waited_j, (event,))


def charge_idle_clients(
    reach: FleetAvailability, progress: RunState, names: Iterable[str], until_s: float
) -> tuple[RunState, float]:
    """Account for clients that idle until ``until_s``, each from the current time or from when its last work ends.

    A board draws the idle power that it last reported, even while it is unreachable. A board with an empty battery
    draws at most its charging power.

    Args:
        reach: Availability of the fleet.
        progress: The run before the idle time; its clock is not advanced.
        names: The idle clients.
        until_s: Simulated time at which the idle time ends.

    Returns:
        The run with updated batteries, and the energy drawn in joules.
    """
    charges = reach.charges(progress.histories)
    histories, joules = dict(progress.histories), 0.0
    for name in names:
        history = histories.get(name, ClientHistory())
        seconds = max(0.0, until_s - max(progress.clock_s, history.free_at_s))
        charge = charges.get(name)
        drawn_j = available_energy_j(get_idle_w(progress, name) * seconds, seconds, charge)
        if charge is not None:
            histories[name] = dataclasses.replace(
                history, charge_j=battery.update_charge(charge, drawn_j, seconds).left_j
            )
        joules += drawn_j
    return dataclasses.replace(progress, histories=histories), joules


def available_energy_j(wanted_j: float, seconds: float, charge: BatteryCharge | None) -> float:
    """Return the energy that a board can draw, limited by its battery.

    Args:
        wanted_j: Energy that the work needs, in joules.
        seconds: Duration, during which the battery is charged.
        charge: The battery, or None for a mains-powered board.
    """
    return wanted_j if charge is None else min(wanted_j, charge.left_j + charge.spec.charging_w * seconds)
