"""The request of a roofline analysis, the constants behind it, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedge.analysis.roofline.mode_rooflines import (
    BatchDurations,
    ModeRooflines,
    RooflineBatch,
)
from fedge.analysis.roofline.slowdown_choice import SlowdownChoice, explain_choice
from fedge.costs.layers.network_cost import NetworkCost
from fedge.pareto import front_mask
from fedge.types import Floats

if TYPE_CHECKING:
    pass

from fedge.analysis.roofline.board_constants import BoardConstants
from fedge.types import DeviceSpec, Modes


@dataclass(frozen=True, slots=True, eq=False)
class RooflineBasis:
    """A board's constants and the modes to choose from: those within the fitted clocks."""

    spec: DeviceSpec
    constants: BoardConstants
    modes: Modes
    maxn_row: int


@dataclass(frozen=True, slots=True)
class RooflineOptions:
    """The options of the command, unparsed."""

    model: str
    device: str
    mode: str | None = None
    batch_size: int = 1
    max_slowdown: float = 1.05
    tables: Path | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RooflineAnalysis:
    """A network's batch on every mode's rooflines, and the choice; arrays are of shape (modes,)."""

    options: RooflineOptions
    network: NetworkCost
    basis: RooflineBasis
    lines: ModeRooflines
    batch: RooflineBatch
    batch_times: BatchDurations
    joules: Floats
    choice: SlowdownChoice
    shown_row: int
    """The requested mode, else the chosen one."""

    @property
    def front(self) -> list[int]:
        """Rows of the Pareto front of time and energy, from fastest to slowest."""
        rows = np.flatnonzero(front_mask(self.batch_times.total_s, self.joules))
        return [int(row) for row in rows[np.argsort(self.batch_times.total_s[rows])]]

    @property
    def implying_mode_count(self) -> int:
        """Number of modes in which time-efficient implies energy-efficient."""
        return sum(self.lines.mode_roofline(row).time_implies_energy for row in range(len(self.basis.modes)))

    @property
    def explanation(self) -> str:
        """Why the mode is chosen, in words."""
        maxn = self.lines.mode_roofline(self.choice.maxn_row)
        return explain_choice(
            self.choice, modes=self.basis.modes, roofline=maxn, batch=self.batch, spent=self.batch_times
        )
