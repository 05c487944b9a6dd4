"""What is known of a board and a workload before anything of the two is measured together."""

from __future__ import annotations

from dataclasses import dataclass

from fedge.physics.time_power_model import Coefficients
from fedge.types import PowerMode, ProfileTable


@dataclass(frozen=True, slots=True, eq=False)
class PriorKnowledge:
    """What a predictor or an explorer is made with; it uses what it can.

    ``maxn`` is the board's top mode. ``priors`` are the physical model's coefficients for other workloads, carried to
    this board, the most credible first. ``references`` are measured tables of other workloads on a board of this kind,
    in the same order of trust. ``idle_w`` is what the board draws at rest in ``maxn``, if that was measured. ``seed``
    fixes whatever is random.
    """

    maxn: PowerMode
    priors: tuple[Coefficients, ...] = ()
    references: tuple[ProfileTable, ...] = ()
    idle_w: float | None = None
    seed: int = 0
