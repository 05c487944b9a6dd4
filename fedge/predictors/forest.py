"""Predicts with extremely randomised trees on log time and log power, over the knobs and a few products of them.

Geurts, Ernst and Wehenkel, Extremely randomized trees (2006), as scikit-learn has them. Of its forests they do best
with few rows: their random thresholds average to a smooth surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from fedge.errors import BadInput
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.measurement_columns import PRIOR_SD_LOG, collect_columns
from fedge.seeds import derive_seed
from fedge.types import Floats, Measurement, Modes, Predictions

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor

TREES = 200
"""Each grown on every measurement until its leaves are pure. Chosen by us: more change nothing but the time."""
NOISE_SD_LOG = 0.02
"""A reading's own scatter, on which trees that all saw it agree. Chosen by us."""


class ForestPredictor:
    """A ``fedge.protocols.Predictor``: a forest for time and one for power, from one measured mode on.

    A mode is predicted as the mean of its trees' logarithms, so never outside what was measured. Its spread is the
    trees' standard deviation, with ``NOISE_SD_LOG`` and a doubt of ``PRIOR_SD_LOG`` / measurements, because few
    measurements make trees alike. Learnt: ``time_``, ``power_``, ``doubt_``.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        top = knowledge.maxn
        self.knowledge = knowledge
        self._top = np.array([top.cores, top.cpu_mhz, top.gpu_mhz, top.mem_mhz])

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Grow both forests; raises ``BadInput`` when nothing was measured or scikit-learn is absent."""
        learnt = collect_columns("forest", measurements)
        x, seed = self._features(learnt.knobs), self.knowledge.seed
        self.time_ = _fit_forest(x, np.log(learnt.step_s), derive_seed(seed, "forest", "time"))
        self.power_ = _fit_forest(x, np.log(learnt.power_w), derive_seed(seed, "forest", "power"))
        self.doubt_ = PRIOR_SD_LOG / len(learnt.knobs)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
        x = self._features(modes.knobs)
        (log_s, sd_s), (log_w, sd_w) = (self._mean_and_spread(forest, x) for forest in (self.time_, self.power_))
        return Predictions(modes, step_s=np.exp(log_s), power_w=np.exp(log_w), step_s_sd_log=sd_s, power_w_sd_log=sd_w)

    def _mean_and_spread(self, forest: ExtraTreesRegressor, x: Floats) -> tuple[Floats, Floats]:
        singles = x.astype(np.float32)
        trees = np.stack([tree.predict(singles) for tree in forest.estimators_])
        return trees.mean(axis=0), np.sqrt(trees.var(axis=0) + NOISE_SD_LOG**2 + self.doubt_**2)

    def _features(self, knobs: Floats) -> Floats:
        """The knobs as shares of their top, and what two of them give together: shape (n, 10)."""
        share = knobs / self._top
        cores, cpu, gpu, mem = share.T
        together = (
            cores * cpu,
            gpu * mem,
            gpu / mem,
            cpu / gpu,
            1 / (1 / gpu + 1 / mem),
            1 / (1 / (cores * cpu) + 1 / gpu),
        )
        return np.column_stack([share, *together])


def _fit_forest(x: Floats, y: Floats, seed: int) -> ExtraTreesRegressor:
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        right = "scikit-learn is not installed here, and boards never have it: take the predictor fedge"
        raise BadInput("predictor", "forest, which is scikit-learn's", right) from error
    return ExtraTreesRegressor(TREES, random_state=seed, n_jobs=1).fit(x, y)
