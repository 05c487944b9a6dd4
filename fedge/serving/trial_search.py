"""Problems of a board that trains, infers or does both, the value of a choice for one, and a search by trials.

Symbols: P power budget, L latency budget, a arrival rate, b batch size; t_tr, t_in seconds of a training step and of an
inference batch. Managed interleaving: b requests are collected for b/a seconds, then inferred together, and between two
batches N = floor((b/a - t_in) / t_tr) training steps run. One job runs at a time: power is the larger of the two.

A search is a generator: it yields trials, receives a ``TrialReading`` for each, and returns its choice. The same search
therefore runs on a table, on an emulated board and on a real one.

References:
    Fulcrum, arXiv 2509.20205: the three families of problems and their grids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedge.errors import BadInput, prefix_errors
from fedge.serving.job_pair import JobPair
from fedge.types import Floats
from fedge.yaml_files import read_yaml


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """The jobs in one mode, to try or as a choice: a row of the modes and, for inference, the index of a batch size."""

    row: int
    batch: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceTable:
    """Every choice of a pair for a problem; arrays have shape (batch sizes or 1, n).

    Attributes:
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


def find_best_choice(problem: ServingProblem, pair: JobPair) -> Trial | None:
    """Return the optimum by enumeration: most steps per window, then least t_in; None if no choice is feasible."""
    every = evaluate_choices(problem, pair)
    if not every.feasible.any():
        return None
    steps = np.where(every.feasible, every.steps, -np.inf)
    seconds = np.where(steps == steps.max(), every.infer_s, np.inf)
    place, row = np.unravel_index(int(np.argmin(seconds)), seconds.shape)
    return Trial(int(row), None if problem.family == "train" else int(place))


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


TrialSearch = Generator[Sequence[Trial], Sequence[TrialReading], Trial | None]
"""A search; trials that are yielded together may be measured in any order."""
MeasureTrial = Callable[[Trial], TrialReading]


@dataclass(frozen=True, slots=True)
class TrialSearchResult:
    """The result of a search: its choice (None if nothing meets the limits) and all trials."""

    choice: Trial | None
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
) -> Trial | None:
    """Return the feasible trial of least cost, the first one of equals, or None if no trial meets the limits."""

    def find_size(trial: Trial) -> int | None:
        return None if trial.batch is None else batch_sizes[trial.batch]

    feasible = (trial for trial, seen in tried.items() if holds_limits(problem, find_size(trial), seen))
    return min(feasible, key=lambda one: (trial_cost(problem, find_size(one), tried[one]), one), default=None)


ProblemFamily = Literal["train", "infer", "concurrent"]
FAMILIES: tuple[ProblemFamily, ...] = ("train", "infer", "concurrent")
BATCH_SIZES = (1, 4, 16, 32, 64)
"""Inference batch sizes among which Fulcrum chooses."""


@dataclass(frozen=True, slots=True)
class ServingProblem:
    """One problem; training alone has neither requests nor a latency budget.

    Attributes:
        family: ``train``, ``infer`` or ``concurrent``.
        power_w: P: limit on the module power of every job, watts.
        latency_s: L: largest time from a request's arrival to its answer; None for training alone.
        rate_hz: a: requests per second; None for training alone.

    Raises:
        BadInput: If a value is missing, superfluous or not positive.
    """

    family: ProblemFamily
    power_w: float
    latency_s: float | None = None
    rate_hz: float | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise BadInput("problem.family", repr(self.family), f"one of {', '.join(FAMILIES)}")
        numbers = {"power_w": self.power_w}
        if self.family != "train":
            numbers |= {"latency_s": self.latency_s or 0.0, "rate_hz": self.rate_hz or 0.0}
        elif self.latency_s is not None or self.rate_hz is not None:
            raise BadInput("problem", "latency_s or rate_hz with training alone", "family infer or concurrent")
        for name, value in numbers.items():
            if not 0.0 < value < float("inf"):
                raise BadInput(f"problem.{name}", str(getattr(self, name)), "a number above 0")


def default_problems(family: ProblemFamily) -> tuple[ServingProblem, ...]:
    """Return Fulcrum's grid of a family: 41 problems of training, 5,863 of inference, 6,560 of both."""
    powers = [float(watts) for watts in range(10, 51)]
    if family == "train":
        return tuple(ServingProblem("train", power) for power in powers)
    if family == "infer":
        latencies = [ms / 1000 for ms in range(50, 151, 10)]
        rates = [float(rate) for rate in range(30, 91, 5)]
    else:
        latencies = [tenths / 10 for tenths in range(5, 21)]
        rates = [float(rate) for rate in range(30, 121, 10)]
    every = itertools.product(powers, latencies, rates)
    return tuple(ServingProblem(family, power, latency, rate) for power, latency, rate in every)


def select_family(trains: bool, infers: bool) -> ProblemFamily:
    """Return the problem family that the given kinds of tables form."""
    return "concurrent" if trains and infers else "train" if trains else "infer"


def read_problems(path: Path, family: ProblemFamily) -> tuple[ServingProblem, ...]:
    """Read serving problems from a YAML or JSON file.

    ``family`` is that of problems that have a rate but name no family.

    Raises:
        BadInput: If the file is invalid.
    """
    right = "a YAML or JSON file that can be read: a list of problems"
    if not path.is_file():
        raise BadInput("--problems", str(path), f"`default`, or {right}")
    entries = read_yaml(path)
    if not isinstance(entries, list):
        what = {type(None): "an empty file", dict: "a mapping"}.get(type(entries), f"a {type(entries).__name__}")
        raise BadInput("--problems", f"{path}: {what}", f"{right}, e.g. - {{power_w: 30, latency_s: 1, rate_hz: 60}}")
    if family == "infer" and isinstance(entries, list):
        entries = [_mark_inference(entry) for entry in entries]
    return parse_problems(entries, str(path))


def _mark_inference(entry: object) -> object:
    """Mark a problem with a rate as inference if there is no training table."""
    if isinstance(entry, dict) and "family" not in entry and entry.get("rate_hz") is not None:
        return {**entry, "family": "infer"}
    return entry


def parse_problems(entries: object, where: str) -> tuple[ServingProblem, ...]:
    """Parse the problems of a file.

    Raises:
        BadInput: If an entry is invalid.
    """
    right = "a list of problems, each with family, power_w, and for requests latency_s and rate_hz"
    if not isinstance(entries, list) or not entries:
        raise BadInput(where, type(entries).__name__ if not isinstance(entries, list) else "an empty list", right)
    return tuple(_iter_problems(entries, where))


def _iter_problems(entries: list[object], where: str) -> Iterator[ServingProblem]:
    fields = ("family", "power_w", "latency_s", "rate_hz")
    for number, entry in enumerate(entries, 1):
        place = f"{where}: problem {number}"
        if not isinstance(entry, Mapping) or not set(entry) <= set(fields) or entry.get("power_w") is None:
            raise BadInput(place, str(entry)[:80], f"a mapping with {', '.join(fields)}")
        family = entry.get("family", "train" if entry.get("rate_hz") is None else "concurrent")
        try:
            numbers = {name: float(entry[name]) for name in fields[1:] if entry.get(name) is not None}
        except (TypeError, ValueError) as error:
            raise BadInput(place, str(dict(entry))[:80], "numbers") from error
        with prefix_errors(place, ", "):
            problem = ServingProblem(family, **numbers)
        yield problem
