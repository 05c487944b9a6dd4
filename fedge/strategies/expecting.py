"""fedge's own strategy: a few trials that teach most, then one after the other the trial that promises most.

What is chosen was measured and holds the limits as measured; a prediction only says what to try next. The first trials
do not depend on what they show, and so are the same for all problems with the same batch sizes; on a table the fit to
them is then the same too, and kept. Later trials update it (``updating``).
"""

from __future__ import annotations

import numpy as np

from fedge.concurrency.judging import best_tried
from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Search, Seen, Trial, try_one
from fedge.strategies import Ground, Strategy
from fedge.strategies.learnt import Beliefs, Learnt, Openings, Places, Stage, fitted, stage_of
from fedge.strategies.reusing import Reusing

FIRST = 7
"""Trials before the first fit; chosen by us."""
MOST = 15
"""Trials of one problem at most."""
WORTHWHILE = 0.0003
"""A trial that promises less is not made: as a share of the minibatches, or of the seconds; chosen by us."""
FITS = 12
"""So many fits are kept: about 40 MB each with five batch sizes of 441 modes."""


def expecting(ground: Ground) -> Strategy:
    """The strategy ``fedge``; with ``Ground.reuse`` its trials serve in all later problems."""
    return Reusing(ground) if ground.reuse else Expecting(ground)


class Expecting:
    """A ``fedge.strategies.Strategy`` that begins every problem from nothing; needs a prior for every job."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._stages: dict[Places, tuple[Stage, Openings]] = {}
        self._fits: dict[tuple[Places, tuple[tuple[Trial, Seen], ...]], Beliefs] = {}

    def search(self, problem: Problem) -> Search:
        places = self._places(problem)
        if not places:
            return None
        stage, openings = self._stage(places)
        trials = openings.of(problem.power_w, FIRST)
        learnt = self._first(stage, dict(zip(trials, (yield trials), strict=True)))
        while len(learnt.tried) < MOST:
            gain = learnt.gain(problem)
            number = int(np.argmax(gain))
            if gain[number] < WORTHWHILE:
                break
            learnt.tell(stage.trial(number), (yield from try_one(stage.trial(number))))
        return best_tried(problem, self._ground.batch_sizes, learnt.tried)

    def _places(self, problem: Problem) -> Places:
        """The batch sizes that are collected within the latency budget."""
        if problem.rate_hz is None or problem.latency_s is None:
            return (None,)
        within = problem.rate_hz * problem.latency_s
        return tuple(place for place, size in enumerate(self._ground.batch_sizes) if size < within)

    def _stage(self, places: Places) -> tuple[Stage, Openings]:
        if places not in self._stages:
            stage = stage_of(self._ground, places)
            self._stages[places] = stage, Openings(stage)
        return self._stages[places]

    def _first(self, stage: Stage, tried: dict[Trial, Seen]) -> Learnt:
        key = stage.places, tuple(tried.items())
        if key not in self._fits:
            if len(self._fits) >= FITS:
                self._fits.pop(next(iter(self._fits)))
            self._fits[key] = fitted(stage, tried)
        return Learnt(stage, tried, self._fits[key])
