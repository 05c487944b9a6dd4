"""Neural networks on a random profile and the best mode by their predictions, not verified: a baseline of Fulcrum.

Fulcrum trains PowerTrain's networks on 250 profiles. Here they are ``predictors.mlp_predictor``, two for each job.
Inference has separate networks per batch size, because PowerTrain's network takes only the mode as input, and the 250
modes are distributed evenly over the batch sizes (50 each at five of them); the paper leaves both open. The best mode
by prediction tends to be one whose prediction is too optimistic: limits are broken often, above all by concurrent jobs.

References:
    Fulcrum, arXiv 2509.20205.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.mlp_predictor import NetworkPredictor
from fedge.seeds import derive_seed, make_generator
from fedge.serving.job_choice import find_best_choice
from fedge.serving.job_pair import JobPair
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.initial_trials import deal_trials, stack_readings
from fedge.serving.trial_search import Trial, TrialSearch
from fedge.types import Floats, Measurement, Modes

PROFILES = 250
MINIBATCHES = 20
# Training rows per profile: half as many as in PowerTrain, to halve the time of a fit.


class NetworkSearch:
    """The strategy ``nn``, a ``fedge.serving.strategies.SearchStrategy``; its choice need not be among its trials.

    Every search requests the profile, so that its trials are counted; networks fitted to the same readings are cached.
    """

    def __init__(self, ground: SearchContext) -> None:
        self._ground = ground
        self._learnt: dict[bool, tuple[bytes, JobPair]] = {}

    def search(self, problem: ServingProblem) -> TrialSearch:
        infers = problem.family != "train"
        known = self._learnt.get(infers)
        if known is None or not self._ground.reuse:
            rng = make_generator(self._ground.seed, "nn")
            trials = deal_trials(len(self._ground.modes), len(self._ground.batch_sizes) if infers else 0, PROFILES, rng)
            read = stack_readings((yield trials))
            if known is None or known[0] != read.tobytes():
                known = read.tobytes(), _predict_pair(self._ground, trials, read)
                self._learnt[infers] = known
        return find_best_choice(problem, known[1])


def _predict_pair(ground: SearchContext, trials: list[Trial], read: Floats) -> JobPair:
    """Return the pair predicted by networks trained on readings (n, 4); a job that was not measured has no rows."""
    modes, none = ground.modes, np.empty(0)
    rows = np.array([trial.row for trial in trials], dtype=np.intp)
    batch = np.array([-1 if trial.batch is None else trial.batch for trial in trials])
    train_s, train_w = none, none
    if np.isfinite(read[:, 0]).any():
        train_s, train_w = _predict_job(modes, rows, read[:, :2], derive_seed(ground.seed, "nn", "train"))
    infer = [
        _predict_job(modes, rows[batch == place], read[batch == place, 2:], derive_seed(ground.seed, "nn", place))
        for place in range(len(ground.batch_sizes) if batch.max() >= 0 else 0)
    ]
    infer_s, infer_w = (np.stack([one[i] for one in infer]) if infer else np.empty((0, len(modes))) for i in (0, 1))
    return JobPair(
        modes,
        batch_sizes=ground.batch_sizes if infer else (),
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
