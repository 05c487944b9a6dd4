"""Boards that take no part: what they draw, their batteries, and the clock moving on while nobody can be asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from fedge.errors import RunFailed
from fedge.fleetsim import battery
from fedge.fleetsim.battery import Charge
from fedge.telemetry.rows import EventRow
from server.checkpoint import History, Progress
from server.reach import Reach, idle_w_of


@dataclass(frozen=True, slots=True, eq=False)
class Awake:
    """A run at a time at which somebody can be asked, and what the boards drew while nobody could."""

    progress: Progress
    waited_j: float = 0.0
    events: tuple[EventRow, ...] = ()


def awake(reach: Reach, progress: Progress) -> Awake:
    """Move the clock to the first time at which a board can be asked; raises ``RunFailed`` when none ever can."""
    at_s = reach.next_s(progress)
    number = progress.round + 1
    if at_s is None:
        raise RunFailed(f"round {number}: no board can be asked, now or later; all are away for good, or too empty")
    if at_s == progress.clock_s:
        return Awake(progress)
    waited_s = at_s - progress.clock_s
    event = EventRow(at_s, number, None, "waited", f"nobody could be asked for {waited_s:.1f} s")
    rested, waited_j = rest(reach, progress, reach.names, at_s)
    return Awake(dataclasses.replace(rested, clock_s=at_s), waited_j, (event,))


def rest(reach: Reach, progress: Progress, names: Iterable[str], until_s: float) -> tuple[Progress, float]:
    """The batteries of boards that rest until ``until_s``, from the clock on or from when they are free; their joules.

    A board rests at the idle power that it last told, also when it cannot be reached; one whose battery is empty draws
    no more than what charges it.
    """
    charges = reach.charges(progress.histories)
    histories, joules = dict(progress.histories), 0.0
    for name in names:
        history = histories.get(name, History())
        seconds = max(0.0, until_s - max(progress.clock_s, history.free_at_s))
        charge = charges.get(name)
        drawn_j = payable_j(idle_w_of(progress, name) * seconds, seconds, charge)
        if charge is not None:
            histories[name] = dataclasses.replace(history, charge_j=battery.after(charge, drawn_j, seconds).left_j)
        joules += drawn_j
    return dataclasses.replace(progress, histories=histories), joules


def payable_j(wanted_j: float, seconds: float, charge: Charge | None) -> float:
    """The joules that a board draws in ``seconds`` that would take ``wanted_j`` if its battery lasted; None: mains."""
    return wanted_j if charge is None else min(wanted_j, charge.left_j + charge.spec.charging_w * seconds)
