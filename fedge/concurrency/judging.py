"""Whether what was seen of a trial holds a problem's limits, and the best of several trials."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedge.concurrency.outcome import Choice
from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Seen, Trial


def holds(problem: Problem, batch_size: int | None, seen: Seen) -> bool:
    """Whether power, latency and keep-up hold (see ``outcome``)."""
    return seen.power_w <= problem.power_w and in_time(problem, batch_size, seen)


def in_time(problem: Problem, batch_size: int | None, seen: Seen) -> bool:
    """Whether b/a + t_in <= L and t_in a <= b; always true where nothing is inferred."""
    if problem.family == "train":
        return True
    assert batch_size is not None
    assert problem.latency_s is not None
    assert problem.rate_hz is not None
    window_s = batch_size / problem.rate_hz
    return window_s + seen.infer_s <= problem.latency_s and seen.infer_s * problem.rate_hz <= batch_size


def cost(problem: Problem, batch_size: int | None, seen: Seen) -> tuple[float, float]:
    """What is to be least: for training t_tr, for inference t_in, for both minus N and then t_in."""
    if problem.family == "train":
        return seen.train_s, 0.0
    if problem.family == "infer":
        return seen.infer_s, 0.0
    return -steps_per_window(problem, batch_size or 0, seen), seen.infer_s


def steps_per_window(problem: Problem, batch_size: int, seen: Seen) -> int:
    """N, where both jobs run; else 0."""
    if problem.family != "concurrent" or problem.rate_hz is None:
        return 0
    return max(0, math.floor((batch_size / problem.rate_hz - seen.infer_s) / seen.train_s))


def best_tried(problem: Problem, batch_sizes: tuple[int, ...], tried: Mapping[Trial, Seen]) -> Choice | None:
    """The trial of least cost among those that hold the limits, the first of equals; None when none does."""
    least: tuple[tuple[float, float], int, int] | None = None
    for trial, seen in tried.items():
        size = None if trial.batch is None else batch_sizes[trial.batch]
        if holds(problem, size, seen):
            found = cost(problem, size, seen), trial.row, -1 if trial.batch is None else trial.batch
            least = found if least is None or found < least else least
    if least is None:
        return None
    return Choice(least[1], None if least[2] < 0 else least[2])
