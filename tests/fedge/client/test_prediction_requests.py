"""Computations that ask for predictions get the same answers together as alone, and the last predictions are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
from contracts.rounds import ALL, MAXN, MODES, Doubtful, seen
from hypothesis import given
from hypothesis import strategies as st

from fedge.client.corrections import normalize, predict_corrected, to_reference
from fedge.client.prediction_requests import (
    Asking,
    CachedPredictor,
    PredictionRequest,
    answer_requests,
    run_alone,
    run_together,
)
from fedge.protocols import Predictor
from fedge.types import Floats, Measurement, Modes, Predictions


class MeanPredictor:
    """Predicts the mean of the measured step times everywhere, and counts its fits."""

    def __init__(self) -> None:
        self.fits = 0

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self.fits += 1
        self.step_s = float(np.mean([m.step_s for m in measurements])) if measurements else 1.0
        return self

    def predict(self, modes: Modes) -> Predictions:
        one = np.ones(len(modes))
        return Predictions(modes, self.step_s * one, one, 0 * one, 0 * one)


class Together(MeanPredictor):
    """Can be fitted with others of its class; remembers each time with how many, itself included."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[int] = []

    @staticmethod
    def fit_together(predictors: Sequence[Together], measurements: Sequence[Sequence[Measurement]]) -> None:
        for predictor, own in zip(predictors, measurements, strict=True):
            predictor.fit(own).groups.append(len(predictors))


class Unable:
    """A predictor that fails when it is fitted, or only when it predicts."""

    def __init__(self, fits: bool) -> None:
        self._fits = fits

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        if not self._fits:
            raise ValueError("cannot be fitted")
        return self

    def predict(self, modes: Modes) -> Predictions:
        raise ValueError("cannot predict")


