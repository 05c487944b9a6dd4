"""The best presets: every board in the one of its nvpmodel modes that suits the fleet best, known from the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedge import pareto
from fedge.choice.picking import ROUNDING
from fedge.devices.emulated import WARM_UP_STEPS, top_mode
from fedge.devices.truth import Surface
from fedge.studies.fleet.costs import Spent, Truth
from fedge.types import Front, PowerMode


@dataclass(frozen=True, slots=True)
class Pinned:
    """A board that works and waits in one preset; ``top`` marks one that is MAXN."""

    busy_s: float
    work_s: float
    work_j: float
    idle_w: float
    top: bool = False

    def energy_j(self, round_s: float) -> float:
        return self.work_j + self.idle_w * (round_s - self.work_s)


def presets_of(surface: Surface, presets: Mapping[str, PowerMode]) -> dict[str, PowerMode]:
    """A board's presets as modes of its table: the nearest where a preset is not among them, as `preset:` has it."""
    return {name: surface.modes[pareto.nearest_row(surface.modes, mode)] for name, mode in presets.items()}


def pinned(front: Front, truth: Truth) -> list[Pinned]:
    """What a board's round is in each of its presets."""
    surface, found, top = truth.surface, [], top_mode(truth.surface)
    for mode in truth.presets.values():
        row = surface.row(mode)
        work_s = (truth.steps + WARM_UP_STEPS) * float(surface.step_s[row])
        work_j = work_s * float(surface.power_w[row])
        found.append(Pinned(front.link_s + work_s, work_s, work_j, float(surface.idle_w[row]), mode == top))
    return found


def capped(options: Sequence[Pinned]) -> Sequence[Pinned]:
    """All presets but MAXN; all of them where there is no other."""
    return [option for option in options if not option.top] or options


def best_presets(
    options: Mapping[str, Sequence[Pinned]],
    radio_j: Mapping[str, float],
    limit_s: float,
    aim: Callable[[Spent], float],
) -> Spent:
    """Every board in the one of its presets that suits the fleet best, by the truth; boards wait in it too.

    Tried are all round lengths up to ``limit_s`` that presets can have; for each, every board takes the preset of
    least energy that ends by then, or its fastest one. The least ``aim`` wins.
    """
    floor_s = max(min(option.busy_s for option in options[board]) for board in options)
    ends_s = {option.busy_s for of_board in options.values() for option in of_board}
    lengths_s = sorted({floor_s, *(end_s for end_s in ends_s if floor_s <= end_s <= limit_s * (1.0 + ROUNDING))})
    tried = [_preset_round(options, radio_j, length_s) for length_s in lengths_s]
    return min(tried, key=lambda spent: (aim(spent), spent.round_s))


def _preset_round(options: Mapping[str, Sequence[Pinned]], radio_j: Mapping[str, float], length_s: float) -> Spent:
    picked = {}
    for board, of_board in options.items():
        in_time = [option for option in of_board if option.busy_s <= length_s * (1.0 + ROUNDING)]
        fastest = min(of_board, key=lambda option: option.busy_s)
        picked[board] = min(in_time, key=lambda option: option.energy_j(length_s)) if in_time else fastest
    round_s = max(option.busy_s for option in picked.values())
    energies_j = {board: radio_j[board] + option.energy_j(round_s) for board, option in picked.items()}
    return Spent(round_s, energies_j, {board: option.busy_s for board, option in picked.items()})
