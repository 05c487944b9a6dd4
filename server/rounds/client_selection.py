"""Client selection of synchronous rounds and asynchronous dispatches: what a selector sees, and what it chose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedge.decisions.planning import BUDGET_POLICY
from fedge.decisions.planning.round_plan import resting_power_w
from fedge.decisions.selection import load_selector
from fedge.devices import catalogue
from fedge.devices.thermal_model import build_thermal_model
from fedge.errors import RunFailed
from fedge.experiment import Experiment, FleetBoard
from fedge.protocols import Selector
from fedge.seeds import make_generator
from fedge.types import ClientStatus, SelectionContext, SelectionResult
from server.state.checkpoint import UNKNOWN_CLIENT, FleetState, RunState
from server.state.fleet_availability import FleetAvailability, get_charge, get_idle_w

SELECTION_EVENT = "selection"
"""Kind of the event that holds the selector's reason."""


@dataclass(frozen=True, slots=True)
class ClientSelection:
    """The selected clients.

    Attributes:
        boards: Selected clients, in the order of the fleet.
        available: Number of clients that could have been selected.
        wanted: Number of replies that are enough; None if all are awaited.
    """

    boards: tuple[str, ...]
    result: SelectionResult
    available: int
    wanted: int | None = None


def select_round_clients(
    experiment: Experiment, availability: FleetAvailability, fleet: FleetState, state: RunState
) -> ClientSelection:
    """Select the clients of the next synchronous round among those that are available now and not busy. Pure.

    Raises:
        RunFailed: The selector chose a client that is not available, or, without an energy budget, no client.
    """
    number, spec, limits = state.round + 1, experiment.selection, experiment.policy.limits
    offered = availability.available(fleet)
    if "budget_j" in limits:
        limits |= {"spent_j": state.spent_j, "rounds_left": float(experiment.rounds - state.round)}
        limits["resting_w"] = resting_power_w(fleet.fronts, offered)
    selection = select_clients(
        experiment,
        load_selector(spec.name),
        build_candidates(availability, fleet, offered),
        number=number,
        draw=number,
        count=len(offered) if spec.count is None else math.ceil(spec.count * spec.over_commit - 1e-9),
        memory=state.selection,
        limits=limits,
        where=f"round {number}: ",
    )
    if not selection.boards and experiment.policy.name != BUDGET_POLICY:
        why = selection.result.why or "it gave no reason"
        raise RunFailed(f"round {number}: selection {spec.name} chose no board; {why}")
    return selection


def select_clients(
    experiment: Experiment,
    selector: Selector,
    candidates: Sequence[ClientStatus],
    *,
    number: int,
    draw: int,
    count: int,
    memory: Mapping[str, float],
    limits: Mapping[str, float],
    at_most: int | None = None,
    where: str = "",
) -> ClientSelection:
    """Let a selector choose the clients of a round or of an asynchronous dispatch. Pure.

    Args:
        candidates: Status of the clients that are available, in the order of the fleet.
        number: Number of the round or dispatch, from 1.
        draw: Number that seeds the selector's generator, together with the experiment's seed.
        count: Number of clients to select, of which there may be fewer.
        at_most: Number of clients taken from the selector's list; None for all of it.

    Raises:
        RunFailed: The selector chose a client that is not among the candidates.
    """
    spec, offered = experiment.selection, [candidate.board for candidate in candidates]
    context = SelectionContext(
        number,
        count=min(count, len(offered)),
        options=spec.options,
        memory=memory,
        policy=experiment.policy.name,
        limits=limits,
    )
    result = selector(candidates, context, make_generator(experiment.seed, draw, "select"))
    unknown = sorted(set(result.boards) - set(offered))
    if unknown:
        raise RunFailed(f"{where}selection {spec.name} chose {unknown[0]}, which could not be asked")
    chosen = set(result.boards[:at_most])
    boards = tuple(name for name in offered if name in chosen)
    awaits_all = spec.count is None or len(boards) <= spec.count or spec.over_commit == 1.0
    return ClientSelection(boards, result, available=len(offered), wanted=None if awaits_all else spec.count)


def build_candidates(availability: FleetAvailability, fleet: FleetState, names: Sequence[str]) -> list[ClientStatus]:
    """Return the status of the clients ``names``, in the order given."""
    boards, candidates = {board.name: board for board in availability.boards}, []
    for name in names:
        history = fleet.histories.get(name, UNKNOWN_CLIENT)
        charge = get_charge(boards[name], history)
        candidate = ClientStatus(
            name,
            front=fleet.fronts.get(name),
            samples=history.samples,
            loss=history.loss,
            accuracy=history.accuracy,
            busy_s=history.busy_s,
            last_round=history.last_round,
            rounds=history.rounds,
            charge=None if charge is None else charge.share,
            charge_j=None if charge is None else charge.left_j,
            temperature_c=estimate_temperature_c(boards[name], fleet),
        )
        candidates.append(candidate)
    return candidates


def estimate_temperature_c(board: FleetBoard, fleet: FleetState) -> float | None:
    """Estimate the board's present temperature in degrees Celsius.

    It cools at idle power since its last work. None if the client has not reported a temperature, or how fast it cools
    is not known.
    """
    state = fleet.states.get(board.name)
    if state is None or state.temperature_c is None or not catalogue.is_catalogued(board.entry.device):
        return None
    thermal = build_thermal_model(catalogue.find(board.entry.device), board.entry.ambient_c)
    rested_s = max(0.0, fleet.clock_s - state.rested_at_s)
    return thermal.temperature_after_c(state.temperature_c, get_idle_w(fleet.fronts, board.name), rested_s)
