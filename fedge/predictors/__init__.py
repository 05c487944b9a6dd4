"""Predictors of step time and power, by name."""

from __future__ import annotations

from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.protocols import Predictor
from fedge.registry import load_named

DEFAULT_PREDICTOR = "fedge"
PREDICTORS = {
    "linear": "fedge.predictors.linear_regression:LinearPredictor",
    "forest": "fedge.predictors.forest:ForestPredictor",
    "mlp": "fedge.predictors.mlp_predictor:NetworkPredictor",
    "powertrain": "fedge.predictors.powertrain:PowerTrainPredictor",
    "gp": "fedge.predictors.gaussian_process:GaussianProcessPredictor",
    "physical": "fedge.predictors.physical_predictor:PhysicalPredictor",
    "fedge": "fedge.predictors.blended_predictor:BlendedPredictor",
}
"""Names in experiments and the classes they stand for; each class is constructed from ``PriorKnowledge``."""


def load_predictor(name: str, knowledge: PriorKnowledge, where: str = "predictor") -> Predictor:
    """Construct a predictor by name.

    Args:
        name: A key of ``PREDICTORS`` or the user's own ``module:Class``.
        knowledge: Prior knowledge of board and workload.
        where: The configuration field to name in errors.

    Raises:
        UnknownName: There is no such predictor.
        BadInput: The user's module or class cannot be loaded.
    """
    predictor: Predictor = load_named(where, name, PREDICTORS)(knowledge)
    return predictor
