"""Active learning with neural networks (ALS): repeatedly profile the modes that may lie on the Pareto front.

Fulcrum states only that 50 to 150 modes are profiled in this way and that the profile serves all problems; the method
and all numbers here are our own reconstruction. A first profile holds the lowest and the top mode and random modes.
Networks learn from it, and some unmeasured modes of the predicted front, spread evenly over its power, are measured
next, until the profile is complete. The answer is the best measured mode: a prediction that errs by a few percent too
often breaks a limit. If no measured mode meets a problem's limits, the modes with the largest predicted margin are
measured one by one until one does.

The networks are PowerTrain's two with the batch size as another input, on logarithms and around a smooth trend.
Symbols: x = ln(knobs, batch size), standardised, (n, k); y = ln(seconds, watts), (2, n); the trend is a polynomial of
second degree in x, fitted by least squares with a small ridge; the networks learn the residual at unit scale. Layers,
dropout and Adam are those of ``predictors.network_pair``. PowerTrain has no trend, logarithms or ridge; they are added
because a few dozen profiles over five batch sizes are too few for the networks alone.

References:
    Fulcrum, arXiv 2509.20205.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.pareto import front_mask
from fedge.predictors.network_pair import (
    LAYERS,
    Adam,
    Float32Array,
    NetworkPair,
    compute_gradient,
    compute_outputs,
    view_pair,
)
from fedge.seeds import make_generator
from fedge.serving.job_pair import JobPair
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.trial_model import deal_trials, stack_readings
from fedge.serving.trial_search import (
    ServingProblem,
    Trial,
    TrialReading,
    TrialSearch,
    find_best_choice,
    find_best_trial,
    request_trial,
)
from fedge.types import Floats

FIRST, MORE, MOST = 30, 24, 138
# Trials of the first profile, of each extension, and of the whole profile with inference; the total stays within
# Fulcrum's 50 to 150.
TRAIN_FIRST, TRAIN_MORE, TRAIN_MOST = 20, 10, 60
# The same for training alone, which has no batch sizes.
FURTHER, IN_ALL = 6, 150
# Largest number of extra trials for a problem that no profiled mode solves, and of trials in all.
PREDICTION_TOLERANCE = 0.03
# An extra trial may be predicted to exceed a limit by this share, since predictions err. Default.
INFERENCE_SHARES = (0.0, 0.3, 0.6, 0.8)
"""Shares of the time that inference takes in its fastest mode; each gives a front of power and training step time."""


TrialProfile = dict[Trial, TrialReading]
"""The trials so far and their readings."""


@dataclass(frozen=True, slots=True, eq=False)
class ActiveLearningStep:
    """The networks fitted to a profile and the trials to measure next.

    Attributes:
        read: Bytes of the readings, as a cache key.
        train: Network of the training job; None without training.
        infer: Network of the inference job; None without inference.
        predicted: Seconds and watts, shape (2, 1 + batch sizes, n), training first.
        next: Trials to measure next; empty at the end.
    """

    read: bytes
    train: NetworkSurface | None
    infer: NetworkSurface | None
    predicted: Floats
    next: list[Trial]


@dataclass(frozen=True, slots=True, eq=False)
class ActiveLearningResult:
    """A finished profile with measured values (infinite power elsewhere) and predicted values."""

    profile: TrialProfile
    measured: JobPair
    predicted: Floats


class ActiveNetworks:
    """The strategy ``als``, a ``fedge.serving.strategies.SearchStrategy``.

    Every search requests the profile, so that its trials are counted, unless trials are reused; networks fitted to the
    same readings are cached.
    """

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._steps: dict[tuple[bool, int], ActiveLearningStep] = {}
        self._learnt: dict[bool, ActiveLearningResult] = {}

    def search(self, problem: ServingProblem) -> TrialSearch:
        infers = problem.family != "train"
        if not (self._context.reuse and infers in self._learnt):
            yield from self._extend_profile(infers)
        learnt = self._learnt[infers]
        if (found := find_best_choice(problem, learnt.measured)) is not None:
            return found
        tried = yield from _try_further(self._context, problem, learnt)
        if self._context.reuse and tried:
            self._store_result(infers, learnt.profile | tried, learnt.predicted)
        return find_best_trial(problem, self._context.batch_sizes, tried)

    def _extend_profile(self, infers: bool) -> Generator[Sequence[Trial], Sequence[TrialReading], None]:
        profile: TrialProfile = {}
        step = None
        trials = _choose_first_trials(self._context, infers)
        while trials:
            profile |= zip(trials, (yield trials), strict=True)
            step = self._cached_step(infers, profile, step)
            trials = step.next
        assert step is not None
        if infers not in self._learnt or _readings(self._learnt[infers].profile).tobytes() != step.read:
            self._store_result(infers, profile, step.predicted)

    def _cached_step(
        self, infers: bool, profile: TrialProfile, before: ActiveLearningStep | None
    ) -> ActiveLearningStep:
        at, read = (infers, len(profile)), _readings(profile).tobytes()
        if at not in self._steps or self._steps[at].read != read:
            self._steps[at] = _compute_step(self._context, infers, profile, before)
        return self._steps[at]

    def _store_result(self, infers: bool, profile: TrialProfile, predicted: Floats) -> None:
        count, modes = _count_batch_sizes(self._context, infers), len(self._context.modes)
        nothing = np.stack([np.ones((1 + count, modes)), np.full((1 + count, modes), np.inf)])
        measured = _replace_by_readings(self._context, infers, nothing, profile)
        self._learnt[infers] = ActiveLearningResult(profile, measured, predicted)


def _readings(profile: TrialProfile) -> Floats:
    """Return the readings with the columns of ``stack_readings``, (n, 4)."""
    return stack_readings(list(profile.values()))


def _try_further(
    context: SearchContext, problem: ServingProblem, learnt: ActiveLearningResult
) -> Generator[Sequence[Trial], Sequence[TrialReading], dict[Trial, TrialReading]]:
    """Make extra trials until one meets the limits or none is predicted to."""
    room = _limit_margins(
        problem, _replace_by_readings(context, problem.family != "train", learnt.predicted, learnt.profile)
    )
    for trial in learnt.profile:
        room[trial.batch or 0, trial.row] = -np.inf
    tried: dict[Trial, TrialReading] = {}
    while len(tried) < min(FURTHER, IN_ALL - len(learnt.profile)) and room.max() > -PREDICTION_TOLERANCE:
        place, row = (int(i) for i in np.unravel_index(int(np.argmax(room)), room.shape))
        trial = Trial(row, None if problem.family == "train" else place)
        tried[trial] = seen = yield from request_trial(trial)
        if find_best_trial(problem, context.batch_sizes, {trial: seen}) is not None:
            break
        room[place, row] = -np.inf
    return tried


def _limit_margins(problem: ServingProblem, expected: JobPair) -> Floats:
    """Return the logarithm of each choice's distance to its nearest limit, (batch sizes or 1, n)."""
    power_w = [watts for watts in (expected.train_w[None], expected.infer_w) if watts.size]
    room = np.log(problem.power_w) - np.log(np.broadcast_arrays(*power_w)).max(axis=0)
    if problem.latency_s is not None and problem.rate_hz is not None:
        window_s = np.array(expected.batch_sizes)[:, None] / problem.rate_hz
        left_s = np.minimum(problem.latency_s - window_s, window_s)
        room = np.minimum(room, np.log(np.maximum(left_s, 1e-300)) - np.log(expected.infer_s))
    known: Floats = np.where(np.isnan(room), -np.inf, room)
    return known


