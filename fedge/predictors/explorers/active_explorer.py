"""Asks for the modes from which the default predictor learns most, before and after anything was measured.

Symbols: K_k covariance of log time or log power over some modes under candidate k
(``fedge.physics.prior_candidates``), s noise,
w_k credibility. Greedy active learning (ALC, Cohn 1996): the next mode is the one that most lowers
sum_k w_k sum_j log(var_kj), the log predictive variance of all modes j after it, of time and power together.
Logarithms, so that no candidate and no mode counts only for being uncertain. What matters is where curves are
uncertain, not what is read there, so a whole design can be asked for at once and measured in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedge.modes import stack_modes
from fedge.physics.misfit_process import misfit_correlation
from fedge.physics.model_fit import MISFIT_POWER_SD, MISFIT_TIME_SD, NOISE_POWER_SD, NOISE_TIME_SD
from fedge.physics.prior_candidates import (
    PriorCandidate,
    iterate_power_candidates,
    iterate_time_candidates,
    list_prior_sources,
)
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import TIME_NAMES, knob_shares
from fedge.predictors.explorers.candidate_pool import CandidatePool
from fedge.seeds import make_generator
from fedge.types import Floats, Measurement, Modes, PowerMode

MAX_POOL = 400
"""Modes looked at, drawn from all that may be chosen; more make designs slower but hardly better; chosen by us."""
MAX_SOURCES = 4
"""How many of the most credible sources a design is made for; chosen by us."""
DRAWS_PER_SOURCE = 2
"""Curves per source: the expected one and others drawn from its prior, since slopes differ along it; chosen by us."""
PRIOR_VARIANCE_SHARE = 0.5
"""Share of the prior's variance from which they are drawn; chosen by us."""


class ActiveExplorer:
    """A ``fedge.protocols.Explorer`` for the predictor ``fedge``; needs a prior or a reference."""

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge
        self._remaining = CandidatePool(candidates)
        self._known: dict[PowerMode, None] = {}

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """These modes are known, and not proposed any more."""
        self._known.update(dict.fromkeys(measurement.mode for measurement in measurements))
        self._remaining.drop(measurements)

    def ask(self, count: int) -> Modes:
        """The ``count`` modes that together teach most beside those told and asked before, the most telling first."""
        rng = make_generator(self.knowledge.seed, "active explorer")
        pool = rng.permutation(self._remaining.rows)[: max(MAX_POOL, count)]
        known = stack_modes(self._known).knobs
        x = knob_shares(self.knowledge.maxn, Modes(np.vstack([known, self._remaining.candidates.knobs[pool]])))
        design = _ActiveDesign(list(_iterate_covariances(self.knowledge, x, rng)))
        for row in range(len(known)):
            design.condition_on(row)
        rows = [design.choose_next(first=len(known)) - len(known) for _ in range(min(max(0, count), len(pool)))]
        proposed = self._remaining.propose(pool[rows])
        self._known.update(dict.fromkeys(proposed))
        return proposed


class _ActiveDesign:
    """Covariances that shrink with every mode that is measured."""

    def __init__(self, covariances: list[tuple[float, Floats, float]]) -> None:
        self.covariances = covariances
        self.measured: list[int] = []

    def choose_next(self, first: int) -> int:
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
        self.condition_on(row)
        return row

    def condition_on(self, row: int) -> None:
        """Condition every covariance on a measurement of ``row``."""
        self.measured.append(row)
        for _, covariance, noise_var in self.covariances:
            column = covariance[:, row].copy()
            np.subtract(covariance, np.outer(column, column / (column[row] + noise_var)), out=covariance)


def _iterate_covariances(
    knowledge: PriorKnowledge, x: Floats, rng: np.random.Generator
) -> Iterator[tuple[float, Floats, float]]:
    """Weight, prior covariance (n, n) and noise variance of log time and of log power, per source and draw."""
    alike = misfit_correlation(x, x).astype(np.float64)
    for source in list_prior_sources(knowledge)[:MAX_SOURCES]:
        weight = float(np.exp(source.log_credibility))
        for draw in range(DRAWS_PER_SOURCE):
            time = next(iterate_time_candidates((source,)))
            seconds = _draw_parameters(time, rng, draw)
            yield (
                weight,
                _compute_covariance(time, seconds, x, (time.misfit * MISFIT_TIME_SD) ** 2 * alike),
                NOISE_TIME_SD**2,
            )
            power = next(iterate_power_candidates((source,), seconds[: len(TIME_NAMES)]))
            watts = _draw_parameters(power, rng, draw)
            yield (
                weight,
                _compute_covariance(power, watts, x, (power.misfit * MISFIT_POWER_SD) ** 2 * alike),
                NOISE_POWER_SD**2,
            )


def _draw_parameters(candidate: PriorCandidate, rng: np.random.Generator, draw: int) -> Floats:
    """The expected parameters first, then parameters drawn from the narrowed prior."""
    if draw == 0:
        return candidate.prior.mean
    covariance = np.linalg.inv(candidate.prior.precision)
    return np.asarray(
        rng.multivariate_normal(candidate.prior.mean, PRIOR_VARIANCE_SHARE * covariance), dtype=np.float64
    )


def _compute_covariance(candidate: PriorCandidate, parameters: Floats, x: Floats, misfit: Floats) -> Floats:
    _, by = candidate.curve(parameters, x)
    covariance: Floats = by.T @ np.linalg.solve(candidate.prior.precision, by) + misfit
    return covariance
