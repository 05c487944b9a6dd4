"""Which boards can be asked at a fleet time, until when each is there, and when the next one can be asked; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedge.experiment import Board, Experiment, boards
from fedge.fleetsim import battery
from fedge.fleetsim.availability import Presence, presences
from fedge.fleetsim.battery import Charge
from server.checkpoint import History, Progress


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """The fleet's boards in the order of the YAML, and when each is there."""

    boards: tuple[Board, ...]
    presences: Mapping[str, Presence]

    @property
    def names(self) -> tuple[str, ...]:
        """All boards."""
        return tuple(board.name for board in self.boards)

    def available(self, progress: Progress) -> tuple[str, ...]:
        """The boards that can be asked now: free, there, and with enough in their battery."""
        return tuple(board.name for board in self.boards if self._ready_s(progress, board) == progress.clock_s)

    def next_s(self, progress: Progress) -> float | None:
        """The first fleet time, now or later, at which a board can be asked; None when there is none ever again."""
        times = (self._ready_s(progress, board) for board in self.boards)
        return min((time for time in times if time is not None), default=None)

    def leaves_s(self, at_s: float) -> dict[str, float]:
        """When each board that is there at ``at_s`` goes away, of those that ever do."""
        until_s = {name: presence.until_s(at_s) for name, presence in self.presences.items()}
        return {name: time_s for name, time_s in until_s.items() if math.isfinite(time_s)}

    def charges(self, histories: Mapping[str, History]) -> dict[str, Charge]:
        """The batteries of the boards that have one."""
        pairs = ((board, charge_of(board, histories.get(board.name))) for board in self.boards)
        return {board.name: charge for board, charge in pairs if charge is not None}

    def _ready_s(self, progress: Progress, board: Board) -> float | None:
        """The first fleet time from the clock on at which ``board`` can be asked."""
        history = progress.histories.get(board.name, History())
        from_s = max(progress.clock_s, history.free_at_s)
        charge = charge_of(board, history)
        if charge is None:
            return self.presences[board.name].next_s(from_s)
        idle_w = idle_w_of(progress, board.name)
        rest_s = battery.enough_in_s(charge, idle_w)
        at_s = None if rest_s is None else self.presences[board.name].next_s(from_s + rest_s)
        if at_s is None or not battery.enough(battery.after(charge, idle_w * (at_s - from_s), at_s - from_s)):
            return None
        return at_s


def reach_of(experiment: Experiment) -> Reach:
    """The reach of an experiment's fleet; raises ``BadInput`` for a trace that cannot be used."""
    every = boards(experiment)
    return Reach(every, presences(experiment, every))


def charge_of(board: Board, history: History | None) -> Charge | None:
    """A board's battery as it stands, full as its entry says before the first round; None on mains."""
    spec = board.entry.battery
    if spec is None:
        return None
    left_j = None if history is None else history.charge_j
    return battery.at_start(spec) if left_j is None else Charge(spec, left_j)


def idle_w_of(progress: Progress, board: str) -> float:
    """A board's idle power as it last told; 0 before it told any."""
    front = progress.fronts.get(board)
    return 0.0 if front is None else front.idle_w
