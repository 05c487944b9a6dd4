"""The protocol of a search by trials: trials, their readings, and running a search.

A search is a generator: it yields trials, receives a ``TrialReading`` for each, and returns its choice. The same search
therefore runs on a table, on an emulated board and on a real one.
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
    """The jobs in one mode: a row of the modes and the index of an inference batch size."""

    row: int
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class TrialReading:
    """Seconds and watts per training step and per inference batch; nan for a job that does not run."""

    train_s: float
    train_w: float
    infer_s: float
    infer_w: float

    @property
    def power_w(self) -> float:
        """Return the peak power of interleaving in watts: one job runs at a time, so the larger of the two."""
        return max(w for w in (self.train_w, self.infer_w) if w == w)  # noqa: PLR0124 -- not nan


TrialSearch = Generator[Sequence[Trial], Sequence[TrialReading], JobChoice | None]
"""A search; trials that are yielded together may be measured in any order."""
MeasureTrial = Callable[[Trial], TrialReading]


@dataclass(frozen=True, slots=True)
class TrialSearchResult:
    """The result of a search: its choice (None if nothing meets the limits) and all trials."""

    choice: JobChoice | None
    tried: tuple[Trial, ...]


def run_search(search: TrialSearch, measure: MeasureTrial) -> TrialSearchResult:
    """Run a search to its end and measure the trials that it requests; repeated trials are answered from a cache."""
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
    """Request a single trial inside a search, with ``yield from``."""
    (seen,) = yield (trial,)
    return seen


def measure_from_table(pair: JobPair) -> MeasureTrial:
    """Return a function that reads trials from the pair's tables."""
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
    """Return whether a reading meets the limits on power, latency and throughput."""
    return seen.power_w <= problem.power_w and meets_latency(problem, batch_size, seen)


def meets_latency(problem: ServingProblem, batch_size: int | None, seen: TrialReading) -> bool:
    """Return whether b/a + t_in <= L and t_in a <= b; True if the problem has no inference."""
    if problem.family == "train":
        return True
    assert batch_size is not None
    assert problem.latency_s is not None
    assert problem.rate_hz is not None
    window_s = batch_size / problem.rate_hz
    return window_s + seen.infer_s <= problem.latency_s and seen.infer_s * problem.rate_hz <= batch_size


def trial_cost(problem: ServingProblem, batch_size: int | None, seen: TrialReading) -> tuple[float, float]:
    """Return the lexicographic cost to minimise: t_tr for training, t_in for inference, (-N, t_in) for both."""
    if problem.family == "train":
        return seen.train_s, 0.0
    if problem.family == "infer":
        return seen.infer_s, 0.0
    return -count_steps_per_window(problem, batch_size or 0, seen), seen.infer_s


def count_steps_per_window(problem: ServingProblem, batch_size: int, seen: TrialReading) -> int:
    """Return N, the training steps per window, if both jobs run; otherwise 0."""
    if problem.family != "concurrent" or problem.rate_hz is None:
        return 0
    return max(0, math.floor((batch_size / problem.rate_hz - seen.infer_s) / seen.train_s))


def find_best_trial(
    problem: ServingProblem, batch_sizes: tuple[int, ...], tried: Mapping[Trial, TrialReading]
) -> JobChoice | None:
    """Return the feasible trial of least cost, the first one of equals, or None if no trial meets the limits.

    Args:
        problem: The limits.
        batch_sizes: Batch sizes to which the trials' indices refer.
        tried: Readings by trial.
    """
    least: tuple[tuple[float, float], int, int] | None = None
    for trial, seen in tried.items():
        size = None if trial.batch is None else batch_sizes[trial.batch]
        if holds_limits(problem, size, seen):
            found = trial_cost(problem, size, seen), trial.row, -1 if trial.batch is None else trial.batch
            least = found if least is None or found < least else least
    if least is None:
        return None
    return JobChoice(least[1], None if least[2] < 0 else least[2])
