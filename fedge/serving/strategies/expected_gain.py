"""What trying each mode and batch size is expected to gain for a problem: constrained expected improvement.

Symbols: P, L, a, b, t_tr, t_in, N as in ``fedge.serving.job_choice``; W = b/a; Phi the normal distribution of the
logarithms; F the probability that all limits hold. As long as nothing tried holds them, a trial is worth F, more where
more minibatches are expected. After that, with the best so far N* and t*:

training    F E[ln(t*/t_tr)+]                     inference    F E[ln(t*/t_in)+]
both        F (sum_j p(N* + j) / (N* + j) + TIE p(N*) E[ln(t*/t_in)+]),  j = 1 .. FURTHER, p(N) = P(N t_tr + t_in <= W)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies.job_posterior import SequentialBelief
from fedge.types import Floats

MAX_EXTRA_STEPS = 4
"""So many minibatches more than the best are looked at; chosen by us."""
TIE_WEIGHT = 0.1
"""What a shorter batch is worth at the same N, beside more minibatches; chosen by us."""
FEASIBILITY_WEIGHT = 0.2
"""The share of a trial's worth that lies in holding the limits at all, until one does; chosen by us."""


@dataclass(frozen=True, slots=True)
class BestTrial:
    """What the best trial so far reached; ``steps`` counts minibatches per window, where both jobs run."""

    train_s: float
    infer_s: float
    steps: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class LogNormalSpread:
    """Mean and standard deviation of a quantity's logarithm, (batch sizes or 1, n)."""

    mean: Floats
    sd: Floats

    @classmethod
    def from_belief(cls, updated: SequentialBelief, places: int, width: float) -> LogNormalSpread:
        return cls(updated.mean.reshape(places, -1), width * updated.sd.reshape(places, -1))

    def probability_below(self, limit: Floats | float) -> Floats:
        """Probability of a value below ``limit``; 0 for a limit that is not above 0."""
        log = np.log(np.maximum(limit, 1e-300))
        return normal_cdf((log - self.mean) / self.sd)

    def expected_log_improvement(self, on: float) -> Floats:
        """E[ln(on / value)+]."""
        gain = np.log(on) - self.mean
        z = gain / self.sd
        expected: Floats = gain * normal_cdf(z) + self.sd * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
        return expected


def expected_gain_training(
    problem: ServingProblem, seconds: LogNormalSpread, watts: LogNormalSpread, best: BestTrial | None
) -> Floats:
    """Per mode, (1, n)."""
    holds = watts.probability_below(problem.power_w)
    return holds if best is None else holds * seconds.expected_log_improvement(best.train_s)


def expected_gain_inference(
    problem: ServingProblem,
    batch_sizes: Floats,
    seconds: LogNormalSpread,
    watts: LogNormalSpread,
    best: BestTrial | None,
) -> Floats:
    """Per batch size and mode, (k, n); ``batch_sizes`` is (k, 1)."""
    holds = latency_probability(problem, batch_sizes, seconds) * watts.probability_below(problem.power_w)
    return holds if best is None else holds * seconds.expected_log_improvement(best.infer_s)


def expected_gain_both(
    problem: ServingProblem,
    batch_sizes: Floats,
    train: tuple[LogNormalSpread, LogNormalSpread],
    infer: tuple[LogNormalSpread, LogNormalSpread],
    best: BestTrial | None,
) -> Floats:
    """Per batch size and mode, (k, n); seconds and watts of either job."""
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
    """Probability that a batch is inferred within what latency and keep-up leave of it."""
    assert problem.rate_hz is not None
    assert problem.latency_s is not None
    window_s = batch_sizes / problem.rate_hz
    return seconds.probability_below(np.minimum(problem.latency_s - window_s, window_s))


def steps_fit_probability(steps: int, window_s: Floats, train: LogNormalSpread, infer: LogNormalSpread) -> Floats:
    """p(N): probability that so many minibatches fit into the window beside its batch."""
    train_s, infer_s = steps * np.exp(train.mean), np.exp(infer.mean)
    total_s = train_s + infer_s
    sd = np.hypot(train_s * train.sd, infer_s * infer.sd) / total_s
    return normal_cdf((np.log(window_s) - np.log(total_s)) / sd)


def normal_cdf(z: Floats) -> Floats:
    """The standard normal distribution within 2e-4 (Page 1977): a search asks for it thousands of times."""
    value: Floats = 0.5 * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (z + 0.044715 * z * z * z)))
    return value
