"""fedge's own strategy: a few trials that teach most, then one after the other the trial that promises most.

What is chosen was measured and holds the limits as measured; a prediction only says what to try next. The first trials
(``design``) do not depend on what they show, and so are the same for all problems with the same batch sizes; the fit to
them is kept. Later ones update it (``updating``). With ``Ground.reuse`` the trials of earlier problems are known, and a
further one must promise more.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedge.concurrency.judging import best_tried
from fedge.concurrency.outcome import minibatches
from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Search, Seen, Trial, try_one
from fedge.strategies import Ground
from fedge.strategies.beliefs import Belief, Job, beforehand, believed, job_of
from fedge.strategies.design import Quantity, first_trials
from fedge.strategies.gain import Best, Spread, expected_gain_both, expected_gain_inference, expected_gain_training
from fedge.strategies.updating import Updated
from fedge.types import Floats

FIRST = 7
"""Trials of the design; chosen by us."""
TOPS = 3
"""At so many of the largest batch sizes the top mode is tried first; chosen by us."""
TOP_SHARE = 0.5
"""Unless the budget is less than this share of what the top mode is believed to draw; chosen by us."""
MOST = 15
"""Trials of one problem at most."""
WORTHWHILE = 0.0003
"""A trial that promises less is not made: as a share of the minibatches, or of the seconds; chosen by us."""
FIRST_OF_MANY = 12
"""Modes of the design where later problems profit from it; chosen by us."""
WORTHWHILE_AGAIN = 0.02
"""What a further mode must promise there; chosen by us."""
AHEAD = 26
"""Modes that are tried for problems like the first one, with all budgets of power; chosen by us."""
WORTHWHILE_AHEAD = 0.002
"""What such a mode must promise on average; chosen by us."""
BUDGETS, FACTORS = 14, (0.6, 1.0, 1.6)
"""Problems like one: so many budgets of power, and its rate and latency times these; chosen by us."""
MOST_AGAIN = 2
"""Further modes for one problem at most there; chosen by us."""
MODES_IN_ALL = 40
"""Modes of all problems together at most there."""
WIDTH = 1.0
"""How much wider than believed spreads are taken; chosen by us."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The jobs over some batch sizes: their places in the ground, and the points that trials measure.

    Trial t is the place ``t // n`` and the mode ``t % n``.
    """

    places: tuple[int | None, ...]
    train: Job | None
    infer: Job | None
    modes: int

    def trial(self, number: int) -> Trial:
        return Trial(number % self.modes, self.places[number // self.modes])

    def number(self, trial: Trial) -> int:
        return self.places.index(trial.batch) * self.modes + trial.row


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """Seconds and watts of either job."""

    train: tuple[Belief, Belief] | None
    infer: tuple[Belief, Belief] | None


class Expecting:
    """A ``fedge.strategies.Strategy``; needs a prior for every job."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._stages: dict[tuple[int | None, ...], Stage] = {}
        self._designs: dict[tuple[tuple[int | None, ...], int, int], list[Trial]] = {}
        self._fits: dict[tuple[object, ...], Beliefs] = {}
        self._memory: dict[Trial, Seen] = {}
        self._every: tuple[int | None, ...] = tuple(range(len(ground.infer))) or (None,)

    def search(self, problem: Problem) -> Search:
        if self._ground.reuse:
            return self._again(problem)
        return self._anew(problem)

    def _anew(self, problem: Problem) -> Search:
        """From nothing: one mode at one batch size after the other."""
        places = self._places(problem)
        if not places:
            return None
        stage = self._stage(places)
        trials = self._design(stage, problem.power_w)
        tried = dict(zip(trials, (yield trials), strict=True))
        learnt = _Learnt(stage, self._fit(stage, tried))
        while len(tried) < MOST:
            trial, gain = self._next(problem, places, learnt, tried)
            if gain < WORTHWHILE:
                break
            tried[trial] = seen = yield from try_one(trial)
            learnt.tell(stage.number(trial), seen)
        return best_tried(problem, self._ground.batch_sizes, tried)

    def _again(self, problem: Problem) -> Search:
        """With the trials of earlier problems; a mode is tried at every batch size, since others may need them."""
        stage = self._stage(self._every)
        tried = self._memory
        if not tried:
            rows = dict.fromkeys(trial.row for trial in self._design(stage, problem.power_w, FIRST_OF_MANY))
            trials = [Trial(row, place) for row in rows for place in self._every]
            tried.update(zip(trials, (yield trials), strict=True))
        learnt = _Learnt(stage, self._fit(stage, tried))
        while len(tried) < AHEAD * len(self._every):
            like = _like(problem, learnt)
            trial, gain = self._next_for(like, learnt, tried)
            if gain < WORTHWHILE_AHEAD:
                break
            yield from self._visit(trial.row, learnt, tried)
        for _ in range(MOST_AGAIN):
            trial, gain = self._next_for((problem,), learnt, tried)
            if gain < WORTHWHILE_AGAIN or len(tried) >= MODES_IN_ALL * len(self._every):
                break
            yield from self._visit(trial.row, learnt, tried)
        return best_tried(problem, self._ground.batch_sizes, tried)

    def _visit(
        self, row: int, learnt: _Learnt, tried: dict[Trial, Seen]
    ) -> Generator[Sequence[Trial], Sequence[Seen], None]:
        trials = [Trial(row, place) for place in self._every]
        for trial, seen in zip(trials, (yield trials), strict=True):
            tried[trial] = seen
            learnt.tell(learnt.stage.number(trial), seen)

    def _next_for(
        self, problems: Sequence[Problem], learnt: _Learnt, tried: Mapping[Trial, Seen]
    ) -> tuple[Trial, float]:
        """The trial that promises most for the ``problems`` together, and what it promises on average."""
        stage = learnt.stage
        gain = np.zeros(len(stage.places) * stage.modes)
        for problem in problems:
            own = learnt.gain(problem, self._sizes(stage.places), self._best(problem, tried))
            gain += np.minimum(own, 1.0) / len(problems)
        by_mode = gain.reshape(len(stage.places), -1)
        by_mode[:, [trial.row for trial in tried]] = -np.inf
        number = int(np.argmax(gain))
        return stage.trial(number), float(gain[number])

    def _next(
        self, problem: Problem, places: Sequence[int | None], learnt: _Learnt, tried: Mapping[Trial, Seen]
    ) -> tuple[Trial, float]:
        """The trial that promises most among those at ``places``, and what it promises."""
        stage = learnt.stage
        own = {trial: seen for trial, seen in tried.items() if trial.batch in places}
        gain = learnt.gain(problem, self._sizes(stage.places), self._best(problem, own))
        gain[np.repeat([place not in places for place in stage.places], stage.modes)] = -np.inf
        gain[[stage.number(trial) for trial in tried]] = -np.inf
        number = int(np.argmax(gain))
        return stage.trial(number), float(gain[number])

    def _places(self, problem: Problem) -> tuple[int | None, ...]:
        """The batch sizes that are collected within the latency budget."""
        if problem.family == "train":
            return (None,)
        assert problem.rate_hz is not None
        assert problem.latency_s is not None
        within = problem.rate_hz * problem.latency_s
        return tuple(place for place, size in enumerate(self._ground.batch_sizes) if size < within)

    def _sizes(self, places: Sequence[int | None]) -> Floats:
        return np.array([[self._ground.batch_sizes[place] if place is not None else 0.0] for place in places])

    def _stage(self, places: tuple[int | None, ...]) -> Stage:
        if places not in self._stages:
            ground = self._ground
            train = None if ground.train is None else job_of((ground.train,), (1,), ground.modes, infers=False)
            own = [place for place in places if place is not None]
            known, sizes = [ground.infer[place] for place in own], [ground.batch_sizes[place] for place in own]
            infer = job_of(known, sizes, ground.modes, infers=True) if own else None
            self._stages[places] = Stage(places, train, infer, len(ground.modes))
        return self._stages[places]

    def _design(self, stage: Stage, power_w: float, count: int = FIRST) -> list[Trial]:
        """Where power may allow it the top mode first: it says whether anything can hold. Then what teaches most."""
        before = self._beforehand(stage)
        top = int(np.argmax((self._ground.modes.knobs / self._ground.modes.knobs.max(axis=0)).sum(axis=1)))
        powers = [float(np.exp(b[1].mean[top])) for b in (before.train, before.infer) if b is not None]
        tops = TOPS if stage.infer is not None and power_w >= TOP_SHARE * max(powers) else 0
        key = stage.places, tops, count
        if key not in self._designs:
            points = np.arange(len(stage.places) * stage.modes)
            quantities = [Quantity(belief, points % stage.modes) for belief in before.train or ()]
            quantities += [Quantity(belief, points) for belief in before.infer or ()]
            last = range(len(stage.places))[-tops:] if tops else ()
            chosen = first_trials(quantities, min(count, len(points)), [place * stage.modes + top for place in last])
            self._designs[key] = [stage.trial(number) for number in chosen]
        return self._designs[key]

    def _beforehand(self, stage: Stage) -> Beliefs:
        key = (stage.places,)
        if key not in self._fits:
            train = None if stage.train is None else beforehand(stage.train)
            self._fits[key] = Beliefs(train, None if stage.infer is None else beforehand(stage.infer))
        return self._fits[key]

    def _fit(self, stage: Stage, tried: Mapping[Trial, Seen]) -> Beliefs:
        """Kept for what was seen: on a table the design shows every problem the same."""
        key = (stage.places, tuple(tried.items()))
        if key not in self._fits:
            self._fits[key] = _fitted(stage, tried)
        return self._fits[key]

    def _best(self, problem: Problem, tried: Mapping[Trial, Seen]) -> Best | None:
        choice = best_tried(problem, self._ground.batch_sizes, tried)
        if choice is None:
            return None
        seen = tried[Trial(choice.row, choice.batch)]
        if problem.family != "concurrent" or choice.batch is None or problem.rate_hz is None:
            return Best(seen.train_s, seen.infer_s)
        window_s = np.array(self._ground.batch_sizes[choice.batch] / problem.rate_hz)
        steps = minibatches(window_s, np.array(seen.infer_s), np.array(seen.train_s))
        return Best(seen.train_s, seen.infer_s, int(steps))


