"""Predictor of PowerTrain's networks trained from scratch on the measured modes, the baseline of its paper.

Mean squared error, 10 % of the rows held out. Layers and settings: ``network_pair`` and ``network_training``.

References:
    PowerTrain (doi 10.1016/j.future.2024.07.001).
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
"""Share of the rows held out to select the best epoch."""
SPREAD_FACTOR = 2.2
"""Factor of the spread; see ``network_training.BoundedNetworks``."""


class NetworkPredictor:
    """A ``fedge.protocols.Predictor``: two networks without prior knowledge, from one measured mode on.

    Attributes:
        knowledge: Prior knowledge of board and workload; only its seed is used.
        learnt_: The trained networks.
    """

    def __init__(self, knowledge: PriorKnowledge) -> None:
        self.knowledge = knowledge

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Train both networks.

        Raises:
            BadInput: There are no measurements.
        """
        measured = collect_columns("mlp", measurements)
        rng = make_generator(self.knowledge.seed, "mlp")
        trained = train_pair(
            init_pair(rng), rows=build_training_rows(measured), set_aside=SET_ASIDE, loss="mse", rng=rng
        )
        self.learnt_ = BoundedNetworks(trained, measured, SPREAD_FACTOR)
        return self

    def predict(self, modes: Modes) -> Predictions:
        """Predict step time and power of every mode; requires ``fit``."""
        return self.learnt_.predict(modes)
