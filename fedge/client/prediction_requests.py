"""Requests for predictions in the conditions of a round, fitted together where several clients ask.

A round is a generator: where it needs predictions it yields a ``PredictionRequest`` and is sent the result. A board
answers its own requests one by one (``run_alone``); a process that emulates many clients lets all of them run until
they ask, and answers together (``run_together``). Both compute the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedge.client.corrections import Correction, from_reference, to_reference
from fedge.errors import try_call
from fedge.predictors import fit_predictors
from fedge.protocols import Predictor
from fedge.types import Measurement, Modes, Predictions

T = TypeVar("T")


class CachedPredictor:
    """A ``Predictor`` that keeps its last predictions: a round begins with the fit at which the previous one ended.

    The last two are kept: a board whose peers contradict it asks for predictions with theirs and then without them.

    Args:
        build: Builds the predictor that is fitted; called once, when it is needed.
    """

    def __init__(self, build: Callable[[], Predictor]) -> None:
        self._build = build
        self._predictor: Predictor | None = None
        self._measurements: tuple[Measurement, ...] = ()
        self._kept: tuple[tuple[Modes, tuple[Measurement, ...], Predictions], ...] = ()

    @property
    def predictor(self) -> Predictor:
        """Return the predictor that is fitted."""
        if self._predictor is None:
            self._predictor = self._build()
        return self._predictor

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        self._measurements = tuple(measurements)
        return self

    def predict(self, modes: Modes) -> Predictions:
        known = self.recall(modes, self._measurements)
        if known is None:
            known = self.predictor.fit(self._measurements).predict(modes)
            self.keep(modes, self._measurements, known)
        return known

    def recall(self, modes: Modes, measurements: Sequence[Measurement]) -> Predictions | None:
        """Return the predictions of these modes after a fit to these measurements if they are kept, else None."""
        for known, fitted, predictions in self._kept:
            if known is modes and fitted == tuple(measurements):
                return predictions
        return None

    def keep(self, modes: Modes, measurements: Sequence[Measurement], predictions: Predictions) -> None:
        """Keep predictions that were computed elsewhere."""
        self._kept = ((modes, tuple(measurements), predictions), *self._kept[:1])


@dataclass(frozen=True, slots=True, eq=False)
class PredictionRequest:
    """A request to fit a predictor and to predict modes in the conditions of a round.

    Attributes:
        corrections: Differences between the round and the reference condition, the outermost first.
        choose_rows: Returns the rows whose spreads are needed, from predictions in the round's conditions whose spreads
            are not numbers; the spreads of other rows may stay so. None stands for all rows.
    """

    predictor: Predictor
    corrections: Sequence[Correction]
    modes: Modes
    measurements: Sequence[Measurement]
    choose_rows: Callable[[Predictions], NDArray[np.intp]] | None = None


Asking = Generator[PredictionRequest, Predictions, T]
"""A computation that asks for predictions on its way."""


def run_alone(asking: Asking[T]) -> T:
    """Run one computation to its end and return its result."""
    return run_together([asking])[0]


def run_together(askings: Sequence[Asking[T]]) -> list[T]:
    """Run several computations to their ends; whenever all that still run ask, answer them together.

    Returns:
        Their results, in order.

    Raises:
        Exception: The first one that a computation raises; none, if each catches its own.
    """
    results: dict[int, T] = {}
    waiting: dict[int, PredictionRequest] = {}

    def advance(place: int, answer: Predictions | Exception | None) -> None:
        asking = askings[place]
        try:
            if isinstance(answer, Exception):
                waiting[place] = asking.throw(answer)
            else:
                waiting[place] = next(asking) if answer is None else asking.send(answer)
        except StopIteration as end:
            results[place] = end.value

    for place in range(len(askings)):
        advance(place, None)
    while waiting:
        places, requests = list(waiting), list(waiting.values())
        waiting.clear()
        for place, answer in zip(places, answer_requests(requests), strict=True):
            advance(place, answer)
    return [results[place] for place in range(len(askings))]


def answer_requests(requests: Sequence[PredictionRequest]) -> list[Predictions | Exception]:
    """Answer requests together; a request that cannot be answered gets its exception."""
    known = [try_call(partial(to_reference, request.corrections, request.measurements)) for request in requests]
    answers: list[Predictions | Exception | None] = [
        found if isinstance(found, Exception) else _recall(request, found[1])
        for request, found in zip(requests, known, strict=True)
    ]
    left = [place for place, answer in enumerate(answers) if answer is None]
    predictors = [_unwrap_predictor(requests[place].predictor) for place in left]
    references = [found[1] for place in left if not isinstance(found := known[place], Exception)]
    errors = fit_predictors(predictors, references)
    for place, predictor, error in zip(left, predictors, errors, strict=True):
        found = known[place]
        assert not isinstance(found, Exception)
        predict = partial(_predict_modes, requests[place], predictor, found)
        answers[place] = try_call(predict) if error is None else error
    return [_include_corrections(found, answer) for found, answer in zip(known, answers, strict=True)]


def _recall(request: PredictionRequest, reference: Sequence[Measurement]) -> Predictions | None:
    predictor = request.predictor
    return predictor.recall(request.modes, reference) if isinstance(predictor, CachedPredictor) else None


def _unwrap_predictor(predictor: Predictor) -> Predictor:
    return predictor.predictor if isinstance(predictor, CachedPredictor) else predictor


def _predict_modes(
    request: PredictionRequest, predictor: Predictor, known: tuple[list[Correction], Sequence[Measurement]]
) -> Predictions:
    corrections, reference = known
    choose_rows, predict_chosen = request.choose_rows, getattr(predictor, "predict_chosen", None)
    if choose_rows is not None and predict_chosen is not None:

        def choose(means: Predictions) -> NDArray[np.intp] | None:
            here = from_reference(corrections, means)
            return choose_rows(here) if len(here.modes) == len(means.modes) else None

        chosen: Predictions = predict_chosen(request.modes, choose)
        return chosen  # not kept: it lacks spreads
    predictions = predictor.predict(request.modes)
    if isinstance(request.predictor, CachedPredictor):
        request.predictor.keep(request.modes, reference, predictions)
    return predictions


def _include_corrections(
    known: tuple[list[Correction], Sequence[Measurement]] | Exception, answer: Predictions | Exception | None
) -> Predictions | Exception:
    if isinstance(known, Exception):
        return known
    assert answer is not None
    return answer if isinstance(answer, Exception) else try_call(partial(from_reference, known[0], answer))
