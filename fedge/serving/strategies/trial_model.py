"""The beliefs about both jobs, before and after trials, the initial trials, and the expected gain of the next one.

Constrained expected improvement. Symbols: P, L, a, b, t_tr, t_in, N as in ``fedge.serving.trial_search``; W = b/a; Phi
the normal distribution of the logarithms; F the probability that all limits are met. Until a trial meets them, a trial
is worth F, more if more training steps are expected. After that, with the best values so far N* and t*:

training    F E[ln(t*/t_tr)+]                     inference    F E[ln(t*/t_in)+]
both        F (sum_j p(N* + j) / (N* + j) + TIE p(N*) E[ln(t*/t_in)+]),  j = 1 .. J,  p(N) = P(N t_tr + t_in <= W)

with J = ``MAX_EXTRA_STEPS`` and TIE = ``TIE_WEIGHT``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.physics.matern import Float32Array
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.job_posterior import (
    JobBelief,
    JobModel,
    SequentialBelief,
    build_job_model,
    compute_posteriors,
    compute_priors,
)
from fedge.serving.trial_search import ServingProblem, Trial, TrialReading, count_steps_per_window, find_best_trial
from fedge.types import Floats


def deal_trials(modes: int, batches: int, count: int, rng: np.random.Generator) -> list[Trial]:
    """Draw random trials whose modes are distributed evenly over the batch sizes.

    No mode repeats before all were drawn once. ``batches`` is 0 without inference.
    """
    order = rng.permutation(modes).tolist()
    if batches == 0:
        return [Trial(row) for row in order[:count]]
    places = range(min(count, modes * batches))
    return [Trial(order[at % modes], (at % modes + at // modes) % batches) for at in places]


def stack_readings(seen: Sequence[TrialReading]) -> Floats:
    """Return the columns train_s, train_w, infer_s, infer_w, shape (n, 4)."""
    values = [(one.train_s, one.train_w, one.infer_s, one.infer_w) for one in seen]
    return np.array(values, dtype=np.float64).reshape(len(values), 4)


@dataclass(frozen=True, slots=True, eq=False)
class TrialQuantity:
    """A posterior, and the index of the point that each trial measures, shape (trials,)."""

    belief: JobBelief
    point: NDArray[np.intp]


def choose_initial_trials(quantities: Sequence[TrialQuantity], count: int, fixed: Sequence[int] = ()) -> list[int]:
    """Choose the most informative trials greedily.

    Args:
        quantities: Prior of every quantity that a trial measures.
        count: Number of trials.
        fixed: Trials that come first in any case.

    Returns:
        Trial numbers: the fixed ones, then the others by decreasing information.
    """
    covariances = [quantity.belief.covariance.copy() for quantity in quantities]
    chosen: list[int] = []
    for wanted in [*fixed, *([None] * (count - len(fixed)))]:
        trial = _most_informative_trial(quantities, covariances, chosen) if wanted is None else wanted
        chosen.append(trial)
        for quantity, covariance in zip(quantities, covariances, strict=True):
            point = quantity.point[trial]
            column = covariance[:, point].copy()
            taught = np.outer(column, column / (column[point] + quantity.belief.noise_sd**2))
            np.subtract(covariance, taught, out=covariance)
    return chosen[:count]


def _most_informative_trial(
    quantities: Sequence[TrialQuantity], covariances: Sequence[Float32Array], chosen: Sequence[int]
) -> int:
    left = np.zeros(len(quantities[0].point))
    for quantity, covariance in zip(quantities, covariances, strict=True):
        noise_var = quantity.belief.noise_sd**2
        own = np.diag(covariance)
        after = np.maximum(own[:, None] - np.square(covariance) / (own + noise_var), 0.0) + noise_var
        left += np.log(after).mean(axis=0)[quantity.point]
    left[list(chosen)] = np.inf
    return int(np.argmin(left))


TOP_MODE_TRIALS = 3
# Number of the largest batch sizes at which the top mode is tried first. Default: shows early whether the problem is
# feasible at all.
TOP_SHARE = 0.5
# The top mode is not tried first if the power budget is below this share of its expected power. Default.

BatchPlaces = tuple[int | None, ...]
"""Indices of batch sizes in the search context; ``(None,)`` for training alone."""


@dataclass(frozen=True, slots=True, eq=False)
class TrialSpace:
    """The jobs at k batch sizes; trial number t is batch size ``t // n`` and mode ``t % n``.

    Attributes:
        train: Model of the training job; None without training.
        infer: Model of the inference job; None without inference.
    """

    context: SearchContext
    places: BatchPlaces
    train: JobModel | None
    infer: JobModel | None

    @property
    def mode_count(self) -> int:
        return len(self.context.modes)

    @property
    def trial_count(self) -> int:
        return len(self.places) * self.mode_count

    @property
    def batch_sizes(self) -> Floats:
        """Return the batch sizes, shape (k, 1); 0 without inference."""
        return np.array([[0.0 if place is None else self.context.batch_sizes[place]] for place in self.places])

    def trial_at(self, number: int) -> Trial:
        return Trial(number % self.mode_count, self.places[number // self.mode_count])

    def number_of_trial(self, trial: Trial) -> int:
        return self.places.index(trial.batch) * self.mode_count + trial.row


def build_trial_space(context: SearchContext, places: BatchPlaces) -> TrialSpace:
    """Build the models of both jobs at the given batch sizes.

    Raises:
        BadInput: If a job has no prior.
    """
    train = None if context.train is None else build_job_model((context.train,), (1,), context.modes, infers=False)
    own = [place for place in places if place is not None]
    known, sizes = [context.infer[place] for place in own], [context.batch_sizes[place] for place in own]
    return TrialSpace(
        context, places, train, build_job_model(known, sizes, context.modes, infers=True) if own else None
    )


class OpeningTrials:
    """The cached first trials; of the problem they depend only on whether its budget allows the top mode."""

    def __init__(self, stage: TrialSpace) -> None:
        self._stage = stage
        self._designs: dict[tuple[int, int], list[Trial]] = {}
        knobs = stage.context.modes.knobs
        self._top = int(np.argmax((knobs / knobs.max(axis=0)).sum(axis=1)))
        self._top_w = 0.0
        for job in (stage.train, stage.infer):
            if job is not None:
                self._top_w = max(self._top_w, float(np.exp(compute_priors(job)[1].mean[self._top])))

    def select_trials(self, power_w: float, count: int) -> list[Trial]:
        """Return ``count`` first trials: the top mode if ``power_w`` may allow it, then the most informative trials."""
        tops = TOP_MODE_TRIALS if self._stage.infer is not None and power_w >= TOP_SHARE * self._top_w else 0
        if (tops, count) not in self._designs:
            self._designs[tops, count] = self._design_trials(tops, count)
        return self._designs[tops, count]

    def _design_trials(self, tops: int, count: int) -> list[Trial]:
        stage = self._stage
        points = np.arange(stage.trial_count)
        quantities = []
        if stage.train is not None:
            quantities += [TrialQuantity(belief, points % stage.mode_count) for belief in compute_priors(stage.train)]
        if stage.infer is not None:
            quantities += [TrialQuantity(belief, points) for belief in compute_priors(stage.infer)]
        last = range(len(stage.places))[-tops:] if tops else ()
        fixed = [place * stage.mode_count + self._top for place in last]
        return [
            stage.trial_at(number) for number in choose_initial_trials(quantities, min(count, stage.trial_count), fixed)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class JobBeliefs:
    """Posteriors of time and power of either job."""

    train: tuple[JobBelief, JobBelief] | None
    infer: tuple[JobBelief, JobBelief] | None


def fit_beliefs(stage: TrialSpace, tried: Mapping[Trial, TrialReading]) -> JobBeliefs:
    """Fit the posteriors to ``tried``; a mode tried at several batch sizes counts once for training."""
    numbers = np.array([stage.number_of_trial(trial) for trial in tried], dtype=np.intp)
    seen = list(tried.values())
    train = infer = None
    if stage.train is not None:
        rows, which = np.unique(numbers % stage.mode_count, return_inverse=True)
        train = compute_posteriors(stage.train, rows, *_average_logs([(s.train_s, s.train_w) for s in seen], which))
    if stage.infer is not None:
        infer = compute_posteriors(
            stage.infer, numbers, *_average_logs([(s.infer_s, s.infer_w) for s in seen], np.arange(len(seen)))
        )
    return JobBeliefs(train, infer)


def _average_logs(values: Sequence[tuple[float, float]], which: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Return the logarithms of seconds and watts, averaged over the trials of each point."""
    logs, count = np.log(np.array(values)), np.bincount(which)
    return np.bincount(which, logs[:, 0]) / count, np.bincount(which, logs[:, 1]) / count


