"""Availability of the clients by simulated time and battery, and what they draw while they are idle. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedge.decisions.selection.fedzero import EXCESS_SELECTOR
from fedge.decisions.selection.selector_options import complete_options
from fedge.devices import battery
from fedge.devices.availability import Availability, build_availabilities
from fedge.devices.battery import BatteryCharge
from fedge.devices.energy_signal import (
    NO_ENERGY,
    EnergySignal,
    EnergyUse,
    LowSignalStart,
    book_energy,
    build_signal,
)
from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetBoard, list_boards
from fedge.telemetry.store_records import ClientRow, EventRow
from fedge.types import Front
from server.state.checkpoint import UNKNOWN_CLIENT, ClientHistory, FleetState


@dataclass(frozen=True, slots=True, eq=False)
class FleetAvailability:
    """The boards of the fleet and when each is available.

    Attributes:
        boards: Fleet entries in the order of the YAML file.
        memory_terms: Per board, all of the experiment that decides whether a training step fits into its memory.
        signal: Price or carbon of the boards' energy; None if the experiment has none.
    """

    boards: tuple[FleetBoard, ...]
    presences: Mapping[str, Availability]
    memory_terms: Mapping[str, str] = field(default_factory=dict)
    signal: EnergySignal | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all boards, in the order of the fleet."""
        return tuple(board.name for board in self.boards)

    def exclude(self, busy: Container[str]) -> FleetAvailability:
        """Return the availability of the boards that are not in ``busy``."""
        return replace(self, boards=tuple(board for board in self.boards if board.name not in busy))

    def is_left_out(self, name: str, history: ClientHistory) -> bool:
        """Return whether nothing fit into the board's memory under the terms that still hold."""
        return history.unfit_terms is not None and history.unfit_terms == self.memory_terms.get(name)

    def leave_out(self, rows: Iterable[ClientRow], histories: Mapping[str, ClientHistory]) -> dict[str, ClientHistory]:
        """Return the histories after the clients' ``rows``; boards on which nothing fits are left out from now on."""
        unfit = [row.board for row in rows if row.left_out]
        left_out = {name: replace(histories[name], unfit_terms=self.memory_terms.get(name)) for name in unfit}
        return {**histories, **left_out}

    def next_times_s(self, fleet: FleetState) -> dict[str, float]:
        """Return when each client is next free, present and charged enough, now or later; without those never so."""
        known = ((board, fleet.histories.get(board.name, UNKNOWN_CLIENT)) for board in self.boards)
        clients = [(board, history) for board, history in known if not self.is_left_out(board.name, history)]
        from_s = np.array([max(fleet.clock_s, history.free_at_s) for _, history in clients])
        powered = [row for row, (board, _) in enumerate(clients) if board.entry.battery is not None]
        idle_w = np.array([get_idle_w(fleet.fronts, clients[row][0].name) for row in powered])
        batteries = battery.stack_batteries(get_charge(*clients[row]) for row in powered)
        ready_s = from_s.copy()
        ready_s[powered] += batteries.recharge_time_s(idle_w)
        found = [
            self.presences[board.name].next_available_s(time_s) if math.isfinite(time_s) else None
            for (board, _), time_s in zip(clients, ready_s.tolist(), strict=True)
        ]
        at_s = np.array([math.inf if time_s is None else time_s for time_s in found])
        possible = np.isfinite(at_s)
        # A board that has to wait longer, because it is away, may idle below its floor until then.
        waits_s = np.where(possible, at_s - from_s, 0.0)[powered]
        possible[powered] &= batteries.draw_idle(idle_w, waits_s)[1].mask_sufficient()
        return {clients[row][0].name: float(at_s[row]) for row in np.flatnonzero(possible).tolist()}

    def available(self, fleet: FleetState) -> tuple[str, ...]:
        """Return the clients that can be asked now, in the order of the fleet."""
        return tuple(name for name, time_s in self.next_times_s(fleet).items() if time_s == fleet.clock_s)

    def departure_times_s(self, at_s: float) -> dict[str, float]:
        """Return when each client that is present at ``at_s`` becomes unavailable, unless it never does."""
        until_s = {name: presence.available_until_s(at_s) for name, presence in self.presences.items()}
        return {name: time_s for name, time_s in until_s.items() if math.isfinite(time_s)}

    def charges(self, fleet: FleetState) -> dict[str, BatteryCharge]:
        """Return the batteries of the boards that have one."""
        pairs = ((board, get_charge(board, fleet.histories.get(board.name))) for board in self.boards)
        return {board.name: charge for board, charge in pairs if charge is not None}