class _Learnt:
    """What is believed of both jobs, trial by trial."""

    def __init__(self, stage: Stage, beliefs: Beliefs) -> None:
        self.stage, self._modes, self._k = stage, stage.modes, len(stage.places)
        self._train = None if beliefs.train is None else [Updated(belief) for belief in beliefs.train]
        self._infer = None if beliefs.infer is None else [Updated(belief) for belief in beliefs.infer]

    def tell(self, number: int, seen: Seen) -> None:
        if self._train is not None:
            self._train[0].tell(number % self._modes, float(np.log(seen.train_s)))
            self._train[1].tell(number % self._modes, float(np.log(seen.train_w)))
        if self._infer is not None:
            self._infer[0].tell(number, float(np.log(seen.infer_s)))
            self._infer[1].tell(number, float(np.log(seen.infer_w)))

    def watts(self) -> Floats:
        """Expected power of interleaving in every mode at the largest batch size, (n,)."""
        means = [updated[1].mean[-self._modes :] for updated in (self._train, self._infer) if updated is not None]
        watts: Floats = np.exp(np.max(means, axis=0))
        return watts

    def gain(self, problem: Problem, sizes: Floats, best: Best | None) -> Floats:
        """Of every trial, (k n,)."""
        train = [Spread.of(updated, 1, WIDTH) for updated in self._train or ()]
        infer = [Spread.of(updated, self._k, WIDTH) for updated in self._infer or ()]
        if problem.family == "train":
            gain = expected_gain_training(problem, train[0], train[1], best)
        elif problem.family == "infer":
            gain = expected_gain_inference(problem, sizes, infer[0], infer[1], best)
        else:
            gain = expected_gain_both(problem, sizes, (train[0], train[1]), (infer[0], infer[1]), best)
        return gain.ravel()


def _fitted(stage: Stage, tried: Mapping[Trial, Seen]) -> Beliefs:
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


def _like(problem: Problem, learnt: _Learnt) -> list[Problem]:
    """Problems that may come: other budgets over the modes' range of power, and other rates and latencies."""
    watts = learnt.watts()
    budgets = np.quantile(watts, np.linspace(0.02, 1.0, BUDGETS)).tolist()
    if problem.family == "train":
        return [replace(problem, power_w=budget) for budget in budgets]
    assert problem.latency_s is not None
    assert problem.rate_hz is not None
    return [
        replace(problem, power_w=budget, latency_s=problem.latency_s * more, rate_hz=problem.rate_hz * faster)
        for budget in budgets
        for more in FACTORS
        for faster in FACTORS
    ]
