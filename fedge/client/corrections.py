"""How a round differs from the reference condition: training as requested, every sample ready, nothing served.

Each way is one ``Correction``. A client's corrections form a list, the outermost first: standing service, loader
stalls, training scale. Measurements pass it in this order, predictions in the reverse order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from fedge.protocols import Predictor
from fedge.types import Measurement, Modes, Predictions


class Correction(Protocol):
    """One difference between a round and the reference condition."""

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Return the correction adapted to measurements that still contain the difference."""
        ...

    def to_reference(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        """Return the measurements as they would be without the difference."""
        ...

    def from_reference(self, predictions: Predictions) -> Predictions:
        """Return predictions that include the difference; modes that it rules out are left out."""
        ...

    def normalize(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        """Return the measurements as they would be in this round: an earlier one may differ, or vary from its mean."""
        ...


def to_reference(
    corrections: Sequence[Correction], measurements: Sequence[Measurement]
) -> tuple[list[Correction], Sequence[Measurement]]:
    """Fit every correction to the measurements that reach it and convert these to the reference condition.

    Returns:
        The fitted corrections and the converted measurements.
    """
    fitted = list[Correction]()
    for correction in corrections:
        fitted.append(correction.fit(measurements))
        measurements = fitted[-1].to_reference(measurements)
    return fitted, measurements


def predict_corrected(
    predictor: Predictor, corrections: Sequence[Correction], modes: Modes, measurements: Sequence[Measurement]
) -> Predictions:
    """Predict ``modes`` in the conditions of the round from measurements in theirs."""
    fitted, reference = to_reference(corrections, measurements)
    predictions = predictor.fit(reference).predict(modes)
    return from_reference(fitted, predictions)


def from_reference(fitted: Sequence[Correction], predictions: Predictions) -> Predictions:
    """Convert predictions from the reference condition to the round's, by corrections that are fitted."""
    for correction in reversed(fitted):
        predictions = correction.from_reference(predictions)
    return predictions


def normalize(corrections: Sequence[Correction], measurements: Sequence[Measurement]) -> Sequence[Measurement]:
    """Convert the board's own measurements to the usual conditions of this round."""
    for correction in reversed(corrections):
        measurements = correction.normalize(measurements)
    return measurements
