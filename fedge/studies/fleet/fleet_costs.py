"""True cost of a round: its length and every board's energy, without the noise of single measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.decisions.planning.fleet_planners import MAX_SLOWDOWN, TIME_WEIGHT
from fedge.devices.emulated_board import MODE_SWITCH_S, WARM_UP_STEPS
from fedge.devices.mode_surface import ModeSurface
from fedge.experiment import PolicySpec
from fedge.types import Measurement, PowerMode, RoundReport


@dataclass(frozen=True, slots=True)
class FleetCost:
    """The cost of a round.

    Attributes:
        round_s: Length of the round in seconds.
        energies_j: Energy by board, in joules.
        busy_s: End of each board's work and transfers after the round's start, in seconds.
    """

    round_s: float
    energies_j: Mapping[str, float]
    busy_s: Mapping[str, float]

    @property
    def energy_j(self) -> float:
        """Energy of all boards in joules."""
        return sum(self.energies_j.values())


@dataclass(frozen=True, slots=True, eq=False)
class BoardTruth:
    """True figures of a board: time and power of every mode, its presets (as nearest modes), its steps per round."""

    surface: ModeSurface
    presets: Mapping[str, PowerMode]
    steps: int
    plausible: NDArray[np.bool_]
    """Mask of the modes that the oracle may take: a measured table has rows that cannot be foreseen or reproduced."""


def compute_true_cost(reports: Mapping[str, RoundReport], truths: Mapping[str, BoardTruth]) -> FleetCost:
    """Return the true cost of the modes in which boards worked, probes included: E and R of the package's head."""
    work = {board: _compute_true_work(report.parts, truths[board].surface) for board, report in reports.items()}
    busy_s = {
        board: reports[board].link.down_s + time_s + reports[board].link.up_s for board, (time_s, _) in work.items()
    }
    round_s = max(busy_s.values())
    energies_j = {
        board: work_j + reports[board].link.radio_j + reports[board].idle_w * (round_s - time_s)
        for board, (time_s, work_j) in work.items()
    }
    return FleetCost(round_s, energies_j, busy_s)


def _compute_true_work(parts: Sequence[Measurement], surface: ModeSurface) -> tuple[float, float]:
    """Return seconds and joules of a board's parts of a round: x_k of the package's head, at the part's own power."""
    rows = [surface.find_row(part.mode) for part in parts]
    warm = [WARM_UP_STEPS if part.warm_up_s > 0 else 0.0 for part in parts]
    switch_s = [0.0 if part.switch_s is None else MODE_SWITCH_S for part in parts]
    times_s = [
        (p.steps + w) * float(surface.step_s[row]) + s for p, w, s, row in zip(parts, warm, switch_s, rows, strict=True)
    ]
    joules = sum(time_s * float(surface.power_w[row]) for time_s, row in zip(times_s, rows, strict=True))
    return sum(times_s), joules


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
