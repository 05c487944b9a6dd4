"""Predictors of step time and power, by name."""

from __future__ import annotations

from fedge.interfaces import Predictor
from fedge.physics.knowledge import Knowledge
from fedge.registry import load

DEFAULT = "fedge"
PREDICTORS = {
    "linear": "fedge.predictors.linear:LinearPredictor",
    "forest": "fedge.predictors.forest:ForestPredictor",
    "mlp": "fedge.predictors.network:NetworkPredictor",
    "powertrain": "fedge.predictors.powertrain:PowerTrainPredictor",
    "gp": "fedge.predictors.gp:ProcessPredictor",
    "physical": "fedge.predictors.physical:PhysicalPredictor",
    "fedge": "fedge.predictors.blended:BlendedPredictor",
}
"""Name in an experiment -> where it lies; each is made from ``Knowledge``."""


def predictor_for(name: str, knowledge: Knowledge, where: str = "predictor") -> Predictor:
    """A fresh predictor: one of ``PREDICTORS`` or the user's own ``module:Class``.

    Raises ``UnknownName`` or ``BadInput`` for the field ``where``.
    """
    predictor: Predictor = load(where, name, PREDICTORS)(knowledge)
    return predictor