def _count_batch_sizes(context: SearchContext, infers: bool) -> int:
    return len(context.batch_sizes) if infers else 0


def _choose_first_trials(context: SearchContext, infers: bool) -> list[Trial]:
    """Return the lowest and the top mode at every batch size, then random trials."""
    size, count = context.modes.knobs.prod(axis=1), _count_batch_sizes(context, infers)
    ends = [int(np.argmin(size)), int(np.argmax(size))]
    sure = [Trial(row, place) for place in (range(count) if infers else (None,)) for row in ends]
    first, rng = FIRST if infers else TRAIN_FIRST, make_generator(context.seed, "als")
    drawn = deal_trials(len(size), count, first, rng)
    return list(dict.fromkeys([*sure, *drawn]))[: max(first, len(sure))]


def _compute_step(
    context: SearchContext, infers: bool, profile: TrialProfile, before: ActiveLearningStep | None
) -> ActiveLearningStep:
    most, more = (MOST, MORE) if infers else (TRAIN_MOST, TRAIN_MORE)
    rng = make_generator(context.seed, "als", len(profile))
    knobs, rows, read = context.modes.knobs, np.array([trial.row for trial in profile]), _readings(profile)
    train = _fit_surface(knobs[rows], read[:, :2], rng, before.train if before else None)
    infer = None
    if infers:
        sizes = np.array(context.batch_sizes, dtype=np.float64)
        at = np.array([trial.batch for trial in profile], dtype=np.intp)
        inputs = np.column_stack([knobs[rows], sizes[at]])
        infer = _fit_surface(inputs, read[:, 2:], rng, before.infer if before else None)
    predicted = _predict_values(context, infers, train, infer)
    left = min(more, most - len(profile))
    expected = _replace_by_readings(context, infers, predicted, profile)
    following = _choose_front_trials(expected, set(profile), left) if left > 0 else []
    return ActiveLearningStep(read.tobytes(), train=train, infer=infer, predicted=predicted, next=following)


