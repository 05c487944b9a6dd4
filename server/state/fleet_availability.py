"""Which boards can be asked at a fleet time, until when each is there, and when the next one can be asked; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedge.devices import battery
from fedge.devices.availability import Availability, build_availabilities
from fedge.devices.battery import BatteryCharge
from fedge.experiment import Experiment, FleetBoard, list_boards
from server.state.checkpoint import ClientHistory, RunState


@dataclass(frozen=True, slots=True, eq=False)
class FleetAvailability:
    """The fleet's boards in the order of the YAML, and when each is there."""

    boards: tuple[FleetBoard, ...]
    presences: Mapping[str, Availability]

    @property
    def names(self) -> tuple[str, ...]:
        """All boards."""
        return tuple(board.name for board in self.boards)

    def available(self, progress: RunState) -> tuple[str, ...]:
        """The boards that can be asked now: free, there, and with enough in their battery."""
        return tuple(board.name for board in self.boards if self._next_ready_s(progress, board) == progress.clock_s)

    def next_available_s(self, progress: RunState) -> float | None:
        """The first fleet time, now or later, at which a board can be asked; None when there is none ever again."""
        times = (self._next_ready_s(progress, board) for board in self.boards)
        return min((time for time in times if time is not None), default=None)

    def departure_times_s(self, at_s: float) -> dict[str, float]:
        """When each board that is there at ``at_s`` goes away, of those that ever do."""
        until_s = {name: presence.available_until_s(at_s) for name, presence in self.presences.items()}
        return {name: time_s for name, time_s in until_s.items() if math.isfinite(time_s)}

    def charges(self, histories: Mapping[str, ClientHistory]) -> dict[str, BatteryCharge]:
        """The batteries of the boards that have one."""
        pairs = ((board, get_charge(board, histories.get(board.name))) for board in self.boards)
        return {board.name: charge for board, charge in pairs if charge is not None}

    def _next_ready_s(self, progress: RunState, board: FleetBoard) -> float | None:
        """The first fleet time from the clock on at which ``board`` can be asked."""
        history = progress.histories.get(board.name, ClientHistory())
        from_s = max(progress.clock_s, history.free_at_s)
        charge = get_charge(board, history)
        if charge is None:
            return self.presences[board.name].next_available_s(from_s)
        idle_w = get_idle_w(progress, board.name)
        rest_s = battery.recharge_time_s(charge, idle_w)
        at_s = None if rest_s is None else self.presences[board.name].next_available_s(from_s + rest_s)
        if at_s is None or not battery.can_take_part(
            battery.update_charge(charge, idle_w * (at_s - from_s), at_s - from_s)
        ):
            return None
        return at_s


def build_availability(experiment: Experiment) -> FleetAvailability:
    """The reach of an experiment's fleet; raises ``BadInput`` for a trace that cannot be used."""
    every = list_boards(experiment)
    return FleetAvailability(every, build_availabilities(experiment, every))


def get_charge(board: FleetBoard, history: ClientHistory | None) -> BatteryCharge | None:
    """A board's battery as it stands, full as its entry says before the first round; None on mains."""
    spec = board.entry.battery
    if spec is None:
        return None
    left_j = None if history is None else history.charge_j
    return battery.initial_charge(spec) if left_j is None else BatteryCharge(spec, left_j)


def get_idle_w(progress: RunState, board: str) -> float:
    """A board's idle power as it last told; 0 before it told any."""
    front = progress.fronts.get(board)
    return 0.0 if front is None else front.idle_w
