"""Baselines of a fleet's round from the true costs: every board in its best nvpmodel preset, or at MAXN."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedge import pareto
from fedge.decisions.limits import LIMIT_ROUNDING
from fedge.decisions.planning.front_columns import board_maxn_energy_j
from fedge.devices.emulated_board import WARM_UP_STEPS, find_top_mode
from fedge.devices.mode_surface import ModeSurface
from fedge.studies.fleet.fleet_costs import BoardTruth, FleetCost
from fedge.studies.fleet.fleet_oracle import BoardWork, cost_waiting_in_lowest_mode
from fedge.types import Front, PowerMode


@dataclass(frozen=True, slots=True)
class PresetWork:
    """A board's round in one preset, in which it also waits.

    Attributes:
        busy_s: End of the work and transfers after the round's start, in seconds.
        work_s: Time of the work in seconds.
        work_j: Energy of the work in joules.
        idle_w: Idle power in watts.
        top: Whether the preset is MAXN.
    """

    busy_s: float
    work_s: float
    work_j: float
    idle_w: float
    top: bool = False

    def energy_j(self, round_s: float) -> float:
        return self.work_j + self.idle_w * (round_s - self.work_s)


def map_presets_to_modes(surface: ModeSurface, presets: Mapping[str, PowerMode]) -> dict[str, PowerMode]:
    """Return a board's presets as modes of its table: the nearest mode if a preset is not in the table."""
    return {name: surface.modes[pareto.find_nearest_row(surface.modes, mode)] for name, mode in presets.items()}


def list_preset_work(front: Front, truth: BoardTruth) -> list[PresetWork]:
    """Return a board's round in each of its presets."""
    surface, found, top = truth.surface, [], find_top_mode(truth.surface)
    for mode in truth.presets.values():
        row = surface.find_row(mode)
        work_s = (truth.steps + WARM_UP_STEPS) * float(surface.step_s[row])
        work_j = work_s * float(surface.power_w[row])
        found.append(
            PresetWork(
                front.link_s + work_s, work_s=work_s, work_j=work_j, idle_w=float(surface.idle_w[row]), top=mode == top
            )
        )
    return found


def exclude_maxn(options: Sequence[PresetWork]) -> Sequence[PresetWork]:
    """Return all presets but MAXN, or all of them if there is no other."""
    return [option for option in options if not option.top] or options


def find_best_presets(
    options: Mapping[str, Sequence[PresetWork]],
    radio_j: Mapping[str, float],
    limit_s: float,
    aim: Callable[[FleetCost], float],
) -> FleetCost:
    """Return the round with every board in the preset that suits the fleet best, by the true costs.

    All round lengths up to ``limit_s`` that presets can have are tried; for each, every board takes the preset of least
    energy that ends by then, or its fastest one.

    Args:
        options: The boards' rounds in their presets.
        radio_j: Energy of each board's radio, in joules.
        limit_s: Upper limit of the round's length, in seconds.
        aim: The objective to minimise.
    """
    floor_s = max(min(option.busy_s for option in options[board]) for board in options)
    ends_s = {option.busy_s for of_board in options.values() for option in of_board}
    lengths_s = sorted({floor_s, *(end_s for end_s in ends_s if floor_s <= end_s <= limit_s * (1.0 + LIMIT_ROUNDING))})
    tried = [_cost_preset_round(options, radio_j, length_s) for length_s in lengths_s]
    return min(tried, key=lambda spent: (aim(spent), spent.round_s))


def _cost_preset_round(
    options: Mapping[str, Sequence[PresetWork]], radio_j: Mapping[str, float], length_s: float
) -> FleetCost:
    picked = {}
    for board, of_board in options.items():
        in_time = [option for option in of_board if option.busy_s <= length_s * (1.0 + LIMIT_ROUNDING)]
        fastest = min(of_board, key=lambda option: option.busy_s)
        picked[board] = min(in_time, key=lambda option: option.energy_j(length_s)) if in_time else fastest
    round_s = max(option.busy_s for option in picked.values())
    energies_j = {board: radio_j[board] + option.energy_j(round_s) for board, option in picked.items()}
    return FleetCost(round_s, energies_j, {board: option.busy_s for board, option in picked.items()})


def cost_at_maxn(fronts: Mapping[str, Front], radio_j: Mapping[str, float]) -> FleetCost:
    """Return the cost of the round in which every board works and waits at MAXN."""
    busy_s = {board: front.link_s + front.maxn.work_s for board, front in fronts.items()}
    round_s = max(busy_s.values())
    return FleetCost(
        round_s, {b: radio_j[b] + board_maxn_energy_j(front, round_s) for b, front in fronts.items()}, busy_s
    )


def cost_at_maxn_waiting_low(fronts: Mapping[str, Front], radio_j: Mapping[str, float]) -> FleetCost:
    """Return the cost of the round in which every board works at MAXN and waits in its lowest mode."""
    work = {board: BoardWork(front.maxn.work_s, front.maxn.work_j) for board, front in fronts.items()}
    return cost_waiting_in_lowest_mode(fronts, radio_j, work)
