"""Boards that take no part: what they draw, their batteries, and the clock moving on while nobody can be asked."""

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
    """A run at a time at which somebody can be asked, and what the boards drew while nobody could."""

    progress: RunState
    waited_j: float = 0.0
    events: tuple[EventRow, ...] = ()


def advance_to_available(reach: FleetAvailability, progress: RunState) -> ClockAdvance:
    """Move the clock to the first time at which a board can be asked; raises ``RunFailed`` when none ever can."""
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
    """The batteries of boards that rest until ``until_s``, from the clock on or from when they are free; their joules.

    A board rests at the idle power that it last told, also when it cannot be reached; one whose battery is empty draws
    no more than what charges it.
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
    """The joules that a board draws in ``seconds`` that would take ``wanted_j`` if its battery lasted; None: mains."""
    return wanted_j if charge is None else min(wanted_j, charge.left_j + charge.spec.charging_w * seconds)
