"""Corrections pass measurements from outside to inside and predictions back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
from contracts.rounds import MAXN, MODES, seen
from hypothesis import given
from hypothesis import strategies as st

from fedge.client.corrections import normalize, predict_corrected, to_reference
from fedge.types import Measurement, Modes, Predictions


@dataclasses.dataclass(frozen=True)
class Slower:
    """A difference that makes steps ``factor`` times as long and then adds ``extra_s``."""

    factor: float
    extra_s: float = 0.0
    fitted_to: int = 0

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        return dataclasses.replace(self, fitted_to=len(measurements))

    def to_reference(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        return [dataclasses.replace(m, step_s=(m.step_s - self.extra_s) / self.factor) for m in measurements]

    def from_reference(self, predictions: Predictions) -> Predictions:
        return dataclasses.replace(predictions, step_s=predictions.step_s * self.factor + self.extra_s)

    def normalize(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        return [dataclasses.replace(m, step_s=m.step_s * self.factor + self.extra_s) for m in measurements]


class MeanPredictor:
    """Predicts the mean of the measured step times everywhere."""

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self.step_s = float(np.mean([m.step_s for m in measurements])) if measurements else 1.0
        return self

    def predict(self, modes: Modes) -> Predictions:
        one = np.ones(len(modes))
        return Predictions(modes, self.step_s * one, one, 0 * one, 0 * one)


lists = st.lists(st.builds(Slower, st.floats(0.5, 2.0), st.floats(0.0, 0.1)), max_size=4)


@given(lists, st.floats(1.0, 5.0))
def test_what_was_measured_in_a_round_is_predicted_for_it_whatever_differs(
    corrections: list[Slower], step_s: float
) -> None:
    measured = dataclasses.replace(seen(MAXN), step_s=step_s)

    predicted = predict_corrected(MeanPredictor(), corrections, MODES, [measured])

    np.testing.assert_allclose(predicted.step_s, step_s)


@given(lists)
def test_normalizing_undoes_the_way_to_the_reference(corrections: list[Slower]) -> None:
    _, reference = to_reference(corrections, [seen(MAXN)])

    (back,) = normalize(corrections, reference)

    np.testing.assert_allclose(back.step_s, seen(MAXN).step_s)


def test_every_correction_is_fitted_to_the_measurements_that_reach_it() -> None:
    fitted, _ = to_reference([Slower(2.0), Slower(3.0)], [seen(MAXN)] * 3)

    assert fitted == [Slower(2.0, fitted_to=3), Slower(3.0, fitted_to=3)]