@dataclasses.dataclass(frozen=True)
class UnableCorrection:
    """A correction that fails on the way to the reference condition, or on the way back."""

    fails_back: bool

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        return self

    def to_reference(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        if not self.fails_back:
            raise ValueError("no way there")
        return measurements

    def from_reference(self, predictions: Predictions) -> Predictions:
        raise ValueError("no way back")

    def normalize(self, measurements: Sequence[Measurement]) -> Sequence[Measurement]:
        return measurements


def request_of(predictor: Predictor, *measurements: Measurement) -> PredictionRequest:
    return PredictionRequest(predictor, (), MODES, measurements)


def ask_times(predictor: Predictor, times: int) -> Asking[list[Floats]]:
    """Ask ``times`` times, with one measurement more each time, and return all predicted step times."""
    answers = []
    for count in range(times):
        answer = yield request_of(predictor, *(dataclasses.replace(seen(MAXN), step_s=2.0 + i) for i in range(count)))
        answers.append(answer.step_s)
    return answers


@given(st.lists(st.tuples(st.sampled_from([MeanPredictor, Together]), st.integers(0, 4)), max_size=6))
def test_computations_get_together_what_each_gets_alone(asked):
    together = run_together([ask_times(kind(), times) for kind, times in asked])
    cached = run_together([ask_times(CachedPredictor(kind), times) for kind, times in asked])

    for (kind, times), answers, kept in zip(asked, together, cached, strict=True):
        alone = run_alone(ask_times(kind(), times))
        np.testing.assert_array_equal(answers, alone)
        np.testing.assert_array_equal(kept, alone)


def test_those_that_still_ask_are_answered_together_until_the_last_one_ends():
    predictors = [Together() for _ in range(3)]

    run_together([ask_times(predictor, times) for predictor, times in zip(predictors, (1, 3, 2), strict=True)])

    assert [[size for size in one.groups if size > 1] for one in predictors] == [[3], [3, 2], [3, 2]]
    assert [predictor.fits for predictor in predictors] == [1, 3, 2]


def test_a_request_that_cannot_be_answered_is_an_exception_where_it_was_made_and_nowhere_else():
    def ask_safely(request: PredictionRequest) -> Asking[str | float]:
        try:
            answer = yield request
        except ValueError as error:
            return str(error)
        return float(answer.step_s[0])

    able = request_of(Together(), seen(MAXN))
    requests = [
        able,
        request_of(Unable(fits=False)),
        request_of(Unable(fits=True)),
        dataclasses.replace(able, predictor=Together(), corrections=[UnableCorrection(fails_back=False)]),
        dataclasses.replace(able, predictor=CachedPredictor(Together), corrections=[UnableCorrection(fails_back=True)]),
        dataclasses.replace(able, predictor=CachedPredictor(lambda: Unable(fits=True))),
        dataclasses.replace(able, predictor=Together()),
    ]
    expected = [
        seen(MAXN).step_s,
        "cannot be fitted",
        "cannot predict",
        "no way there",
        "no way back",
        "cannot predict",
        seen(MAXN).step_s,
    ]

    assert run_together([ask_safely(request) for request in requests]) == expected
    assert [run_alone(ask_safely(request)) for request in requests] == expected


def test_a_computation_may_ask_again_after_its_request_failed():
    def ask_twice() -> Asking[float]:
        try:
            yield request_of(Unable(fits=False))
        except ValueError:
            answer = yield request_of(MeanPredictor(), seen(MAXN))
        return float(answer.step_s[0])

    assert run_together([ask_twice(), ask_twice()]) == [seen(MAXN).step_s] * 2


def test_the_same_measurements_are_fitted_once_by_a_predictor_that_is_built_once():
    built = list[MeanPredictor]()

    def build() -> MeanPredictor:
        built.append(MeanPredictor())
        return built[-1]

    cached = CachedPredictor(build)
    assert built == []
    first = cached.fit([seen(MAXN)]).predict(MODES)

    assert cached.fit((seen(MAXN),)).predict(MODES) is first
    assert built[0].fits == 1
    assert cached.fit([]).predict(MODES) is not first
    assert built[0].fits == 2
    assert len(built) == 1


def test_predictions_are_kept_for_the_very_modes_and_measurements_only():
    cached = CachedPredictor(MeanPredictor)
    known = Doubtful().fit(ALL).predict(MODES)

    assert cached.recall(MODES, ALL) is None
    cached.keep(MODES, ALL, known)

    assert cached.recall(MODES, tuple(ALL)) is known
    assert cached.fit(ALL).predict(MODES) is known
    assert cached.recall(MODES, ALL[1:]) is None
    assert cached.recall(Modes(MODES.knobs.copy()), ALL) is None


def test_the_last_two_predictions_are_kept():
    cached = CachedPredictor(MeanPredictor)
    oldest, older, newest = (cached.fit(ALL[:count]).predict(MODES) for count in (0, 1, 2))

    assert cached.recall(MODES, ALL[:2]) is newest
    assert cached.recall(MODES, ALL[:1]) is older
    assert cached.recall(MODES, ALL[:0]) is None
    assert oldest is not older


def test_all_spreads_are_predicted_where_a_correction_leaves_modes_out():
    chosen = list[object]()

    class Frugal(Doubtful):
        def predict_chosen(self, modes: Modes, choose_rows: Callable[[Predictions], object]) -> Predictions:
            chosen.append(choose_rows(self.predict(modes)))
            return self.predict(modes)

    class Narrow(UnableCorrection):
        def from_reference(self, predictions: Predictions) -> Predictions:
            return predictions.select_rows([0])

    for corrections in ((), (Narrow(fails_back=True),)):
        request = PredictionRequest(
            Frugal(), corrections, MODES, ALL, choose_rows=lambda means: np.arange(len(means.modes))
        )
        answer_requests([request])

    assert [None if rows is None else len(rows) for rows in chosen] == [len(MODES), None]


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


lists = st.lists(st.builds(Slower, st.floats(0.5, 2.0), st.floats(0.0, 0.1)), max_size=4)


@given(lists, st.floats(1.0, 5.0))
def test_what_was_measured_in_a_round_is_predicted_for_it_whatever_differs(corrections, step_s):
    measured = dataclasses.replace(seen(MAXN), step_s=step_s)

    predicted = predict_corrected(MeanPredictor(), corrections, MODES, [measured])

    np.testing.assert_allclose(predicted.step_s, step_s)


@given(lists)
def test_normalizing_undoes_the_way_to_the_reference(corrections):
    _, reference = to_reference(corrections, [seen(MAXN)])

    (back,) = normalize(corrections, reference)

    np.testing.assert_allclose(back.step_s, seen(MAXN).step_s)
