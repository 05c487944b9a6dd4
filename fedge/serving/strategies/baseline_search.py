"""Random and exhaustive search and neural networks, baselines of Fulcrum.

Random search draws ten random modes for training alone and fifty with inference, as in the paper. The paper does not
say how batch sizes are drawn; here each trial draws one uniformly, and every problem has its own draw. The paper's
figures for training alone are not reproduced: it reports median excess times of 43, 55 and 96 % (ResNet-18, MobileNet,
YOLO), this draw gives 29, 24 and 23 % (13 to 43 % over 200 seeds). One draw that serves all problems varies far more
(medians of 28, 23 and 17 %, but 54, 63 and 91 % at its 95th percentile), so the published figures may come from a
single unlucky draw.

Neural networks choose the best mode by their predictions from a random profile, not verified. Fulcrum trains
PowerTrain's networks on 250 profiles. Here they are ``predictors.network_training``, two for each job. Inference has
separate networks per batch size, because PowerTrain's network takes only the mode as input, and the 250 modes are
distributed evenly over the batch sizes (50 each at five of them); the paper leaves both open. The best mode by
prediction tends to be one whose prediction is too optimistic: limits are broken often, above all by concurrent jobs.

References:
    Fulcrum, arXiv 2509.20205.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.network_training import NetworkPredictor
from fedge.seeds import derive_seed, make_generator
from fedge.serving.job_pair import JobPair
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.trial_model import deal_trials, stack_readings
from fedge.serving.trial_search import ServingProblem, Trial, TrialSearch, find_best_choice, find_best_trial
from fedge.types import Floats, Measurement, Modes

TRAIN_TRIES, INFER_TRIES = 10, 50


class RandomSearch:
    """The strategy ``random``: its draw depends on the seed and the problem, or with reuse on the seed only."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context

    def search(self, problem: ServingProblem) -> TrialSearch:
        trials = self._draw_trials(problem)
        seen = yield trials
        return find_best_trial(problem, self._context.batch_sizes, dict(zip(trials, seen, strict=True)))

    def _draw_trials(self, problem: ServingProblem) -> list[Trial]:
        context, trains = self._context, problem.family == "train"
        rng = make_generator(context.seed, "random", problem.family, "" if context.reuse else str(problem))
        count, modes = (TRAIN_TRIES if trains else INFER_TRIES), len(context.modes)
        every = modes if trains else modes * len(context.batch_sizes)
        drawn = rng.choice(every, min(count, every), replace=False).tolist()
        return [Trial(place) if trains else Trial(place % modes, place // modes) for place in drawn]


class ExhaustiveSearch:
    """The strategy ``oracle``: it tries every mode at every batch size."""

    def __init__(self, context: SearchContext) -> None:
        batches = range(len(context.batch_sizes)) if context.infer or context.batch_sizes else (None,)
        self._every = [Trial(row, batch) for batch in batches for row in range(len(context.modes))]
        self._batch_sizes = context.batch_sizes

    def search(self, problem: ServingProblem) -> TrialSearch:
        seen = yield self._every
        return find_best_trial(problem, self._batch_sizes, dict(zip(self._every, seen, strict=True)))


PROFILES = 250
MINIBATCHES = 20
# Training rows per profile: half as many as in PowerTrain, to halve the time of a fit.


class NetworkSearch:
    """The strategy ``nn``, a ``fedge.serving.strategies.SearchStrategy``; its choice need not be among its trials.

    Every search requests the profile, so that its trials are counted; networks fitted to the same readings are cached.
    """

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._learnt: dict[bool, tuple[bytes, JobPair]] = {}

    def search(self, problem: ServingProblem) -> TrialSearch:
        infers = problem.family != "train"
        known = self._learnt.get(infers)
        if known is None or not self._context.reuse:
            rng = make_generator(self._context.seed, "nn")
            trials = deal_trials(
                len(self._context.modes), len(self._context.batch_sizes) if infers else 0, PROFILES, rng
            )
            read = stack_readings((yield trials))
            if known is None or known[0] != read.tobytes():
                known = read.tobytes(), _predict_pair(self._context, trials, read)
                self._learnt[infers] = known
        return find_best_choice(problem, known[1])


def _predict_pair(context: SearchContext, trials: list[Trial], read: Floats) -> JobPair:
    """Return the pair predicted by networks trained on readings (n, 4); a job that was not measured has no rows."""
    modes, none = context.modes, np.empty(0)
    rows = np.array([trial.row for trial in trials], dtype=np.intp)
    batch = np.array([-1 if trial.batch is None else trial.batch for trial in trials])
    train_s, train_w = none, none
    if np.isfinite(read[:, 0]).any():
        train_s, train_w = _predict_job(modes, rows, read[:, :2], derive_seed(context.seed, "nn", "train"))
    infer = [
        _predict_job(modes, rows[batch == place], read[batch == place, 2:], derive_seed(context.seed, "nn", place))
        for place in range(len(context.batch_sizes) if batch.max() >= 0 else 0)
    ]
    infer_s, infer_w = (np.stack([one[i] for one in infer]) if infer else np.empty((0, len(modes))) for i in (0, 1))
    return JobPair(
        modes,
        batch_sizes=context.batch_sizes if infer else (),
        train_s=train_s,
        train_w=train_w,
        infer_s=infer_s,
        infer_w=infer_w,
    )


def _predict_job(modes: Modes, rows: NDArray[np.intp], read: Floats, seed: int) -> tuple[Floats, Floats]:
    """Return seconds and watts in every mode, each (n,); nan without a finite reading."""
    whole = np.isfinite(read).all(axis=1)
    seen = [
        Measurement(modes[int(row)], MINIBATCHES, float(step_s), float(power_w))
        for row, (step_s, power_w) in zip(rows[whole], read[whole], strict=True)
    ]
    if not seen:
        return np.full(len(modes), np.nan), np.full(len(modes), np.nan)
    top = modes[int(np.argmax(modes.knobs.prod(axis=1)))]
    predictions = NetworkPredictor(PriorKnowledge(top, seed=seed)).fit(seen).predict(modes)
    return predictions.step_s, predictions.power_w