class TrialModel:
    """Posteriors that are updated by further trials, with all readings."""

    def __init__(self, stage: TrialSpace, tried: Mapping[Trial, TrialReading], beliefs: JobBeliefs) -> None:
        """Start from ``beliefs``, the posteriors after ``tried``."""
        self.stage = stage
        self.tried = dict(tried)
        self._train = [SequentialBelief(belief) for belief in beliefs.train or ()]
        self._infer = [SequentialBelief(belief) for belief in beliefs.infer or ()]

    def tell(self, trial: Trial, seen: TrialReading) -> None:
        self.tried[trial] = seen
        number = self.stage.number_of_trial(trial)
        for updated, value in zip(self._train, (seen.train_s, seen.train_w), strict=False):
            updated.tell(trial.row, float(np.log(value)))
        for updated, value in zip(self._infer, (seen.infer_s, seen.infer_w), strict=False):
            updated.tell(number, float(np.log(value)))

    def expected_power_w(self) -> Floats:
        """Return the expected power of interleaving in every mode at the largest batch size in watts, (n,)."""
        means = [updated[1].mean[-self.stage.mode_count :] for updated in (self._train, self._infer) if updated]
        watts: Floats = np.exp(np.max(means, axis=0))
        return watts

    def expected_gains(self, problem: ServingProblem) -> Floats:
        """Return the expected gain of every trial for the problem, (k n,); minus infinity for trials already made."""
        stage, best = self.stage, self._best_trial(problem)
        train = [LogNormalSpread.from_belief(updated, 1) for updated in self._train]
        infer = [LogNormalSpread.from_belief(updated, len(stage.places)) for updated in self._infer]
        if problem.family == "train":
            gain = expected_gain_training(problem, train[0], train[1], best)
        elif problem.family == "infer":
            gain = expected_gain_inference(
                problem, batch_sizes=stage.batch_sizes, seconds=infer[0], watts=infer[1], best=best
            )
        else:
            gain = expected_gain_both(
                problem,
                batch_sizes=stage.batch_sizes,
                train=(train[0], train[1]),
                infer=(infer[0], infer[1]),
                best=best,
            )
        gain = gain.ravel()
        gain[[stage.number_of_trial(trial) for trial in self.tried]] = -np.inf
        return gain

    def _best_trial(self, problem: ServingProblem) -> BestTrial | None:
        choice = find_best_trial(problem, self.stage.context.batch_sizes, self.tried)
        if choice is None:
            return None
        seen = self.tried[Trial(choice.row, choice.batch)]
        size = 0 if choice.batch is None else self.stage.context.batch_sizes[choice.batch]
        return BestTrial(seen.train_s, seen.infer_s, count_steps_per_window(problem, size, seen))


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