def build_availability(experiment: Experiment) -> FleetAvailability:
    """Build the availability of an experiment's fleet.

    Raises:
        BadInput: An availability trace, or the signal, is invalid.
    """
    every, signal, selection = list_boards(experiment), build_signal(experiment), experiment.selection
    terms = {board.name: describe_memory_terms(experiment, board) for board in every}
    presences = build_availabilities(experiment, every)
    if selection.name == EXCESS_SELECTOR and signal is not None:
        threshold = complete_options(selection.name, selection.options)["threshold"]
        low_times = {name: signal.find_low_times(name, threshold) for name in presences}
        presences = {name: LowSignalStart(presence, low_times[name]) for name, presence in presences.items()}
    return FleetAvailability(every, presences, terms, signal)


def describe_memory_terms(experiment: Experiment, board: FleetBoard) -> str:
    """Return as text what decides whether a training step fits into a board's memory; equal texts, equal terms."""
    entry = board.entry.model_dump(include={"device", "memory_mb", "cost", "width", "serving"})
    of_step = {"task", "cost", "batch_size", "network", "memory", "mixed_precision", "optimizer_state"}
    workload, strategy = experiment.workload.model_dump(include=of_step), experiment.strategy.model_dump()
    return json.dumps([entry, workload, strategy, [mod.name for mod in experiment.mods]])


def get_charge(board: FleetBoard, history: ClientHistory | None) -> BatteryCharge | None:
    """Return a board's battery: as in its fleet entry before the first round; None on mains."""
    spec = board.entry.battery
    if spec is None:
        return None
    left_j = None if history is None else history.charge_j
    return battery.initial_charge(spec) if left_j is None else BatteryCharge(spec, left_j)


def get_idle_w(fronts: Mapping[str, Front], board: str) -> float:
    """Return the idle power that a client last reported, in watts; 0 before its first report."""
    front = fronts.get(board)
    return 0.0 if front is None else front.idle_w


@dataclass(frozen=True, slots=True, eq=False)
class ClockAdvance:
    """The fleet at a time at which a client is available.

    Attributes:
        waited: Energy that all boards drew while none was available.
    """

    fleet: FleetState
    waited: EnergyUse = NO_ENERGY
    events: tuple[EventRow, ...] = ()


def advance_to_available(availability: FleetAvailability, fleet: FleetState, number: int) -> ClockAdvance:
    """Move the clock to the first time at which a client is available; ``availability`` is of those that are not busy.

    Raises:
        RunFailed: No client will ever be available.
    """
    at_s = min(availability.next_times_s(fleet).values(), default=None)
    if at_s is None:
        why = "all are away for good, too empty, or nothing fits into their memory"
        if any(isinstance(one, LowSignalStart) for one in availability.presences.values()):
            why += f", or their signal stays above the threshold of {EXCESS_SELECTOR}"
        raise RunFailed(f"round {number}: no board can be asked, now or later; {why}")
    if at_s == fleet.clock_s:
        return ClockAdvance(fleet)
    message = f"nobody could be asked for {at_s - fleet.clock_s:.1f} s"
    event = EventRow(at_s, round=number, board=None, kind="waited", message=message)
    return ClockAdvance(*charge_idle_clients(availability, fleet, availability.names, at_s), (event,))


def charge_idle_clients(
    availability: FleetAvailability, fleet: FleetState, names: Iterable[str], until_s: float
) -> tuple[FleetState, EnergyUse]:
    """Move the clock to ``until_s``; the clients ``names`` idle from now or from when their last work ends.

    A board draws the idle power that it last reported, even while it is unreachable. A board with an empty battery
    draws at most its charging power.

    Returns:
        The clients at ``until_s`` with updated batteries, and the energy that the idle ones drew.
    """
    names = tuple(names)
    charges = availability.charges(fleet)
    histories = dict(fleet.histories)
    known = [histories.get(name, UNKNOWN_CLIENT) for name in names]
    from_s = [min(until_s, max(fleet.clock_s, history.free_at_s)) for history in known]
    seconds = until_s - np.array(from_s)
    idle_w = np.array([get_idle_w(fleet.fronts, name) for name in names])
    drawn_j, left = battery.stack_batteries(charges.get(name) for name in names).draw_idle(idle_w, seconds)
    for name, history, left_j in zip(names, known, left.left_j.tolist(), strict=True):
        if name in charges:
            histories[name] = replace(history, charge_j=left_j)
    joules, begins_s = (dict(zip(names, values, strict=True)) for values in (drawn_j.tolist(), from_s))
    drawn = book_energy(availability.signal, joules, begins_s, until_s)
    return replace(fleet, clock_s=until_s, histories=histories), drawn
