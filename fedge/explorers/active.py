"""Asks for the modes from which the default predictor learns most, before and after anything was measured.

Symbols: K_k covariance of log time or log power over some modes under candidate k (``fedge.physics.beliefs``), s noise,
w_k credibility. Greedy active learning (ALC, Cohn 1996): the next mode is the one that most lowers
sum_k w_k sum_j log(var_kj), the log predictive variance of all modes j after it, of time and power together.
Logarithms, so that no candidate and no mode counts only for being uncertain. What matters is where curves are
uncertain, not what is read there, so a whole design can be asked for at once and measured in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedge.explorers.remaining import Remaining
from fedge.modes import modes_of
from fedge.physics.beliefs import Candidate, power_candidates, sources, time_candidates
from fedge.physics.fit import MISFIT_POWER_SD, MISFIT_TIME_SD, NOISE_POWER_SD, NOISE_TIME_SD
from fedge.physics.knowledge import Knowledge
from fedge.physics.model import TIME_NAMES, shares
from fedge.physics.process import likeness
from fedge.seeds import generator
from fedge.types import Floats, Measurement, Modes, PowerMode

POOL = 400
"""Modes looked at, drawn from all that may be chosen; more make designs slower but hardly better; chosen by us."""
SOURCES = 4
"""How many of the most credible sources a design is made for; chosen by us."""
DRAWS = 2
"""Curves per source: the expected one and others drawn from its prior, since slopes differ along it; chosen by us."""
NARROWING = 0.5
"""Share of the prior's variance from which they are drawn; chosen by us."""


class ActiveExplorer:
    """A ``fedge.interfaces.Explorer`` for the predictor ``fedge``; needs a prior or a reference."""

    def __init__(self, candidates: Modes, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self._remaining = Remaining(candidates)
        self._known: dict[PowerMode, None] = {}

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """These modes are known, and not proposed any more."""
        self._known.update(dict.fromkeys(measurement.mode for measurement in measurements))
        self._remaining.drop(measurements)

    def ask(self, count: int) -> Modes:
        """The ``count`` modes that together teach most beside those told and asked before, the most telling first."""
        rng = generator(self.knowledge.seed, "active explorer")
        pool = rng.permutation(self._remaining.rows)[: max(POOL, count)]
        known = modes_of(self._known).knobs
        x = shares(self.knowledge.maxn, Modes(np.vstack([known, self._remaining.candidates.knobs[pool]])))
        design = _Design(list(_covariances(self.knowledge, x, rng)))
        for row in range(len(known)):
            design.measure(row)
        rows = [design.next(first=len(known)) - len(known) for _ in range(min(max(0, count), len(pool)))]
        proposed = self._remaining.propose(pool[rows])
        self._known.update(dict.fromkeys(proposed))
        return proposed


class _Design:
    """Covariances that shrink with every mode that is measured."""

    def __init__(self, covariances: list[tuple[float, Floats, float]]) -> None:
        self.covariances = covariances
        self.measured: list[int] = []

    def next(self, first: int) -> int:
        """Measure the row from ``first`` on that teaches most, and say which it was."""
        size = len(self.covariances[0][1])
        left = np.zeros(size)
        for weight, covariance, noise_var in self.covariances:
            own = np.diag(covariance)
            after = np.maximum(own[:, None] - np.square(covariance) / (own + noise_var), 0.0) + noise_var
            left += weight * np.log(after).sum(axis=0)
        left[:first] = np.inf
        left[self.measured] = np.inf
        row = int(np.argmin(left))
        self.measure(row)
        return row

    def measure(self, row: int) -> None:
        """Condition every covariance on a measurement of ``row``."""
        self.measured.append(row)
        for _, covariance, noise_var in self.covariances:
            column = covariance[:, row].copy()
            np.subtract(covariance, np.outer(column, column / (column[row] + noise_var)), out=covariance)


def _covariances(knowledge: Knowledge, x: Floats, rng: np.random.Generator) -> Iterator[tuple[float, Floats, float]]:
    """Weight, prior covariance (n, n) and noise variance of log time and of log power, per source and draw."""
    alike = likeness(x, x).astype(np.float64)
    for source in sources(knowledge)[:SOURCES]:
        weight = float(np.exp(source.log_credibility))
        for draw in range(DRAWS):
            time = next(time_candidates((source,)))
            seconds = _drawn(time, rng, draw)
            yield weight, _covariance(time, seconds, x, (time.misfit * MISFIT_TIME_SD) ** 2 * alike), NOISE_TIME_SD**2
            power = next(power_candidates((source,), seconds[: len(TIME_NAMES)]))
            watts = _drawn(power, rng, draw)
            yield weight, _covariance(power, watts, x, (power.misfit * MISFIT_POWER_SD) ** 2 * alike), NOISE_POWER_SD**2


def _drawn(candidate: Candidate, rng: np.random.Generator, draw: int) -> Floats:
    """The expected parameters first, then parameters drawn from the narrowed prior."""
    if draw == 0:
        return candidate.prior.mean
    covariance = np.linalg.inv(candidate.prior.precision)
    return np.asarray(rng.multivariate_normal(candidate.prior.mean, NARROWING * covariance), dtype=np.float64)


def _covariance(candidate: Candidate, parameters: Floats, x: Floats, misfit: Floats) -> Floats:
    _, by = candidate.curve(parameters, x)
    covariance: Floats = by.T @ np.linalg.solve(candidate.prior.precision, by) + misfit
    return covariance
