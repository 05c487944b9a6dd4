"""Search for the modes of least energy within any limit on time, with the default predictor.

Symbols: r and e, a mode's step time and energy per step relative to MAXN's, log-normal; l, a limit on r; b_l, the least
e of the measured modes with r <= l, at most MAXN's 1. A mode is worth the sum over limits l of
E[max(0, 1 - e / b_l); r <= l], its expected improvement under a constraint. Measured modes count as measured, relative
to the measurement of MAXN.

References:
    Gardner et al., Bayesian Optimization with Inequality Constraints (ICML 2014).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedge.decisions.measured_correction import correct_relative_to_row, find_rows
from fedge.decisions.verified_choice import compute_expected_savings
from fedge.pareto import find_nearest_row
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.blended_predictor import BlendedPredictor
from fedge.predictors.explorers.active_explorer import MIN_START, ActiveExplorer
from fedge.predictors.explorers.simple_explorers import CandidatePool
from fedge.types import Floats, Measurement, Modes, PowerMode, Predictions

SLOWDOWNS = (1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.7)
"""Limits on r that a user may set; slower modes hardly save energy. With 1.05 alone, choices within 1.05 save 88 % of
what an oracle saves, instead of 79 %, and those within 1.5 save 70 instead of 79 % (ten modes, all measured tables)."""


class FrontExplorer:
    """A ``fedge.protocols.Explorer`` that proposes one mode at a time, to learn from it first."""

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self.candidates, self.knowledge = candidates, knowledge
        self._remaining = CandidatePool(candidates)
        self._start = ActiveExplorer(candidates, knowledge)
        self._seen: list[Measurement] = []

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Learn from measurements, and do not propose their modes any more."""
        self._seen += measurements
        self._remaining.drop(measurements)
        self._start.tell(measurements)

    def ask(self, count: int) -> Modes:
        """Propose the most informative modes while few are measured, then the one that is expected to save most.

        Args:
            count: Largest number of modes.

        Raises:
            BadInput: There is neither a prior nor a reference.
        """
        rows = self._remaining.rows
        if not len(rows) or count < 1:
            return self._remaining.propose([])
        if len(self._seen) < MIN_START:
            asked = self._start.ask(min(count, MIN_START - len(self._seen)))
            return self._remaining.propose(self._find_rows(asked))
        maxn = find_nearest_row(self.candidates, self.knowledge.maxn)
        found = BlendedPredictor(self.knowledge).fit(self._seen).predict(self.candidates)
        found = correct_relative_to_row(found, self._seen, maxn)
        known = self._find_rows(measurement.mode for measurement in self._seen)
        worth = sum_expected_savings(found, maxn, known)
        return self._remaining.propose([int(rows[np.argmax(worth[rows])])])

    def _find_rows(self, modes: Iterable[PowerMode]) -> list[int]:
        return list(find_rows(self.candidates, modes).values())


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
