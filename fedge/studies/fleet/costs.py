"""What a round costs by the truth: its length and every board's joules, without the noise of single measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.devices.emulated import SWITCH_S, WARM_UP_STEPS
from fedge.devices.truth import Surface
from fedge.types import Measurement, PowerMode, RoundReport


@dataclass(frozen=True, slots=True)
class Spent:
    """A round's length, and per board its joules and when it is done."""

    round_s: float
    energies_j: Mapping[str, float]
    busy_s: Mapping[str, float]

    @property
    def energy_j(self) -> float:
        """Of all boards."""
        return sum(self.energies_j.values())


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What a board really is: every mode's seconds and watts, its presets (nearest modes), its share of a round."""

    surface: Surface
    presets: Mapping[str, PowerMode]
    steps: int
    plausible: NDArray[np.bool_]
    """The modes that the oracle may take: a measured table has rows that nobody could foresee, or reach again."""


def worth(reports: Mapping[str, RoundReport], truths: Mapping[str, Truth]) -> Spent:
    """What the modes that boards worked in really cost, probes among them: E and R of the package's head."""
    work = {board: _true_work(report.parts, truths[board].surface) for board, report in reports.items()}
    busy_s = {
        board: reports[board].link.down_s + time_s + reports[board].link.up_s for board, (time_s, _) in work.items()
    }
    round_s = max(busy_s.values())
    energies_j = {
        board: work_j + reports[board].link.radio_j + reports[board].idle_w * (round_s - time_s)
        for board, (time_s, work_j) in work.items()
    }
    return Spent(round_s, energies_j, busy_s)


def _true_work(parts: Sequence[Measurement], surface: Surface) -> tuple[float, float]:
    """Seconds and joules of a board's parts of a round: x_k of the package's head, at the part's own power."""
    rows = [surface.row(part.mode) for part in parts]
    warm = [WARM_UP_STEPS if part.warm_up_s > 0 else 0.0 for part in parts]
    switch_s = [0.0 if part.switch_s is None else SWITCH_S for part in parts]
    times_s = [
        (p.steps + w) * float(surface.step_s[row]) + s for p, w, s, row in zip(parts, warm, switch_s, rows, strict=True)
    ]
    joules = sum(time_s * float(surface.power_w[row]) for time_s, row in zip(times_s, rows, strict=True))
    return sum(times_s), joules
