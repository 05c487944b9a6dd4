"""Prior knowledge of a board and a workload, before they are measured together."""

from __future__ import annotations

from dataclasses import dataclass

from fedge.physics.time_power_model import Coefficients
from fedge.types import PowerMode, ProfileTable


@dataclass(frozen=True, slots=True, eq=False)
class PriorKnowledge:
    """Arguments from which predictors and explorers are constructed; each uses what it needs.

    Attributes:
        maxn: The board's top mode.
        priors: The physical model's coefficients for other workloads, scaled to this board, the most credible first.
        errors: Expected errors of each prior's log time and log power, as standard deviations; empty if they are not
            known.
        references: Measured tables of other workloads on a board of this kind, the most credible first.
        idle_w: The board's measured idle power in ``maxn``, in watts; None if unknown.
        seed: Seed of everything random.
    """

    maxn: PowerMode
    priors: tuple[Coefficients, ...] = ()
    references: tuple[ProfileTable, ...] = ()
    idle_w: float | None = None
    seed: int = 0
    errors: tuple[tuple[float, float], ...] = ()