def _fit_surface(
    inputs: Floats, read: Floats, rng: np.random.Generator, start: NetworkSurface | None
) -> NetworkSurface | None:
    whole = np.isfinite(read).all(axis=1)
    return fit_network_surface(inputs[whole], np.log(read[whole].T), rng, start) if whole.any() else None


def _predict_values(
    context: SearchContext, infers: bool, train: NetworkSurface | None, infer: NetworkSurface | None
) -> Floats:
    """Return predicted seconds and watts, (2, 1 + batch sizes, n), training first; nan for a job that does not run."""
    knobs, count = context.modes.knobs, _count_batch_sizes(context, infers)
    values = np.full((2, 1 + count, len(knobs)), np.nan)
    if train is not None:
        values[:, 0] = np.exp(train.predict_logs(knobs))
    if infer is not None:
        for place, size in enumerate(context.batch_sizes):
            values[:, 1 + place] = np.exp(
                infer.predict_logs(np.column_stack([knobs, np.full(len(knobs), float(size))]))
            )
    return values


def _replace_by_readings(context: SearchContext, infers: bool, values: Floats, profile: TrialProfile) -> JobPair:
    """Return the pair of ``values`` (2, 1 + batch sizes, n), with readings in place of measured values."""
    values = values.copy()
    rows, read = np.array([trial.row for trial in profile]), _readings(profile)
    trains = bool(np.isfinite(read[:, 0]).any())
    values[:, 0, rows] = read[:, :2].T
    if infers:
        places = np.array([trial.batch for trial in profile], dtype=np.intp)
        values[:, 1 + places, rows] = read[:, 2:].T
    (train_s, *infer_s), (train_w, *infer_w) = values
    none = np.empty(0)
    shape = _count_batch_sizes(context, infers), len(context.modes)
    return JobPair(
        context.modes,
        batch_sizes=context.batch_sizes if infers else (),
        train_s=train_s if trains else none,
        train_w=train_w if trains else none,
        infer_s=np.reshape(infer_s, shape),
        infer_w=np.reshape(infer_w, shape),
    )


def _choose_front_trials(pair: JobPair, tried: set[Trial], count: int) -> list[Trial]:
    """Return at most ``count`` untried trials, spread evenly over the power of each batch size's front.

    If both jobs run, a larger batch size gets more trials, since its windows have room for more training.
    """
    if not pair.has_inference:
        front = np.flatnonzero(front_mask(pair.train_s, pair.train_w)).tolist()
        return [
            Trial(row)
            for row in _spread_over_power([row for row in front if Trial(row) not in tried], pair.train_w, count)
        ]
    weights = np.arange(1, len(pair.batch_sizes) + 1) if pair.has_training else np.ones(len(pair.batch_sizes))
    ends = np.round(count * np.cumsum(weights) / weights.sum()).astype(int)
    chosen = []
    for place, most in enumerate(np.diff(ends, prepend=0).tolist()):
        mask, power_w = _front_at_batch(pair, place)
        rows = [row for row in np.flatnonzero(mask).tolist() if Trial(row, place) not in tried]
        chosen += [Trial(row, place) for row in _spread_over_power(rows, power_w, most)]
    return chosen


def _front_at_batch(pair: JobPair, place: int) -> tuple[NDArray[np.bool_], Floats]:
    """Return which modes are on the front at a batch size, (n,), and the power of all modes in watts."""
    infer_s, power_w = pair.infer_s[place], pair.infer_w[place]
    if not pair.has_training:
        return front_mask(infer_s, power_w), power_w
    power_w = np.maximum(power_w, pair.train_w)
    mask = np.zeros(len(power_w), dtype=np.bool_)
    for busy in INFERENCE_SHARES:
        left = 1.0 - busy * infer_s / np.nanmin(infer_s)
        mask |= front_mask(np.where(left > 0.0, pair.train_s / np.where(left > 0.0, left, 1.0), np.inf), power_w)
    return mask, power_w


def _spread_over_power(rows: list[int], power_w: Floats, count: int) -> list[int]:
    """Return the ``count`` rows nearest to evenly spaced power levels, or all rows if there are fewer."""
    if len(rows) <= count:
        return rows
    left, chosen = set(rows), []
    for level in np.linspace(power_w[rows].min(), power_w[rows].max(), count).tolist():
        chosen.append(min(left, key=lambda row: (abs(power_w[row] - level), row)))
        left.remove(chosen[-1])
    return chosen


