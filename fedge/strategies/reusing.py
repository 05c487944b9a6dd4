"""The strategy ``fedge`` over a stream of problems of one pair of jobs: every trial serves in all later ones.

A mode is tried at every batch size, since other problems may need them. First come modes that teach most, then modes
that promise most on average over problems like the first one, with other budgets, rates and latencies. After that
every problem adds what each mode promises to it; a mode whose promises add up to enough is tried, and the sum begins
anew. The more modes there are, the more a further one must promise, so that some are left for what comes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from fedge.concurrency.judging import best_tried
from fedge.concurrency.outcome import Choice
from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Search, Seen, Trial
from fedge.strategies import Ground
from fedge.strategies.learnt import Learnt, Openings, Places, fitted, stage_of
from fedge.types import Floats

FIRST = 12
"""Modes before the first fit; chosen by us."""
AHEAD = 20
"""Modes until single problems decide; chosen by us."""
MOST = 40
"""Modes of all problems together at most."""
MOST_FOR_ONE = 3
"""Further modes for one problem at most; chosen by us."""
WORTHWHILE_AHEAD = 0.002
"""What a mode must promise on average over problems like the first one; chosen by us."""
WORTHWHILE, DEARER = 0.025, 1.08
"""What promises must add up to, and the factor by which that grows with every mode; chosen by us."""
UNSOLVED = 0.05
"""What they must add up to as long as nothing that was tried holds the limits; chosen by us."""
BUDGETS, FACTORS = 14, (0.6, 1.0, 1.6)
"""Problems like one: so many budgets of power, and its rate and latency times these; chosen by us."""


class Reusing:
    """A ``fedge.strategies.Strategy`` that keeps what it tried; needs a prior for every job."""

    def __init__(self, ground: Ground) -> None:
        places: Places = tuple(range(len(ground.infer))) or (None,)
        self._stage = stage_of(ground, places)
        self._openings = Openings(self._stage)
        self._learnt: Learnt | None = None
        self._fitted_to = 0
        self._promised = np.zeros(len(ground.modes))

    def search(self, problem: Problem) -> Search:
        if self._learnt is None:
            rows = dict.fromkeys(trial.row for trial in self._openings.of(problem.power_w, FIRST))
            trials = [trial for row in rows for trial in self._trials(row)]
            self._refit(dict(zip(trials, (yield trials), strict=True)))
            yield from self._look_ahead(problem)
        assert self._learnt is not None
        if len(self._learnt.tried) > self._fitted_to:
            self._refit(self._learnt.tried)
        choice = self._choice(problem)
        for _ in range(MOST_FOR_ONE):
            gain = self._gain((problem,))
            self._promised += gain.clip(0.0)
            row = int(np.argmax(gain))
            wanted = UNSOLVED if choice is None else WORTHWHILE * DEARER ** (self._count - AHEAD)
            if self._count >= MOST or self._promised[row] < wanted:
                break
            self._promised[:] = 0.0
            yield from self._visit(row)
            choice = self._choice(problem)
        return choice

    def _choice(self, problem: Problem) -> Choice | None:
        assert self._learnt is not None
        return best_tried(problem, self._stage.ground.batch_sizes, self._learnt.tried)

    @property
    def _count(self) -> int:
        """Modes tried so far."""
        return 0 if self._learnt is None else len(self._learnt.tried) // len(self._stage.places)

    def _look_ahead(self, problem: Problem) -> Generator[Sequence[Trial], Sequence[Seen], None]:
        assert self._learnt is not None
        while self._count < AHEAD:
            gain = self._gain(_like(problem, self._learnt.watts()))
            if gain.max() < WORTHWHILE_AHEAD:
                break
            yield from self._visit(int(np.argmax(gain)))

    def _visit(self, row: int) -> Generator[Sequence[Trial], Sequence[Seen], None]:
        assert self._learnt is not None
        trials = self._trials(row)
        for trial, seen in zip(trials, (yield trials), strict=True):
            self._learnt.tell(trial, seen)

    def _trials(self, row: int) -> list[Trial]:
        return [Trial(row, place) for place in self._stage.places]

    def _refit(self, tried: dict[Trial, Seen]) -> None:
        self._learnt = Learnt(self._stage, tried, fitted(self._stage, tried))
        self._fitted_to = len(tried)

    def _gain(self, problems: Sequence[Problem]) -> Floats:
        """What every mode promises for the ``problems`` on average, (n,)."""
        assert self._learnt is not None
        gains = [np.minimum(self._learnt.gain(problem), 1.0) for problem in problems]
        gain: Floats = np.mean(gains, axis=0).reshape(len(self._stage.places), -1).max(axis=0)
        return gain


def _like(problem: Problem, watts: Floats) -> list[Problem]:
    """Problems that may come: budgets over the modes' range of power, other rates and latencies."""
    budgets = np.quantile(watts, np.linspace(0.02, 1.0, BUDGETS)).tolist()
    if problem.rate_hz is None or problem.latency_s is None:
        return [replace(problem, power_w=budget) for budget in budgets]
    return [
        replace(problem, power_w=budget, latency_s=problem.latency_s * longer, rate_hz=problem.rate_hz * faster)
        for budget in budgets
        for longer in FACTORS
        for faster in FACTORS
    ]
