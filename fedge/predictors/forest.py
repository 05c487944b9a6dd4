"""Predictor of extremely randomised trees on log time and log power, over the knobs and a few products of them.

Of scikit-learn's forests this one has the smallest errors with few rows: its random thresholds average to a smooth
surface.

References:
    Geurts, Ernst and Wehenkel, Extremely randomized trees (2006).
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
"""Number of trees, each grown on all measurements until its leaves are pure. Default; more trees change the time
only."""
NOISE_SD_LOG = 0.02
"""Noise of a measurement in log units, which the trees' spread does not show. Default, close to the noise of power in
``physics.model_fit``; a larger value widens the intervals of measured modes."""


class ForestPredictor:
    """A ``fedge.protocols.Predictor``: one forest for time and one for power, from one measured mode on.

    The prediction is the mean of the trees' logarithms and thus never outside the measured range. The spread combines
    the trees' standard deviation, ``NOISE_SD_LOG`` and ``PRIOR_SD_LOG`` / (number of measurements), because few
    measurements make the trees similar.

    Attributes:
        knowledge: Prior knowledge of board and workload.
        time_: Fitted forest of log time.
        power_: Fitted forest of log power.
        doubt_: Additional spread for few measurements, log units.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        top = knowledge.maxn
        self.knowledge = knowledge
        self._top = np.array([top.cores, top.cpu_mhz, top.gpu_mhz, top.mem_mhz])

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Grow both forests.

        Raises:
            BadInput: There are no measurements, or scikit-learn is not installed.
        """
        learnt = collect_columns("forest", measurements)
        x, seed = self._features(learnt.knobs), self.knowledge.seed
        self.time_ = _fit_forest(x, np.log(learnt.step_s), derive_seed(seed, "forest", "time"))
        self.power_ = _fit_forest(x, np.log(learnt.power_w), derive_seed(seed, "forest", "power"))
        self.doubt_ = PRIOR_SD_LOG / len(learnt.knobs)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode; requires ``fit``."""
        x = self._features(modes.knobs)
        (log_s, sd_s), (log_w, sd_w) = (self._mean_and_spread(forest, x) for forest in (self.time_, self.power_))
        return Predictions(modes, step_s=np.exp(log_s), power_w=np.exp(log_w), step_s_sd_log=sd_s, power_w_sd_log=sd_w)

    def _mean_and_spread(self, forest: ExtraTreesRegressor, x: Floats) -> tuple[Floats, Floats]:
        singles = x.astype(np.float32)
        trees = np.stack([tree.predict(singles) for tree in forest.estimators_])
        return trees.mean(axis=0), np.sqrt(trees.var(axis=0) + NOISE_SD_LOG**2 + self.doubt_**2)

    def _features(self, knobs: Floats) -> Floats:
        """Return the knobs as shares of the top mode and their combinations, shape (n, 10)."""
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