REPEATS, BATCH, EPOCHS, MORE_EPOCHS = 5, 32, 100, 50
# Repetitions of a reading, rows per step, and passes over all rows for a new fit and for a continued one. Defaults that
# trade accuracy against the time of a fit.
RIDGE = 1e-3
# Ridge of the trend per reading. Default: only keeps the least-squares problem well conditioned.


@dataclass(frozen=True, slots=True, eq=False)
class NetworkSurface:
    """A fitted trend and networks.

    Attributes:
        mean: Mean of the logarithms of the inputs, shape (k,).
        sd: Standard deviation of the logarithms of the inputs, shape (k,).
        slopes: Coefficients of the trend, shape (terms, 2).
        scale: Standard deviation of the residuals, shape (2, 1).
    """

    mean: Floats
    sd: Floats
    slopes: Floats
    scale: Floats
    networks: NetworkPair

    def predict_logs(self, inputs: Floats) -> Floats:
        """Return ln(seconds, watts), shape (2, n), at ``inputs``, shape (n, k)."""
        x = (np.log(inputs) - self.mean) / self.sd
        rest = compute_outputs(self.networks, x.astype(np.float32)).astype(np.float64)
        logs: Floats = (_trend_terms(x) @ self.slopes).T + rest * self.scale
        return logs


def fit_network_surface(
    inputs: Floats, logs: Floats, rng: np.random.Generator, start: NetworkSurface | None = None
) -> NetworkSurface:
    """Fit trend and networks.

    Args:
        inputs: Knobs and batch size, shape (n, k), positive.
        logs: ln(seconds, watts), shape (2, n).
        rng: Generator of initial weights, order and dropout.
        start: Surface whose networks are trained further; None starts from random weights.
    """
    x = np.log(inputs)
    mean, sd = x.mean(axis=0), x.std(axis=0)
    sd[sd < 1e-9] = 1.0
    x = (x - mean) / sd
    terms = _trend_terms(x)
    ridge = RIDGE * len(x) * np.eye(terms.shape[1])
    ridge[0, 0] = 0.0
    slopes = np.linalg.solve(terms.T @ terms + ridge, terms.T @ logs.T).astype(np.float64)
    rest = logs - (terms @ slopes).T
    scale = np.maximum(rest.std(axis=1, keepdims=True), 1e-6)
    networks = (
        _init_networks(x.shape[1], rng)
        if start is None
        else view_pair(start.networks.flat.copy(), _layer_sizes(x.shape[1]))
    )
    epochs = EPOCHS if start is None else MORE_EPOCHS
    _train(networks, x=x.astype(np.float32), y=(rest / scale).astype(np.float32), epochs=epochs, rng=rng)
    return NetworkSurface(mean, sd=sd, slopes=slopes, scale=scale, networks=networks)


def _trend_terms(x: Floats) -> Floats:
    """Return the terms of the trend, (n, terms): 1, every x, and every product of two."""
    first, second = np.triu_indices(x.shape[1])
    return np.concatenate([np.ones((len(x), 1)), x, x[:, first] * x[:, second]], axis=1)


def _train(networks: NetworkPair, x: Float32Array, y: Float32Array, epochs: int, rng: np.random.Generator) -> None:
    rows = np.repeat(np.arange(len(x)), REPEATS)
    adam, slopes = Adam(len(networks.flat)), view_pair(np.empty_like(networks.flat), _layer_sizes(x.shape[1]))
    for _ in range(epochs):
        order = rng.permutation(rows)
        for first in range(0, len(order), BATCH):
            some = order[first : first + BATCH]
            wanted = y[:, some]

            def slope(said: Float32Array, wanted: Float32Array = wanted) -> Float32Array:
                return (said - wanted) * np.float32(2.0 / wanted.shape[1])

            compute_gradient(networks, x=x[some], slope=slope, rng=rng, into=slopes)
            adam.step(networks.flat, slopes.flat)


def _layer_sizes(inputs: int) -> tuple[tuple[int, int], ...]:
    return (inputs, LAYERS[0][1]), *LAYERS[1:]


def _init_networks(inputs: int, rng: np.random.Generator) -> NetworkPair:
    size = sum(2 * (ins + 1) * outs for ins, outs in _layer_sizes(inputs))
    networks = view_pair(np.empty(size, np.float32), _layer_sizes(inputs))
    for (ins, _), weight, bias in zip(_layer_sizes(inputs), networks.weights, networks.biases, strict=True):
        weight[:] = rng.uniform(-(ins**-0.5), ins**-0.5, weight.shape)
        bias[:] = rng.uniform(-(ins**-0.5), ins**-0.5, bias.shape)
    return networks
