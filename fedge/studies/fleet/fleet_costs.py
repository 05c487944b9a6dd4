"""True cost of a round, its length and every board's energy, and of the best nvpmodel presets; a policy's objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.planning.fleet_planners import MAX_SLOWDOWN, TIME_WEIGHT
from fedge.devices.mode_surface import ModeSurface
from fedge.experiment import PolicySpec
from fedge.pareto import find_nearest_row
from fedge.types import Floats, PowerMode


@dataclass(frozen=True, slots=True)
class FleetCost:
    """The cost of a round: its length, and by board the energy and the end of its work and transfers."""

    round_s: float
    energies_j: Mapping[str, float]
    busy_s: Mapping[str, float]

    @property
    def energy_j(self) -> float:
        return sum(self.energies_j.values())


@dataclass(frozen=True, slots=True, eq=False)
class RoundClients:
    """The c clients of a round whose cost is counted, by names: of boards, or of the fleet's entries.

    Attributes:
        place: Index of each client's name, shape (c,).
        link_s: Seconds of each client's transfers, shape (c,).
        radio_j: Energy of its radio in joules, shape (c,).
    """

    names: tuple[str, ...]
    place: NDArray[np.intp]
    link_s: Floats
    radio_j: Floats

    @classmethod
    def from_boards(cls, link_s: Mapping[str, float], radio_j: Mapping[str, float]) -> RoundClients:
        """Return the clients of which every one has a name of its own: those of ``link_s``, in its order."""
        joules = np.array([radio_j[board] for board in link_s])
        return cls(tuple(link_s), np.arange(len(link_s)), link_s=np.array(list(link_s.values())), radio_j=joules)

    def cost(self, work_s: Floats, above_j: Floats, waiting_w: Floats) -> FleetCost:
        """Return the cost of the round, which ends with the last client, from arrays of shape (c,).

        ``above_j`` is the energy of the work above waiting, ``waiting_w`` the power while transferring and waiting.
        """
        busy_s = self.link_s + work_s
        round_s = float(busy_s.max())
        joules = np.bincount(self.place, self.radio_j + above_j + waiting_w * round_s, len(self.names))
        latest_s = np.zeros(len(self.names))
        np.maximum.at(latest_s, self.place, busy_s)
        used = np.unique(self.place).tolist()
        return FleetCost(
            round_s,
            {self.names[place]: float(joules[place]) for place in used},
            {self.names[place]: float(latest_s[place]) for place in used},
        )


ENERGY_POLICIES = ("least-energy", "least-energy-within-deadline", "energy-budget")
TIME_POLICIES = ("fastest", "fastest-within-power")


def compute_objective(policy: PolicySpec, spent: FleetCost, maxn: FleetCost) -> float | None:
    """Return the policy's objective, w R/R_maxn + (1-w) E/E_maxn, E (J) or R (s), or None if it minimises nothing."""
    known = ("balanced", *ENERGY_POLICIES, *TIME_POLICIES)
    return compute_objective_or_balance(policy, spent, maxn) if policy.name in known else None


def compute_objective_or_balance(policy: PolicySpec, spent: FleetCost, maxn: FleetCost) -> float:
    """Return the policy's objective, or the balance of time and energy if it has none of its own."""
    if policy.name in ENERGY_POLICIES:
        return spent.energy_j
    if policy.name in TIME_POLICIES:
        return spent.round_s
    weight = TIME_WEIGHT if policy.time_weight is None else policy.time_weight
    return weight * spent.round_s / maxn.round_s + (1.0 - weight) * spent.energy_j / maxn.energy_j


def max_round_s(policy: PolicySpec, maxn_s: float) -> float:
    """Return the longest round that the policy allows, in seconds; ``maxn_s`` is its length at MAXN."""
    slowdown_s = maxn_s * (MAX_SLOWDOWN if policy.max_slowdown is None else policy.max_slowdown)
    return min(slowdown_s, math.inf if policy.deadline_s is None else policy.deadline_s)


@dataclass(frozen=True, slots=True)
class PresetWork:
    """A board's round in one preset, in which it also waits; ``top`` if it is MAXN."""

    work_s: float
    work_j: float
    idle_w: float
    top: bool = False


def map_presets_to_modes(surface: ModeSurface, presets: Mapping[str, PowerMode]) -> dict[str, PowerMode]:
    """Return a board's presets as modes of its table: the nearest mode if a preset is not in the table."""
    return {name: surface.modes[find_nearest_row(surface.modes, mode)] for name, mode in presets.items()}


