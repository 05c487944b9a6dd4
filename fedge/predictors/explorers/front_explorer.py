"""Search for the modes of least energy within any limit on time, with the default predictor.

Symbols: r and e, a mode's step time and energy per step relative to MAXN's, log-normal; l, a limit on r; b_l, the least
e of the measured modes with r <= l, at most MAXN's 1. A mode is worth the sum over limits l of
E[max(0, 1 - e / b_l); r <= l], its expected improvement under a constraint. Measured modes count as measured, relative
to the measurement of MAXN.

References:
    Gardner et al., Bayesian Optimization with Inequality Constraints (ICML 2014).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedge.decisions.measured_correction import correct_relative_to_row, find_rows
from fedge.decisions.verified_choice import compute_expected_savings
from fedge.pareto import find_nearest_row
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.blended_predictor import BlendedPredictor
from fedge.predictors.explorers.active_explorer import MIN_START, ActiveExplorer
from fedge.types import Floats, Measurement, Modes, Predictions

SLOWDOWNS = (1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.7)
"""Limits on r that a user may set; slower modes hardly save energy. With 1.05, 1.2 or 1.5 alone, choices within it are
better and those within the others worse."""


class FrontExplorer(ActiveExplorer):
    """A ``fedge.protocols.Explorer`` that proposes one mode at a time, to learn from it first."""

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        super().__init__(candidates, knowledge)
        self.candidates = candidates
        self._seen: list[Measurement] = []

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Learn from measurements, and do not propose their modes any more."""
        super().tell(measurements)
        self._seen += measurements

    def ask(self, count: int) -> Modes:
        """Propose the mode that is expected to save most; the most informative while few are measured, or if none is.

        Args:
            count: Largest number of modes.

        Raises:
            BadInput: There is neither a prior nor a reference.
        """
        if len(self._seen) < MIN_START:
            return super().ask(min(count, MIN_START - len(self._seen)))
        rows = self._remaining.rows
        worth = self._estimate_worth()[rows] if count > 0 else np.zeros(0)
        return self._propose([int(rows[np.argmax(worth)])]) if worth.any() else super().ask(min(count, 1))

    def _estimate_worth(self) -> Floats:
        maxn = find_nearest_row(self.candidates, self.knowledge.maxn)
        found = BlendedPredictor(self.knowledge).fit(self._seen).predict(self.candidates)
        known = find_rows(self.candidates, (measurement.mode for measurement in self._seen))
        return sum_expected_savings(correct_relative_to_row(found, self._seen, maxn), maxn, list(known.values()))


def sum_expected_savings(found: Predictions, maxn: int, known: Sequence[int]) -> Floats:
    """Return the savings that measuring each mode is expected to bring within ``SLOWDOWNS``, summed, shape (modes,).

    Args:
        found: One row per mode.
        maxn: Row of MAXN.
        known: Rows of the measured modes.
    """
    slowdown = found.step_s / found.step_s[maxn]
    energy = slowdown * found.power_w / found.power_w[maxn]
    worth = np.zeros(len(slowdown))
    for limit in SLOWDOWNS:
        least = min([1.0, *(float(energy[row]) for row in known if slowdown[row] <= limit)])
        worth += compute_expected_savings(slowdown, found.step_s_sd_log, cost=energy, limit=limit, least=least)
    return worth
