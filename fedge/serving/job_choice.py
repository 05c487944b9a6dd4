"""The value of a choice of mode and batch size for a problem, and the best choice in a pair's table.

Symbols: P, L, a, b as in ``serving_problems``; t_tr, t_in seconds of a training step and of an inference batch. Managed
interleaving: b requests are collected for b/a seconds, then inferred together, and between two batches
N = floor((b/a - t_in) / t_tr) training steps run. One job runs at a time: power is the larger of the two.

References:
    Fulcrum, arXiv 2509.20205.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.serving.job_pair import JobPair
from fedge.serving.serving_problems import ServingProblem
from fedge.types import Floats


@dataclass(frozen=True, slots=True)
class JobChoice:
    """A choice: a row of the pair's modes and, for inference, the index of a batch size."""

    row: int
    batch: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceTable:
    """Every choice of a pair for a problem; arrays have shape (batch sizes or 1, n).

    Attributes:
        feasible: Whether the limits are met.
        steps: Training steps N per window; for training alone, steps per second.
        steps_per_s: Training steps per second.
        infer_s: Seconds per inference batch t_in; 0 without inference.
    """

    feasible: NDArray[np.bool_]
    steps: Floats
    steps_per_s: Floats
    infer_s: Floats


def evaluate_choices(problem: ServingProblem, pair: JobPair) -> ChoiceTable:
    """Evaluate every choice; the pair must have the problem's jobs."""
    if problem.family == "train":
        feasible = (pair.train_w <= problem.power_w)[None]
        rate = 1.0 / pair.train_s[None]
        return ChoiceTable(feasible, rate, rate, np.zeros_like(rate))
    assert problem.latency_s is not None
    assert problem.rate_hz is not None
    batch = np.array(pair.batch_sizes, dtype=np.float64)[:, None]
    window_s = batch / problem.rate_hz
    feasible = (window_s + pair.infer_s <= problem.latency_s) & (pair.infer_s * problem.rate_hz <= batch)
    power_w = pair.infer_w
    steps = np.zeros_like(pair.infer_s)
    if problem.family == "concurrent":
        power_w = np.maximum(power_w, pair.train_w)
        steps = count_steps_in_window(window_s, pair.infer_s, pair.train_s)
    return ChoiceTable(feasible & (power_w <= problem.power_w), steps, steps / window_s, pair.infer_s)


def count_steps_in_window(window_s: Floats, infer_s: Floats, train_s: Floats) -> Floats:
    """Return N, the training steps that fit into a window beside its batch; 0 if none fits."""
    steps: Floats = np.maximum(np.floor((window_s - infer_s) / train_s), 0.0)
    return steps


def find_best_choice(problem: ServingProblem, pair: JobPair) -> JobChoice | None:
    """Return the optimum by enumeration: most steps per window, then least t_in; None if no choice is feasible."""
    every = evaluate_choices(problem, pair)
    if not every.feasible.any():
        return None
    steps = np.where(every.feasible, every.steps, -np.inf)
    seconds = np.where(steps == steps.max(), every.infer_s, np.inf)
    place, row = np.unravel_index(int(np.argmin(seconds)), seconds.shape)
    return JobChoice(int(row), None if problem.family == "train" else int(place))
