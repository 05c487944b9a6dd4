"""Finding a choice by trying: what is tried, what was seen of it, and the search that asks and is told.

A search is a generator: it yields some ``Trial``s to measure, is sent what was ``TrialReading`` of each, and returns
its choice. So one search runs on a table, on an emulated board and on a real one, and nothing in it measures by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from fedge.serving.job_choice import JobChoice
from fedge.serving.job_pair import JobPair
from fedge.serving.serving_problems import ServingProblem


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """The jobs in one mode, inference at one batch size: a row of the modes, a place among the batch sizes."""

    row: int
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class TrialReading:
    """Seconds per training minibatch and per inference batch, and the watts of each; nan for a job that is none."""

    train_s: float
    train_w: float
    infer_s: float
    infer_w: float

    @property
    def power_w(self) -> float:
        """Of interleaving: one job runs at a time, so the larger of the two."""
        return max(w for w in (self.train_w, self.infer_w) if w == w)  # noqa: PLR0124 -- not nan


TrialSearch = Generator[Sequence[Trial], Sequence[TrialReading], JobChoice | None]
"""Trials that are asked for together may be measured in any order."""
MeasureTrial = Callable[[Trial], TrialReading]


@dataclass(frozen=True, slots=True)
class TrialSearchResult:
    """What a search came to: its choice (None: nothing that holds the limits) and everything that it tried."""

    choice: JobChoice | None
    tried: tuple[Trial, ...]


def run_search(search: TrialSearch, measure: MeasureTrial) -> TrialSearchResult:
    """Measure whatever the search asks for until it answers; what it asks again is told from memory."""
    seen: dict[Trial, TrialReading] = {}
    try:
        asked = next(search)
        while True:
            for trial in asked:
                if trial not in seen:
                    seen[trial] = measure(trial)
            asked = search.send([seen[trial] for trial in asked])
    except StopIteration as end:
        return TrialSearchResult(end.value, tuple(seen))


def request_trial(trial: Trial) -> Generator[Sequence[Trial], Sequence[TrialReading], TrialReading]:
    """A single trial inside a search, which calls this with ``yield from``."""
    (seen,) = yield (trial,)
    return seen


def measure_from_table(pair: JobPair) -> MeasureTrial:
    """Trials that are looked up in the pair's tables."""
    train_s, train_w = pair.train_s.tolist(), pair.train_w.tolist()
    infer_s, infer_w = pair.infer_s.tolist(), pair.infer_w.tolist()
    nan = float("nan")

    def measure(trial: Trial) -> TrialReading:
        step_s, step_w = (train_s[trial.row], train_w[trial.row]) if train_s else (nan, nan)
        if trial.batch is None:
            return TrialReading(step_s, step_w, nan, nan)
        return TrialReading(step_s, step_w, infer_s[trial.batch][trial.row], infer_w[trial.batch][trial.row])

    return measure


def holds_limits(problem: ServingProblem, batch_size: int | None, seen: TrialReading) -> bool:
    """Whether power, latency and keep-up hold (see ``outcome``)."""
    return seen.power_w <= problem.power_w and meets_latency(problem, batch_size, seen)


def meets_latency(problem: ServingProblem, batch_size: int | None, seen: TrialReading) -> bool:
    """Whether b/a + t_in <= L and t_in a <= b; always true where nothing is inferred."""
    if problem.family == "train":
        return True
    assert batch_size is not None
    assert problem.latency_s is not None
    assert problem.rate_hz is not None
    window_s = batch_size / problem.rate_hz
    return window_s + seen.infer_s <= problem.latency_s and seen.infer_s * problem.rate_hz <= batch_size


def trial_cost(problem: ServingProblem, batch_size: int | None, seen: TrialReading) -> tuple[float, float]:
    """What is to be least: for training t_tr, for inference t_in, for both minus N and then t_in."""
    if problem.family == "train":
        return seen.train_s, 0.0
    if problem.family == "infer":
        return seen.infer_s, 0.0
    return -count_steps_per_window(problem, batch_size or 0, seen), seen.infer_s


def count_steps_per_window(problem: ServingProblem, batch_size: int, seen: TrialReading) -> int:
    """N, where both jobs run; else 0."""
    if problem.family != "concurrent" or problem.rate_hz is None:
        return 0
    return max(0, math.floor((batch_size / problem.rate_hz - seen.infer_s) / seen.train_s))


def find_best_trial(
    problem: ServingProblem, batch_sizes: tuple[int, ...], tried: Mapping[Trial, TrialReading]
) -> JobChoice | None:
    """The trial of least cost among those that hold the limits, the first of equals; None when none does."""
    least: tuple[tuple[float, float], int, int] | None = None
    for trial, seen in tried.items():
        size = None if trial.batch is None else batch_sizes[trial.batch]
        if holds_limits(problem, size, seen):
            found = trial_cost(problem, size, seen), trial.row, -1 if trial.batch is None else trial.batch
            least = found if least is None or found < least else least
    if least is None:
        return None
    return JobChoice(least[1], None if least[2] < 0 else least[2])
