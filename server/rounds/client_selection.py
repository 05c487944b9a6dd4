"""Selection: what the server knows of every board that can be asked, the selector's choice, and how many must reply."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedge.decisions.planning import BUDGET_POLICY
from fedge.decisions.selection import load_selector
from fedge.devices import catalogue
from fedge.devices.emulated_board import build_thermal_model
from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetBoard
from fedge.seeds import make_generator
from fedge.types import ClientStatus, SelectionContext, SelectionResult
from server.state.checkpoint import ClientHistory, RunState
from server.state.fleet_availability import FleetAvailability, get_charge, get_idle_w

SELECTION_EVENT = "selection"
"""The kind of event that holds what a selector has to say of its choice."""


@dataclass(frozen=True, slots=True)
class RoundSelection:
    """The boards of a round in the fleet's order, how many replies are enough (None: all), and the selector's words.

    ``available`` is how many could have been chosen.
    """

    boards: tuple[str, ...]
    wanted: int | None
    selected: SelectionResult
    available: int


def select_clients(experiment: Experiment, reach: FleetAvailability, progress: RunState) -> RoundSelection:
    """Who takes part in the next round, of the boards that can be asked now; pure.

    Raises ``RunFailed`` when the selector names a board that was not offered, or none without an energy budget.
    """
    number, spec = progress.round + 1, experiment.selection
    offered = reach.available(progress)
    call = SelectionContext(
        number,
        count=count_asked_boards(experiment, len(offered)),
        options=spec.options,
        memory=progress.selection,
        policy=experiment.policy.name,
        limits=compute_limits(experiment, progress),
    )
    clients = build_candidates(reach, progress, offered)
    selected = load_selector(spec.name)(clients, call, make_generator(experiment.seed, number, "select"))
    unknown = sorted(set(selected.boards) - set(offered))
    if unknown:
        raise RunFailed(f"round {number}: selection {spec.name} chose {unknown[0]}, which could not be asked")
    taken = tuple(name for name in offered if name in set(selected.boards))
    if not taken and experiment.policy.name != BUDGET_POLICY:
        raise RunFailed(f"round {number}: selection {spec.name} chose no board; {selected.why or 'it gave no reason'}")
    return RoundSelection(taken, _count_wanted_replies(experiment, taken), selected, len(offered))


def count_asked_boards(experiment: Experiment, offered: int) -> int:
    """How many boards are to be asked: the count times the over-commitment, at most all that were offered."""
    spec = experiment.selection
    return offered if spec.count is None else min(offered, math.ceil(spec.count * spec.over_commit - 1e-9))


def _count_wanted_replies(experiment: Experiment, taken: Sequence[str]) -> int | None:
    spec = experiment.selection
    return None if spec.count is None or len(taken) <= spec.count or spec.over_commit == 1.0 else spec.count


def compute_limits(experiment: Experiment, progress: RunState) -> dict[str, float]:
    """The policy's own numbers; with an energy budget also what is spent and how many rounds are left."""
    limits = experiment.policy.limits
    if "budget_j" in limits:
        limits |= {"spent_j": progress.spent_j, "rounds_left": float(experiment.rounds - progress.round)}
    return limits


def build_candidates(reach: FleetAvailability, progress: RunState, names: Sequence[str]) -> list[ClientStatus]:
    """What is known of the boards in ``names``, in the fleet's order."""
    wanted: Mapping[str, FleetBoard] = {board.name: board for board in reach.boards}
    return [_build_candidate(wanted[name], progress) for name in names]


def _build_candidate(board: FleetBoard, progress: RunState) -> ClientStatus:
    history = progress.histories.get(board.name, ClientHistory())
    charge = get_charge(board, history)
    return ClientStatus(
        board.name,
        front=progress.fronts.get(board.name),
        samples=history.samples,
        loss=history.loss,
        accuracy=history.accuracy,
        busy_s=history.busy_s,
        last_round=history.last_round,
        rounds=history.rounds,
        charge=None if charge is None else charge.share,
        charge_j=None if charge is None else charge.left_j,
        temperature_c=estimate_temperature_c(board, progress),
    )


def estimate_temperature_c(board: FleetBoard, progress: RunState) -> float | None:
    """What its temperature has come to since it last worked, resting; None before it told any."""
    state = progress.states.get(board.name)
    if state is None or state.temperature_c is None:
        return None
    thermal = build_thermal_model(catalogue.find(board.entry.device), board.entry.ambient_c)
    rested_s = max(0.0, progress.clock_s - state.rested_at_s)
    return thermal.temperature_after_c(state.temperature_c, get_idle_w(progress, board.name), rested_s)
