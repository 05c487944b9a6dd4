"""Errors and coverage are those of a plain loop over the rows that were not profiled."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedge.errors import FedgeError
from fedge.predictors.prediction_accuracy import check_predictions, score_predictions
from fedge.types import Modes, Predictions, ProfileTable

Entry = tuple[float, float, float, float, bool, bool]
POSITIVE = st.floats(0.1, 10.0)


def made(entries: list[Entry]) -> tuple[Predictions, ProfileTable]:
    """Predicted seconds and spread, measured seconds, watts (predicted a tenth too high)."""
    count = len(entries)
    modes = Modes(np.arange(1.0, 4.0 * count + 1.0).reshape(count, 4))
    predicted, sd, measured, watts = (np.array([entry[i] for entry in entries], dtype=np.float64) for i in range(4))
    table = ProfileTable("b", "w", 16, modes, measured, watts, "0" * 64, "w.csv")
    return Predictions(modes, predicted, 1.1 * watts, sd, np.full(count, 0.05)), table


@given(
    st.lists(st.tuples(POSITIVE, POSITIVE, POSITIVE, POSITIVE, st.booleans(), st.booleans()), min_size=1, max_size=20)
)
@settings(max_examples=100)
def test_the_figures_are_those_of_a_plain_loop(entries: list[Entry]) -> None:
    predictions, table = made(entries)
    profiled = tuple(i for i, entry in enumerate(entries) if entry[4])
    plausible = np.array([entry[5] for entry in entries])

    found = score_predictions(predictions, table, profiled, plausible)

    left = [entry for entry in entries if not entry[4]]
    errors = [abs(p - m) / m for p, _, m, *_ in left]
    inside = [m * math.exp(-1.645 * sd) <= p <= m * math.exp(1.645 * sd) for p, sd, m, *_ in left]
    if not left:
        assert found.time_mape is None
        assert found.coverage90 is None
        return
    assert found.time_mape == pytest.approx(100 * sum(errors) / len(left))
    assert found.power_mape == pytest.approx(10.0)
    assert found.coverage90_time == pytest.approx(100 * sum(inside) / len(left))
    assert found.coverage90_power == 0.0, "log 1.1 lies outside 1.645 x 0.05"
    assert found.coverage90 == pytest.approx(found.coverage90_time / 2)
    good = [error for error, entry in zip(errors, left, strict=True) if entry[5]]
    assert found.time_mape_plausible == (pytest.approx(100 * sum(good) / len(good)) if good else None)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.0, -1.0])
def test_predictions_that_are_no_positive_numbers_cannot_be_scored(wrong: float) -> None:
    predictions, _ = made([(1.0, 0.1, 1.0, 5.0, False, True), (wrong, 0.1, 1.0, 5.0, False, True)])

    with pytest.raises(FedgeError, match="1 of 2 predictions"):
        check_predictions(predictions, 2)


def test_there_must_be_a_prediction_per_row() -> None:
    predictions, _ = made([(1.0, 0.1, 1.0, 5.0, False, True)])

    with pytest.raises(FedgeError, match="for 2 modes"):
        check_predictions(predictions, 2)
    check_predictions(predictions, 1)
