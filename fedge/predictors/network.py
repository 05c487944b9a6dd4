"""Predicts with PowerTrain's networks trained from scratch on the measured modes, the baseline it compares itself to.

PowerTrain (doi 10.1016/j.future.2024.07.001): mean squared error, 10 % of the rows set aside. Layers and settings:
``network_pair`` and ``network_training``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from fedge.physics.knowledge import Knowledge
from fedge.predictors.baseline import seen
from fedge.predictors.network_pair import fresh
from fedge.predictors.network_training import Learnt, rows_of, train
from fedge.seeds import generator
from fedge.types import Measurement, Modes, Predictions

SET_ASIDE = 0.1
"""Share of the rows that tell the best epoch."""
SPREAD_FACTOR = 2.2
"""See ``network_training.Learnt``."""


class NetworkPredictor:
    """A ``fedge.interfaces.Predictor``: two networks that know nothing beforehand, from one measured mode on.

    Learnt: ``learnt_``.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Train both networks; raises ``BadInput`` when nothing was measured."""
        measured = seen("mlp", measurements)
        rng = generator(self.knowledge.seed, "mlp")
        trained = train(fresh(rng), rows_of(measured), SET_ASIDE, "mse", rng)
        self.learnt_ = Learnt(trained, measured, SPREAD_FACTOR)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
        return self.learnt_.predict(modes)
