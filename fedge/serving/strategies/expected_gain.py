"""Constrained expected improvement: the expected gain of trying each mode and batch size for a problem.

Symbols: P, L, a, b, t_tr, t_in, N as in ``fedge.serving.trial_search``; W = b/a; Phi the normal distribution of the
logarithms; F the probability that all limits are met. Until a trial meets them, a trial is worth F, more if more
training steps are expected. After that, with the best values so far N* and t*:

training    F E[ln(t*/t_tr)+]                     inference    F E[ln(t*/t_in)+]
both        F (sum_j p(N* + j) / (N* + j) + TIE p(N*) E[ln(t*/t_in)+]),  j = 1 .. J,  p(N) = P(N t_tr + t_in <= W)

with J = ``MAX_EXTRA_STEPS`` and TIE = ``TIE_WEIGHT``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies.job_posterior import SequentialBelief
from fedge.types import Floats

MAX_EXTRA_STEPS = 4
# Terms of the sum over additional steps. Default: later terms weigh less, and each costs a pass over all trials.
TIE_WEIGHT = 0.1
# Weight of a shorter batch at equal N, relative to more steps. Default: well below 1, since N comes first.
FEASIBILITY_WEIGHT = 0.2
# Share of a trial's value for meeting the limits at all, until a trial does. Default; larger values favour safe modes.


@dataclass(frozen=True, slots=True)
class BestTrial:
    """Step time, batch time and steps per window (0 unless both jobs run) of the best trial so far."""

    train_s: float
    infer_s: float
    steps: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class LogNormalSpread:
    """Mean and standard deviation of a quantity's logarithm, (batch sizes or 1, n)."""

    mean: Floats
    sd: Floats

    @classmethod
    def from_belief(cls, updated: SequentialBelief, places: int) -> LogNormalSpread:
        return cls(updated.mean.reshape(places, -1), updated.sd.reshape(places, -1))

    def probability_below(self, limit: Floats | float) -> Floats:
        """Return the probability of a value below ``limit``; 0 for a limit of 0 or less."""
        log = np.log(np.maximum(limit, 1e-300))
        return normal_cdf((log - self.mean) / self.sd)

    def expected_log_improvement(self, on: float) -> Floats:
        """Return E[ln(on / value)+], the expected improvement over the value ``on``."""
        gain = np.log(on) - self.mean
        z = gain / self.sd
        expected: Floats = gain * normal_cdf(z) + self.sd * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
        return expected


def expected_gain_training(
    problem: ServingProblem, seconds: LogNormalSpread, watts: LogNormalSpread, best: BestTrial | None
) -> Floats:
    """Return the expected gain of every mode for a training problem, shape (1, n).

    ``best`` is the best feasible trial so far.
    """
    holds = watts.probability_below(problem.power_w)
    return holds if best is None else holds * seconds.expected_log_improvement(best.train_s)


def expected_gain_inference(
    problem: ServingProblem,
    batch_sizes: Floats,
    seconds: LogNormalSpread,
    watts: LogNormalSpread,
    best: BestTrial | None,
) -> Floats:
    """Return the expected gain of every batch size and mode for an inference problem, shape (k, n).

    ``batch_sizes`` has shape (k, 1).
    """
    holds = latency_probability(problem, batch_sizes, seconds) * watts.probability_below(problem.power_w)
    return holds if best is None else holds * seconds.expected_log_improvement(best.infer_s)


def expected_gain_both(
    problem: ServingProblem,
    batch_sizes: Floats,
    train: tuple[LogNormalSpread, LogNormalSpread],
    infer: tuple[LogNormalSpread, LogNormalSpread],
    best: BestTrial | None,
) -> Floats:
    """Return the expected gain of every batch size and mode for a concurrent problem, shape (k, n).

    ``train`` and ``infer`` are seconds and watts, (1, n) and (k, n); ``batch_sizes`` has shape (k, 1).
    """
    assert problem.rate_hz is not None
    window_s = batch_sizes / problem.rate_hz
    holds = (
        latency_probability(problem, batch_sizes, infer[0])
        * infer[1].probability_below(problem.power_w)
        * train[1].probability_below(problem.power_w)
    )
    if best is None:
        steps = np.maximum(window_s - np.exp(infer[0].mean), 0.0) / np.exp(train[0].mean)
        likely = np.where(holds > 0.5, steps, 0.0).max()
        return holds * (FEASIBILITY_WEIGHT + np.minimum(steps / max(float(likely or steps.max()), 1e-9), 1.0))
    gain = (
        TIE_WEIGHT
        * steps_fit_probability(best.steps, window_s, train[0], infer[0])
        * infer[0].expected_log_improvement(best.infer_s)
    )
    for more in range(1, MAX_EXTRA_STEPS + 1):
        gain += steps_fit_probability(best.steps + more, window_s, train[0], infer[0]) / (best.steps + more)
    worth: Floats = holds * gain
    return worth


def latency_probability(problem: ServingProblem, batch_sizes: Floats, seconds: LogNormalSpread) -> Floats:
    """Return the probability that a batch's time meets the limits on latency and throughput."""
    assert problem.rate_hz is not None
    assert problem.latency_s is not None
    window_s = batch_sizes / problem.rate_hz
    return seconds.probability_below(np.minimum(problem.latency_s - window_s, window_s))


def steps_fit_probability(steps: int, window_s: Floats, train: LogNormalSpread, infer: LogNormalSpread) -> Floats:
    """Return p(N), the probability that ``steps`` training steps fit into the window beside its batch."""
    train_s, infer_s = steps * np.exp(train.mean), np.exp(infer.mean)
    total_s = train_s + infer_s
    sd = np.hypot(train_s * train.sd, infer_s * infer.sd) / total_s
    return normal_cdf((np.log(window_s) - np.log(total_s)) / sd)


def normal_cdf(z: Floats) -> Floats:
    """Approximate the standard normal distribution function within 2e-4, cheaply, since a search calls it very often.

    References:
        Page (1977).
    """
    value: Floats = 0.5 * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (z + 0.044715 * z * z * z)))
    return value
