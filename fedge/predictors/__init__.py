"""Predictors of step time and power, by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedge.errors import try_call
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.protocols import Predictor
from fedge.registry import load_named
from fedge.types import Measurement

DEFAULT_PREDICTOR = "fedge"
PREDICTORS = {
    "linear": "fedge.predictors.linear_regression:LinearPredictor",
    "forest": "fedge.predictors.forest:ForestPredictor",
    "mlp": "fedge.predictors.network_training:NetworkPredictor",
    "powertrain": "fedge.predictors.powertrain:PowerTrainPredictor",
    "gp": "fedge.predictors.gaussian_process:GaussianProcessPredictor",
    "physical": "fedge.predictors.physical_predictor:PhysicalPredictor",
    "fedge": "fedge.predictors.blended_predictor:BlendedPredictor",
}
"""Names in experiments and the classes they stand for; each class is constructed from ``PriorKnowledge``."""

FROM_OTHER_WORKLOADS = ("powertrain", "fedge")
"""Predictors that learn from a board's tables of other workloads; of the user's own nothing is known."""


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


def fit_predictors(
    predictors: Sequence[Predictor], measurements: Sequence[Sequence[Measurement]]
) -> list[Exception | None]:
    """Fit predictors of several boards; those whose class defines a static ``fit_together`` share one computation.

    Args:
        predictors: One predictor per board, each another object.
        measurements: The measurements of each board.

    Returns:
        For each predictor the exception that its fit raised, or None.
    """
    errors: list[Exception | None] = [None] * len(predictors)
    by_class: dict[type, list[int]] = {}
    for place, predictor in enumerate(predictors):
        by_class.setdefault(type(predictor), []).append(place)
    for kind, places in by_class.items():
        # Of the class itself: one that inherits it may have a fit of its own.
        fit_together = getattr(kind, "fit_together", None) if "fit_together" in vars(kind) else None
        together = [predictors[place] for place in places], [measurements[place] for place in places]
        if fit_together is not None and try_call(partial(fit_together, *together)) is None:
            continue
        for place in places:  # also to find the one whose fit failed
            fitted = try_call(partial(predictors[place].fit, measurements[place]))
            errors[place] = fitted if isinstance(fitted, Exception) else None
    return errors
