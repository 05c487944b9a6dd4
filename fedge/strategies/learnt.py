"""What is known of both jobs over some batch sizes, beforehand and trial by trial, and what the next trial promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.concurrency.judging import best_tried, steps_per_window
from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Seen, Trial
from fedge.strategies import Ground
from fedge.strategies.beliefs import Belief, Job, beforehand, believed, job_of
from fedge.strategies.design import Quantity, first_trials
from fedge.strategies.gain import Best, Spread, expected_gain_both, expected_gain_inference, expected_gain_training
from fedge.strategies.updating import Updated
from fedge.types import Floats

TOPS = 3
"""At so many of the largest batch sizes the top mode is tried first; chosen by us."""
TOP_SHARE = 0.5
"""Unless the budget is less than this share of what the top mode is believed to draw; chosen by us."""
WIDTH = 1.0
"""How much wider than believed spreads are taken; chosen by us."""

Places = tuple[int | None, ...]
"""Places among the ground's batch sizes; ``(None,)`` for training alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The jobs at some batch sizes, and their trials' numbers: t is the place ``t // n`` and the mode ``t % n``."""

    ground: Ground
    places: Places
    train: Job | None
    infer: Job | None

    @property
    def modes(self) -> int:
        return len(self.ground.modes)

    @property
    def trials(self) -> int:
        return len(self.places) * self.modes

    @property
    def batch_sizes(self) -> Floats:
        """Shape (k, 1); 0 where nothing is inferred."""
        return np.array([[0.0 if place is None else self.ground.batch_sizes[place]] for place in self.places])

    def trial(self, number: int) -> Trial:
        return Trial(number % self.modes, self.places[number // self.modes])

    def number(self, trial: Trial) -> int:
        return self.places.index(trial.batch) * self.modes + trial.row


def stage_of(ground: Ground, places: Places) -> Stage:
    """Raises ``BadInput`` for a job of which nothing is known beforehand."""
    train = None if ground.train is None else job_of((ground.train,), (1,), ground.modes, infers=False)
    own = [place for place in places if place is not None]
    known, sizes = [ground.infer[place] for place in own], [ground.batch_sizes[place] for place in own]
    return Stage(ground, places, train, job_of(known, sizes, ground.modes, infers=True) if own else None)


class Openings:
    """The first trials, which depend on the budget only in whether the top mode is among them; kept."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._designs: dict[tuple[int, int], list[Trial]] = {}
        knobs = stage.ground.modes.knobs
        self._top = int(np.argmax((knobs / knobs.max(axis=0)).sum(axis=1)))
        self._top_w = 0.0
        for job in (stage.train, stage.infer):
            if job is not None:
                self._top_w = max(self._top_w, float(np.exp(beforehand(job)[1].mean[self._top])))

    def of(self, power_w: float, count: int) -> list[Trial]:
        """Where power may allow it the top mode first: it says whether anything can hold. Then what teaches most."""
        tops = TOPS if self._stage.infer is not None and power_w >= TOP_SHARE * self._top_w else 0
        if (tops, count) not in self._designs:
            self._designs[tops, count] = self._designed(tops, count)
        return self._designs[tops, count]

    def _designed(self, tops: int, count: int) -> list[Trial]:
        stage = self._stage
        points = np.arange(stage.trials)
        quantities = []
        if stage.train is not None:
            quantities += [Quantity(belief, points % stage.modes) for belief in beforehand(stage.train)]
        if stage.infer is not None:
            quantities += [Quantity(belief, points) for belief in beforehand(stage.infer)]
        last = range(len(stage.places))[-tops:] if tops else ()
        fixed = [place * stage.modes + self._top for place in last]
        return [stage.trial(number) for number in first_trials(quantities, min(count, stage.trials), fixed)]


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """Seconds and watts of either job after some trials."""

    train: tuple[Belief, Belief] | None
    infer: tuple[Belief, Belief] | None


def fitted(stage: Stage, tried: Mapping[Trial, Seen]) -> Beliefs:
    """What to believe after ``tried``; a mode that was tried at several batch sizes counts once for training."""
    numbers = np.array([stage.number(trial) for trial in tried], dtype=np.intp)
    seen = list(tried.values())
    train = infer = None
    if stage.train is not None:
        rows, which = np.unique(numbers % stage.modes, return_inverse=True)
        train = believed(stage.train, rows, *_logs([(s.train_s, s.train_w) for s in seen], which))
    if stage.infer is not None:
        infer = believed(stage.infer, numbers, *_logs([(s.infer_s, s.infer_w) for s in seen], np.arange(len(seen))))
    return Beliefs(train, infer)


def _logs(values: Sequence[tuple[float, float]], which: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Log seconds and log watts, averaged over the trials of one point."""
    logs, count = np.log(np.array(values)), np.bincount(which)
    return np.bincount(which, logs[:, 0]) / count, np.bincount(which, logs[:, 1]) / count


class Learnt:
    """The beliefs, further trials, and what was seen of all of them."""

    def __init__(self, stage: Stage, tried: Mapping[Trial, Seen], beliefs: Beliefs) -> None:
        """``beliefs`` are those after ``tried``."""
        self.stage = stage
        self.tried = dict(tried)
        self._train = [Updated(belief) for belief in beliefs.train or ()]
        self._infer = [Updated(belief) for belief in beliefs.infer or ()]

    def tell(self, trial: Trial, seen: Seen) -> None:
        self.tried[trial] = seen
        number = self.stage.number(trial)
        for updated, value in zip(self._train, (seen.train_s, seen.train_w), strict=False):
            updated.tell(trial.row, float(np.log(value)))
        for updated, value in zip(self._infer, (seen.infer_s, seen.infer_w), strict=False):
            updated.tell(number, float(np.log(value)))

    def watts(self) -> Floats:
        """Expected power of interleaving in every mode at the largest batch size, (n,)."""
        means = [updated[1].mean[-self.stage.modes :] for updated in (self._train, self._infer) if updated]
        watts: Floats = np.exp(np.max(means, axis=0))
        return watts

    def gain(self, problem: Problem) -> Floats:
        """What every trial promises for the problem, (k n,); below zero where it cannot be of use or was made."""
        stage, best = self.stage, self._best(problem)
        train = [Spread.of(updated, 1, WIDTH) for updated in self._train]
        infer = [Spread.of(updated, len(stage.places), WIDTH) for updated in self._infer]
        if problem.family == "train":
            gain = expected_gain_training(problem, train[0], train[1], best)
        elif problem.family == "infer":
            gain = expected_gain_inference(problem, stage.batch_sizes, infer[0], infer[1], best)
        else:
            gain = expected_gain_both(problem, stage.batch_sizes, (train[0], train[1]), (infer[0], infer[1]), best)
        gain = gain.ravel()
        gain[[stage.number(trial) for trial in self.tried]] = -np.inf
        return gain

    def _best(self, problem: Problem) -> Best | None:
        choice = best_tried(problem, self.stage.ground.batch_sizes, self.tried)
        if choice is None:
            return None
        seen = self.tried[Trial(choice.row, choice.batch)]
        size = 0 if choice.batch is None else self.stage.ground.batch_sizes[choice.batch]
        return Best(seen.train_s, seen.infer_s, steps_per_window(problem, size, seen))