def list_preset_work(surface: ModeSurface, rows: Iterable[int], steps: float, top: int) -> list[PresetWork]:
    """Return ``steps`` steps in the presets at these rows of a surface, of which ``top`` is MAXN's."""
    work_s = [(row, steps * float(surface.step_s[row])) for row in rows]
    return [
        PresetWork(time_s, time_s * float(surface.power_w[row]), float(surface.idle_w[row]), top=row == top)
        for row, time_s in work_s
    ]


@dataclass(frozen=True, slots=True, eq=False)
class PresetTable:
    """The work of c clients in each of their at most p presets, shape (c, p).

    Attributes:
        work_s: Seconds of the work; infinite where a client has fewer presets.
        above_j: Energy of the work above waiting in the preset, in joules.
        waiting_w: Power of waiting in the preset, in watts.
    """

    work_s: Floats
    above_j: Floats
    waiting_w: Floats


def stack_presets(options: Sequence[Sequence[PresetWork]]) -> PresetTable:
    table = np.zeros((3, len(options), max(map(len, options))))
    table[0] = np.inf
    for row, own in enumerate(options):
        figures = [(one.work_s, one.work_j - one.idle_w * one.work_s, one.idle_w) for one in own]
        table[:, row, : len(own)] = np.array(figures).T
    return PresetTable(*table)


def find_best_presets(
    clients: RoundClients,
    table: PresetTable,
    limit_s: float,
    aim: Callable[[FleetCost], float],
    most_lengths: int | None = None,
) -> FleetCost:
    """Return the round with every client in the preset that suits the fleet best, by the true costs.

    All round lengths up to ``limit_s`` that presets can have are tried; for each, every client takes the preset of
    least energy that ends by then, or its fastest one.

    Args:
        clients: The clients.
        table: Their presets.
        limit_s: Longest round in seconds, unless no presets keep it.
        aim: What is least in the best round.
        most_lengths: Number of lengths to try, evenly spaced among the possible ones; None for all.
    """
    busy_s, every = clients.link_s[:, None] + table.work_s, np.arange(len(table.work_s))
    floor_s = float(busy_s.min(axis=1).max())
    possible = np.isfinite(busy_s) & (busy_s > floor_s) & (busy_s <= limit_s * (1.0 + LIMIT_ROUNDING))
    ends_s = np.unique(busy_s[possible])
    if most_lengths is not None and len(ends_s) > most_lengths:
        ends_s = ends_s[np.round(np.linspace(0, len(ends_s) - 1, most_lengths)).astype(np.intp)]
    radio_j, tried = float(clients.radio_j.sum()), list[tuple[float, float, NDArray[np.intp]]]()
    for length_s in (floor_s, *ends_s.tolist()):
        in_time = busy_s <= length_s * (1.0 + LIMIT_ROUNDING)
        energy_j = np.where(in_time, table.above_j + table.waiting_w * length_s, np.inf)
        pick = np.where(in_time.any(axis=1), energy_j.argmin(axis=1), busy_s.argmin(axis=1))
        round_s = float(busy_s[every, pick].max())
        joules = radio_j + float((table.above_j[every, pick] + table.waiting_w[every, pick] * round_s).sum())
        tried.append((aim(FleetCost(round_s, {"": joules}, {})), round_s, pick))
    _, _, pick = min(tried, key=lambda one: one[:2])
    return clients.cost(*(column[every, pick] for column in (table.work_s, table.above_j, table.waiting_w)))


def find_both_best_presets(
    clients: RoundClients,
    options: Sequence[Sequence[PresetWork]],
    policy: PolicySpec,
    maxn: FleetCost,
    *,
    scale: Callable[[PresetTable], PresetTable] = lambda table: table,
    most_lengths: int | None = None,
) -> tuple[FleetCost, FleetCost]:
    """Return the best presets within the policy's limit, and the best but MAXN, by the policy's objective.

    A client without any other preset has MAXN in both cases. ``scale`` makes the table of the clients of that of
    ``options``; of the round lengths, ``most_lengths`` are tried (None for all).
    """
    capped = [[option for option in own if not option.top] or own for own in options]

    def aim(spent: FleetCost) -> float:
        return compute_objective_or_balance(policy, spent, maxn)

    def find(own: Sequence[Sequence[PresetWork]], limit_s: float) -> FleetCost:
        return find_best_presets(clients, scale(stack_presets(own)), limit_s, aim=aim, most_lengths=most_lengths)

    return find(options, max_round_s(policy, maxn.round_s)), find(capped, math.inf)


PIECES_PER_STEP = 2
"""Number of parts of a step that can be assigned to modes separately: the warm-up is worth one and a half steps."""
