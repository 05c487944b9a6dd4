"""Active learning of the modes that are most informative for the default predictor, with or without measurements.

Symbols: K_k covariance of log time or log power over some modes under candidate k (``fedge.physics.prior_candidates``),
s noise, w_k credibility. The next mode is chosen greedily to minimise sum_k w_k sum_j log(var_kj), the log predictive
variance of all modes j after measuring it, over time and power. Logarithms prevent that a single uncertain candidate or
mode dominates. The criterion depends on where the curves are uncertain and not on the measured values, so a whole
design can be requested at once and measured in any order.

References:
    Cohn, Ghahramani and Jordan, Active Learning with Statistical Models (1996).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedge.modes import stack_modes
from fedge.physics.misfit_process import misfit_correlation
from fedge.physics.model_fit import MISFIT_POWER_SD, MISFIT_TIME_SD, NOISE_POWER_SD, NOISE_TIME_SD
from fedge.physics.prior_candidates import (
    PriorCandidate,
    list_power_candidates,
    list_prior_sources,
    list_time_candidates,
    make_power_curve_with,
    make_time_curve,
)
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import TIME_NAMES, knob_shares
from fedge.predictors.explorers.simple_explorers import CandidatePool
from fedge.seeds import make_generator
from fedge.types import Floats, Measurement, Modes, PowerMode

MAX_POOL = 400
"""Candidate modes that are evaluated, drawn at random. Default; more make designs slower but hardly better."""
MAX_SOURCES = 4
"""Number of most credible sources that a design considers. Default; the time grows in proportion."""
DRAWS_PER_SOURCE = 2
"""Curves per source: the expected one and others drawn from its prior, since derivatives vary with the parameters.
Default; the time grows in proportion."""
PRIOR_VARIANCE_SHARE = 0.5
"""Share of the prior's variance from which curves are drawn. Default; a larger value covers less likely curves."""

START_SHARES = (
    (1.0, 1.0, 1.0, 1.0),
    (0.17, 0.33, 0.1, 0.67),
    (1.0, 1.0, 0.5, 0.1),
    (0.35, 0.6, 0.5, 1.0),
    (0.67, 0.15, 1.0, 1.0),
)
"""The first modes where nothing is measured: cores and CPU, GPU and memory clock as shares of the candidates' largest.

The top, nearly the bottom, a top whose GPU and memory are slow, the middle, and a top whose CPU is slow. Chosen by the
error of the predictor after them on all measured tables, among some 300 designs of three modes and then 130 of five.
The third then got nearly the lowest memory clock, which tells memory's share of a step best: with the next clock above
it, time is off by 4.5 instead of 4.1 % after three modes. Three modes chosen among 685 designs by the other six tables
of training are off by 4.4 / 4.2 % (time / power), so that further choice by these tables gains nothing.
"""
MIN_START = 3
"""Fewest modes, known ones included, that begin with ``START_SHARES``; designs of two were no better than the general
rule."""


class ActiveExplorer:
    """A ``fedge.protocols.Explorer`` for the predictor ``fedge``; it needs a prior or a reference."""

    def __init__(self, candidates: Modes, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge
        self._remaining = CandidatePool(candidates)
        self._known: dict[PowerMode, None] = {}

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Condition on these modes, and do not propose them any more."""
        self._known.update(dict.fromkeys(measurement.mode for measurement in measurements))
        self._remaining.drop(measurements)

    def ask(self, count: int) -> Modes:
        """Propose modes that are jointly most informative given all measured and proposed ones.

        Args:
            count: Largest number of modes.

        Returns:
            The modes, the most informative first; fewer than ``count`` if the candidates run out.

        Raises:
            BadInput: There is neither a prior nor a reference.
        """
        rng = make_generator(self.knowledge.seed, "active explorer")
        start = self._find_start(len(self._known) + count)
        shuffled = rng.permutation(self._remaining.rows)
        pool = np.concatenate([start, shuffled[~np.isin(shuffled, start)][: max(MAX_POOL, count)]]).astype(np.intp)
        known = stack_modes(self._known).knobs
        x = knob_shares(self.knowledge.maxn, Modes(np.vstack([known, self._remaining.candidates.knobs[pool]])))
        design = _ActiveDesign(list(_iterate_covariances(self.knowledge, x, rng)))
        for row in range(len(known) + len(start)):
            design.condition_on(row)
        more = min(max(0, count), len(pool)) - len(start)
        rows = [*range(len(start)), *(design.choose_next(first=len(known)) - len(known) for _ in range(more))]
        return self._propose(pool[rows])

    def _propose(self, rows: Sequence[int] | NDArray[np.intp]) -> Modes:
        """Return the modes of these rows; from now on they count as known."""
        proposed = self._remaining.propose(rows)
        self._known.update(dict.fromkeys(proposed))
        return proposed

    def _find_start(self, total: int) -> list[int]:
        """Return the rows of the candidates nearest to the first ``START_SHARES`` that are left, without repetition.

        There are none if fewer than ``MIN_START`` modes are wanted in all, or other modes are known.
        """
        knobs = self._remaining.candidates.knobs
        if total < MIN_START or not len(knobs):
            return []
        shares = np.log(knobs / knobs.max(axis=0))
        distance = np.abs(shares[:, None, :] - np.log(START_SHARES[:total])).sum(axis=2)
        start = dict.fromkeys(np.argmin(distance, axis=0).tolist())
        if not self._known.keys() <= {self._remaining.candidates[row] for row in start}:
            return []
        left = set(self._remaining.rows.tolist())
        return [row for row in start if row in left]


class _ActiveDesign:
    """Covariances that are conditioned on every measured mode."""

    def __init__(self, covariances: list[tuple[float, Floats, float]]) -> None:
        self.covariances = covariances
        self.measured: list[int] = []

    def choose_next(self, first: int) -> int:
        """Condition on the most informative row at or after ``first``, and return its index."""
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
    ranked = replace(knowledge, errors=())  # by their errors the first would decide alone: no better with ten modes
    for source in list_prior_sources(ranked)[:MAX_SOURCES]:
        weight = float(np.exp(source.log_credibility))
        for draw in range(DRAWS_PER_SOURCE):
            time = list_time_candidates((source,))[0]
            seconds = _draw_parameters(time, rng, draw)
            slopes = make_time_curve(time.reference)(seconds, x).stack_slopes()
            misfit = (time.misfit * MISFIT_TIME_SD) ** 2 * alike
            yield weight, _compute_covariance(time, slopes, misfit), NOISE_TIME_SD**2
            power = list_power_candidates((source,))[0]
            watts = _draw_parameters(power, rng, draw)
            curve = make_power_curve_with(power.reference, seconds[: len(TIME_NAMES)])
            misfit = (power.misfit * MISFIT_POWER_SD) ** 2 * alike
            yield weight, _compute_covariance(power, curve(watts, x).stack_slopes(), misfit), NOISE_POWER_SD**2


def _draw_parameters(candidate: PriorCandidate, rng: np.random.Generator, draw: int) -> Floats:
    """Return the expected parameters for draw 0, otherwise parameters drawn from the narrowed prior."""
    if draw == 0:
        return candidate.prior.mean
    covariance = np.linalg.inv(candidate.prior.precision)
    return np.asarray(
        rng.multivariate_normal(candidate.prior.mean, PRIOR_VARIANCE_SHARE * covariance), dtype=np.float64
    )


def _compute_covariance(candidate: PriorCandidate, slopes: Floats, misfit: Floats) -> Floats:
    covariance: Floats = slopes.T @ np.linalg.solve(candidate.prior.precision, slopes) + misfit
    return covariance
