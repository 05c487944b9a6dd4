"""Client selection: the status of every available client, the selector's choice, and how many replies are enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedge.decisions.planning import BUDGET_POLICY
from fedge.decisions.selection import load_selector
from fedge.devices import catalogue
from fedge.devices.thermal_model import build_thermal_model
from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetBoard
from fedge.seeds import make_generator
from fedge.types import ClientStatus, SelectionContext, SelectionResult
from server.state.checkpoint import ClientHistory, RunState
from server.state.fleet_availability import FleetAvailability, get_charge, get_idle_w

SELECTION_EVENT = "selection"
"""Kind of the event that holds the selector's reason."""


@dataclass(frozen=True, slots=True)
class RoundSelection:
    """The selected clients of a round.

    Attributes:
        boards: Selected clients, in the order of the fleet.
        wanted: Number of replies that are enough; None if all are awaited.
        selected: The selector's own result, with its reason.
        available: Number of clients that could have been selected.
    """

    boards: tuple[str, ...]
    wanted: int | None
    selected: SelectionResult
    available: int


def select_clients(experiment: Experiment, reach: FleetAvailability, progress: RunState) -> RoundSelection:
    """Select the clients of the next round among those that are available now. Pure.

    Args:
        experiment: The experiment.
        reach: Availability of the fleet.
        progress: The run before the round.

    Raises:
        RunFailed: The selector chose a client that is not available, or, without an energy budget, no client.
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
    """Return how many clients to ask: the count times the over-commitment, but at most all that are available."""
    spec = experiment.selection
    return offered if spec.count is None else min(offered, math.ceil(spec.count * spec.over_commit - 1e-9))


def _count_wanted_replies(experiment: Experiment, taken: Sequence[str]) -> int | None:
    spec = experiment.selection
    return None if spec.count is None or len(taken) <= spec.count or spec.over_commit == 1.0 else spec.count


def compute_limits(experiment: Experiment, progress: RunState) -> dict[str, float]:
    """Return the policy's limits; with an energy budget, also the energy spent in joules and the remaining rounds."""
    limits = experiment.policy.limits
    if "budget_j" in limits:
        limits |= {"spent_j": progress.spent_j, "rounds_left": float(experiment.rounds - progress.round)}
    return limits


def build_candidates(reach: FleetAvailability, progress: RunState, names: Sequence[str]) -> list[ClientStatus]:
    """Return the status of the clients ``names``, in the order given."""
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
    """Estimate the board's present temperature in degrees Celsius.

    It cools at idle power since its last work. None if the client has not reported a temperature.
    """
    state = progress.states.get(board.name)
    if state is None or state.temperature_c is None:
        return None
    thermal = build_thermal_model(catalogue.find(board.entry.device), board.entry.ambient_c)
    rested_s = max(0.0, progress.clock_s - state.rested_at_s)
    return thermal.temperature_after_c(state.temperature_c, get_idle_w(progress, board.name), rested_s)
