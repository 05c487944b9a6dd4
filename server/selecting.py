"""Selection: what the server knows of every board that can be asked, the selector's choice, and how many must reply."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedge.devices import catalogue
from fedge.devices.emulated import thermal_of
from fedge.errors import RunFailed
from fedge.experiment import Board, Experiment
from fedge.planning import BUDGETED
from fedge.seeds import generator
from fedge.selection import selector_for
from fedge.types import Call, Client, Selected
from server.checkpoint import History, Progress
from server.reach import Reach, charge_of, idle_w_of

SELECTION = "selection"
"""The kind of event that holds what a selector has to say of its choice."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The boards of a round in the fleet's order, how many replies are enough (None: all), and the selector's words.

    ``available`` is how many could have been chosen.
    """

    boards: tuple[str, ...]
    wanted: int | None
    selected: Selected
    available: int


def choose(experiment: Experiment, reach: Reach, progress: Progress) -> Chosen:
    """Who takes part in the next round, of the boards that can be asked now; pure.

    Raises ``RunFailed`` when the selector names a board that was not offered, or none without an energy budget.
    """
    number, spec = progress.round + 1, experiment.selection
    offered = reach.available(progress)
    call = Call(
        number,
        asked_count(experiment, len(offered)),
        spec.options,
        progress.selection,
        experiment.policy.name,
        limits_of(experiment, progress),
    )
    clients = clients_of(reach, progress, offered)
    selected = selector_for(spec.name)(clients, call, generator(experiment.seed, number, "select"))
    unknown = sorted(set(selected.boards) - set(offered))
    if unknown:
        raise RunFailed(f"round {number}: selection {spec.name} chose {unknown[0]}, which could not be asked")
    taken = tuple(name for name in offered if name in set(selected.boards))
    if not taken and experiment.policy.name != BUDGETED:
        raise RunFailed(f"round {number}: selection {spec.name} chose no board; {selected.why or 'it gave no reason'}")
    return Chosen(taken, _wanted(experiment, taken), selected, len(offered))


def asked_count(experiment: Experiment, offered: int) -> int:
    """How many boards are to be asked: the count times the over-commitment, at most all that were offered."""
    spec = experiment.selection
    return offered if spec.count is None else min(offered, math.ceil(spec.count * spec.over_commit - 1e-9))


def _wanted(experiment: Experiment, taken: Sequence[str]) -> int | None:
    spec = experiment.selection
    return None if spec.count is None or len(taken) <= spec.count or spec.over_commit == 1.0 else spec.count


def limits_of(experiment: Experiment, progress: Progress) -> dict[str, float]:
    """The policy's own numbers; with an energy budget also what is spent and how many rounds are left."""
    limits = experiment.policy.limits
    if "budget_j" in limits:
        limits |= {"spent_j": progress.spent_j, "rounds_left": float(experiment.rounds - progress.round)}
    return limits


def clients_of(reach: Reach, progress: Progress, names: Sequence[str]) -> list[Client]:
    """What is known of the boards in ``names``, in the fleet's order."""
    wanted: Mapping[str, Board] = {board.name: board for board in reach.boards}
    return [_client(wanted[name], progress) for name in names]


def _client(board: Board, progress: Progress) -> Client:
    history = progress.histories.get(board.name, History())
    charge = charge_of(board, history)
    return Client(
        board.name,
        progress.fronts.get(board.name),
        history.samples,
        history.loss,
        history.accuracy,
        history.busy_s,
        history.last_round,
        history.rounds,
        None if charge is None else charge.share,
        None if charge is None else charge.left_j,
        temperature_now_c(board, progress),
    )


def temperature_now_c(board: Board, progress: Progress) -> float | None:
    """What its temperature has come to since it last worked, resting; None before it told any."""
    state = progress.states.get(board.name)
    if state is None or state.temperature_c is None:
        return None
    thermal = thermal_of(catalogue.find(board.entry.device), board.entry.ambient_c)
    rested_s = max(0.0, progress.clock_s - state.rested_at_s)
    return thermal.after(state.temperature_c, idle_w_of(progress, board.name), rested_s)
