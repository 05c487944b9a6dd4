"""Predictors of several boards are fitted at once as each is alone, and the fit of one that fails is its own matter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
import pytest
from contracts.boards import MAXN, coefficients, grid
from contracts.predictor import columns, measured

from fedge.errors import BadInput
from fedge.physics.prior_knowledge import PriorKnowledge
from fedge.physics.time_power_model import compute_power_w, compute_step_s
from fedge.predictors import PREDICTORS, fit_predictors, load_predictor
from fedge.predictors.blended_predictor import BlendedPredictor
from fedge.protocols import Predictor
from fedge.types import Measurement, Modes, Predictions

MODES = grid()
KNOWN = PriorKnowledge(MAXN, (coefficients(),), idle_w=12.0)
TRUTH = compute_step_s(coefficients(), MAXN, MODES), compute_power_w(coefficients(), MAXN, MODES)


def seen_in(*rows: int, slower: float = 1.2) -> list[Measurement]:
    return measured(MODES, slower * TRUTH[0], TRUTH[1], list(rows))


def assert_same_predictions(one: Predictor, other: Predictor) -> None:
    for first, second in zip(columns(one.predict(MODES)), columns(other.predict(MODES)), strict=True):
        np.testing.assert_array_equal(first, second)


class OneByOne:
    """A predictor that cannot be fitted together with others; it fails to learn from nothing."""

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self.step_s = measurements[0].step_s
        return self

    def predict(self, modes: Modes) -> Predictions:
        one = np.ones(len(modes))
        return Predictions(modes, self.step_s * one, one, 0.0 * one, 0.0 * one)


@pytest.mark.parametrize("name", PREDICTORS)
def test_every_predictor_is_found_by_its_name(name):
    assert callable(load_predictor(name, KNOWN).fit)


def test_predictors_of_several_classes_are_fitted_as_each_alone():
    names = ("fedge", "linear", "fedge", "physical", "fedge")
    seen = [seen_in(*range(0, 60 * (place + 1), 10), slower=1.0 + 0.1 * place) for place in range(len(names))]
    predictors = [load_predictor(name, KNOWN) for name in names]

    assert fit_predictors(predictors, seen) == [None] * len(names)

    for name, predictor, own in zip(names, predictors, seen, strict=True):
        assert_same_predictions(predictor, load_predictor(name, KNOWN).fit(own))


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_board_whose_measurements_are_no_numbers_gets_the_error_and_the_others_their_fit(broken):
    seen = [seen_in(0, 9, 4), seen_in(5), seen_in(1, 2, 3, 8)]
    seen[broken] = [dataclasses.replace(seen[broken][0], step_s=float("nan")), *seen[broken][1:]]
    predictors = [load_predictor("fedge", KNOWN) for _ in seen]

    errors = fit_predictors(predictors, seen)

    assert isinstance(errors[broken], BadInput)
    assert [place for place, error in enumerate(errors) if error is None] == [i for i in range(3) if i != broken]
    for place in {0, 1, 2} - {broken}:
        assert_same_predictions(predictors[place], load_predictor("fedge", KNOWN).fit(seen[place]))


def test_every_predictor_that_fails_gets_its_own_error():
    predictors = [OneByOne(), load_predictor("fedge", KNOWN), OneByOne(), load_predictor("fedge", PriorKnowledge(MAXN))]

    errors = fit_predictors(predictors, [[], seen_in(3), seen_in(5), []])

    assert [type(error) for error in errors] == [IndexError, type(None), type(None), BadInput]
    assert predictors[2].predict(MODES).step_s[0] == seen_in(5)[0].step_s
    assert_same_predictions(predictors[1], load_predictor("fedge", KNOWN).fit(seen_in(3)))


class Careful(BlendedPredictor):
    """A user's predictor that learns from every measurement but the first."""

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        return super().fit(measurements[1:])


@pytest.mark.parametrize("count", [1, 3])
def test_a_predictor_that_overrides_the_fit_of_another_is_fitted_by_its_own(count):
    seen = [seen_in(0, 9, place, slower=1.1) for place in range(count)]
    predictors = [Careful(KNOWN) for _ in seen]

    assert fit_predictors(predictors, seen) == [None] * count

    for predictor, own in zip(predictors, seen, strict=True):
        assert_same_predictions(predictor, BlendedPredictor(KNOWN).fit(own[1:]))


def test_nothing_to_fit_is_no_error():
    assert fit_predictors([], []) == []
