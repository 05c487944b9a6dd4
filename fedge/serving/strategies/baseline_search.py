"""Random and exhaustive search, baselines of Fulcrum.

Ten random modes for training alone and fifty with inference, as in the paper. The paper does not say how batch sizes
are drawn; here each trial draws one uniformly, and every problem has its own draw.

The paper's figures for training alone are not reproduced: it reports median excess times of 43, 55 and 96 % (ResNet-18,
MobileNet, YOLO), this draw gives 29, 24 and 23 % (13 to 43 % over 200 seeds). One draw that serves all problems varies
far more (medians of 28, 23 and 17 %, but 54, 63 and 91 % at its 95th percentile), so the published figures may come
from a single unlucky draw.

References:
    Fulcrum, arXiv 2509.20205.
"""

from __future__ import annotations

from fedge.seeds import make_generator
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import SearchContext
from fedge.serving.trial_search import Trial, TrialSearch, find_best_trial

TRAIN_TRIES, INFER_TRIES = 10, 50


class RandomSearch:
    """The strategy ``random``: its draw depends on the seed and the problem, or with reuse on the seed only."""

    def __init__(self, ground: SearchContext) -> None:
        self._ground = ground

    def search(self, problem: ServingProblem) -> TrialSearch:
        trials = self._draw_trials(problem)
        seen = yield trials
        return find_best_trial(problem, self._ground.batch_sizes, dict(zip(trials, seen, strict=True)))

    def _draw_trials(self, problem: ServingProblem) -> list[Trial]:
        ground, trains = self._ground, problem.family == "train"
        rng = make_generator(ground.seed, "random", problem.family, "" if ground.reuse else str(problem))
        count, modes = (TRAIN_TRIES if trains else INFER_TRIES), len(ground.modes)
        every = modes if trains else modes * len(ground.batch_sizes)
        drawn = rng.choice(every, min(count, every), replace=False).tolist()
        return [Trial(place) if trains else Trial(place % modes, place // modes) for place in drawn]


class ExhaustiveSearch:
    """The strategy ``oracle``: it tries every mode at every batch size."""

    def __init__(self, ground: SearchContext) -> None:
        batches = range(len(ground.batch_sizes)) if ground.infer or ground.batch_sizes else (None,)
        self._every = [Trial(row, batch) for batch in batches for row in range(len(ground.modes))]
        self._batch_sizes = ground.batch_sizes

    def search(self, problem: ServingProblem) -> TrialSearch:
        seen = yield self._every
        return find_best_trial(problem, self._batch_sizes, dict(zip(self._every, seen, strict=True)))
