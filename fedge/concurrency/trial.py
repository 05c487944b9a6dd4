"""Finding a choice by trying: what is tried, what was seen of it, and the search that asks and is told.

A search is a generator: it yields some ``Trial``s to measure, is sent what was ``Seen`` of each, and returns its
choice. So one search runs on a table, on an emulated board and on a real one, and nothing in it measures by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from fedge.concurrency.outcome import Choice
from fedge.concurrency.pair import Pair


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """The jobs in one mode, inference at one batch size: a row of the modes, a place among the batch sizes."""

    row: int
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Seconds per training minibatch and per inference batch, and the watts of each; nan for a job that is none."""

    train_s: float
    train_w: float
    infer_s: float
    infer_w: float

    @property
    def power_w(self) -> float:
        """Of interleaving: one job runs at a time, so the larger of the two."""
        return max(w for w in (self.train_w, self.infer_w) if w == w)  # noqa: PLR0124 -- not nan


Search = Generator[Sequence[Trial], Sequence[Seen], Choice | None]
"""Trials that are asked for together may be measured in any order."""
Measure = Callable[[Trial], Seen]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to: its choice (None: nothing that holds the limits) and everything that it tried."""

    choice: Choice | None
    tried: tuple[Trial, ...]


def play(search: Search, measure: Measure) -> Found:
    """Measure whatever the search asks for until it answers; what it asks again is told from memory."""
    seen: dict[Trial, Seen] = {}
    try:
        asked = next(search)
        while True:
            for trial in asked:
                if trial not in seen:
                    seen[trial] = measure(trial)
            asked = search.send([seen[trial] for trial in asked])
    except StopIteration as end:
        return Found(end.value, tuple(seen))


def try_one(trial: Trial) -> Generator[Sequence[Trial], Sequence[Seen], Seen]:
    """A single trial inside a search, which calls this with ``yield from``."""
    (seen,) = yield (trial,)
    return seen


def on_table(pair: Pair) -> Measure:
    """Trials that are looked up in the pair's tables."""
    train_s, train_w = pair.train_s.tolist(), pair.train_w.tolist()
    infer_s, infer_w = pair.infer_s.tolist(), pair.infer_w.tolist()
    nan = float("nan")

    def measure(trial: Trial) -> Seen:
        step_s, step_w = (train_s[trial.row], train_w[trial.row]) if train_s else (nan, nan)
        if trial.batch is None:
            return Seen(step_s, step_w, nan, nan)
        return Seen(step_s, step_w, infer_s[trial.batch][trial.row], infer_w[trial.batch][trial.row])

    return measure
