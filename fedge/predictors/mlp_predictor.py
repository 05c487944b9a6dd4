"""Predicts with PowerTrain's networks trained from scratch on the measured modes, the baseline it compares itself to.

PowerTrain (doi 10.1016/j.future.2024.07.001): mean squared error, 10 % of the rows set aside. Layers and settings:
``network_pair`` and ``network_training``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.predictors.measurement_columns import collect_columns
from fedge.predictors.network_pair import init_pair
from fedge.predictors.network_training import BoundedNetworks, build_training_rows, train_pair
from fedge.seeds import make_generator
from fedge.types import Measurement, Modes, Predictions

SET_ASIDE = 0.1
"""Share of the rows that tell the best epoch."""
SPREAD_FACTOR = 2.2
"""See ``network_training.Learnt``."""


class NetworkPredictor:
    """A ``fedge.protocols.Predictor``: two networks that know nothing beforehand, from one measured mode on.

    Learnt: ``learnt_``.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Train both networks; raises ``BadInput`` when nothing was measured."""
        measured = collect_columns("mlp", measurements)
        rng = make_generator(self.knowledge.seed, "mlp")
        trained = train_pair(
            init_pair(rng), rows=build_training_rows(measured), set_aside=SET_ASIDE, loss="mse", rng=rng
        )
        self.learnt_ = BoundedNetworks(trained, measured, SPREAD_FACTOR)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Step time and power of every mode; needs ``fit`` first."""
        return self.learnt_.predict(modes)
