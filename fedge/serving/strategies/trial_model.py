"""What is known of both jobs over some batch sizes, beforehand and trial by trial, and what the next trial promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.expected_gain import (
    BestTrial,
    LogNormalSpread,
    expected_gain_both,
    expected_gain_inference,
    expected_gain_training,
)
from fedge.serving.strategies.initial_trials import TrialQuantity, choose_initial_trials
from fedge.serving.strategies.job_posterior import (
    JobBelief,
    JobModel,
    SequentialBelief,
    build_job_model,
    compute_posteriors,
    compute_priors,
)
from fedge.serving.trial_search import Trial, TrialReading, count_steps_per_window, find_best_trial
from fedge.types import Floats

TOP_MODE_TRIALS = 3
"""At so many of the largest batch sizes the top mode is tried first; chosen by us."""
TOP_SHARE = 0.5
"""Unless the budget is less than this share of what the top mode is believed to draw; chosen by us."""
SPREAD_FACTOR = 1.0
"""How much wider than believed spreads are taken; chosen by us."""

BatchPlaces = tuple[int | None, ...]
"""Places among the ground's batch sizes; ``(None,)`` for training alone."""


@dataclass(frozen=True, slots=True, eq=False)
class TrialSpace:
    """The jobs at some batch sizes, and their trials' numbers: t is the place ``t // n`` and the mode ``t % n``."""

    ground: SearchContext
    places: BatchPlaces
    train: JobModel | None
    infer: JobModel | None

    @property
    def mode_count(self) -> int:
        return len(self.ground.modes)

    @property
    def trial_count(self) -> int:
        return len(self.places) * self.mode_count

    @property
    def batch_sizes(self) -> Floats:
        """Shape (k, 1); 0 where nothing is inferred."""
        return np.array([[0.0 if place is None else self.ground.batch_sizes[place]] for place in self.places])

    def trial_at(self, number: int) -> Trial:
        return Trial(number % self.mode_count, self.places[number // self.mode_count])

    def number_of_trial(self, trial: Trial) -> int:
        return self.places.index(trial.batch) * self.mode_count + trial.row


def build_trial_space(ground: SearchContext, places: BatchPlaces) -> TrialSpace:
    """Raises ``BadInput`` for a job of which nothing is known beforehand."""
    train = None if ground.train is None else build_job_model((ground.train,), (1,), ground.modes, infers=False)
    own = [place for place in places if place is not None]
    known, sizes = [ground.infer[place] for place in own], [ground.batch_sizes[place] for place in own]
    return TrialSpace(ground, places, train, build_job_model(known, sizes, ground.modes, infers=True) if own else None)


class OpeningTrials:
    """The first trials, which depend on the budget only in whether the top mode is among them; kept."""

    def __init__(self, stage: TrialSpace) -> None:
        self._stage = stage
        self._designs: dict[tuple[int, int], list[Trial]] = {}
        knobs = stage.ground.modes.knobs
        self._top = int(np.argmax((knobs / knobs.max(axis=0)).sum(axis=1)))
        self._top_w = 0.0
        for job in (stage.train, stage.infer):
            if job is not None:
                self._top_w = max(self._top_w, float(np.exp(compute_priors(job)[1].mean[self._top])))

    def select_trials(self, power_w: float, count: int) -> list[Trial]:
        """Where power may allow it the top mode first: it says whether anything can hold. Then what teaches most."""
        tops = TOP_MODE_TRIALS if self._stage.infer is not None and power_w >= TOP_SHARE * self._top_w else 0
        if (tops, count) not in self._designs:
            self._designs[tops, count] = self._design_trials(tops, count)
        return self._designs[tops, count]

    def _design_trials(self, tops: int, count: int) -> list[Trial]:
        stage = self._stage
        points = np.arange(stage.trial_count)
        quantities = []
        if stage.train is not None:
            quantities += [TrialQuantity(belief, points % stage.mode_count) for belief in compute_priors(stage.train)]
        if stage.infer is not None:
            quantities += [TrialQuantity(belief, points) for belief in compute_priors(stage.infer)]
        last = range(len(stage.places))[-tops:] if tops else ()
        fixed = [place * stage.mode_count + self._top for place in last]
        return [
            stage.trial_at(number) for number in choose_initial_trials(quantities, min(count, stage.trial_count), fixed)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class JobBeliefs:
    """Seconds and watts of either job after some trials."""

    train: tuple[JobBelief, JobBelief] | None
    infer: tuple[JobBelief, JobBelief] | None


def fit_beliefs(stage: TrialSpace, tried: Mapping[Trial, TrialReading]) -> JobBeliefs:
    """What to believe after ``tried``; a mode that was tried at several batch sizes counts once for training."""
    numbers = np.array([stage.number_of_trial(trial) for trial in tried], dtype=np.intp)
    seen = list(tried.values())
    train = infer = None
    if stage.train is not None:
        rows, which = np.unique(numbers % stage.mode_count, return_inverse=True)
        train = compute_posteriors(stage.train, rows, *_average_logs([(s.train_s, s.train_w) for s in seen], which))
    if stage.infer is not None:
        infer = compute_posteriors(
            stage.infer, numbers, *_average_logs([(s.infer_s, s.infer_w) for s in seen], np.arange(len(seen)))
        )
    return JobBeliefs(train, infer)


def _average_logs(values: Sequence[tuple[float, float]], which: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Log seconds and log watts, averaged over the trials of one point."""
    logs, count = np.log(np.array(values)), np.bincount(which)
    return np.bincount(which, logs[:, 0]) / count, np.bincount(which, logs[:, 1]) / count


class TrialModel:
    """The beliefs, further trials, and what was seen of all of them."""

    def __init__(self, stage: TrialSpace, tried: Mapping[Trial, TrialReading], beliefs: JobBeliefs) -> None:
        """``beliefs`` are those after ``tried``."""
        self.stage = stage
        self.tried = dict(tried)
        self._train = [SequentialBelief(belief) for belief in beliefs.train or ()]
        self._infer = [SequentialBelief(belief) for belief in beliefs.infer or ()]

    def tell(self, trial: Trial, seen: TrialReading) -> None:
        self.tried[trial] = seen
        number = self.stage.number_of_trial(trial)
        for updated, value in zip(self._train, (seen.train_s, seen.train_w), strict=False):
            updated.tell(trial.row, float(np.log(value)))
        for updated, value in zip(self._infer, (seen.infer_s, seen.infer_w), strict=False):
            updated.tell(number, float(np.log(value)))

    def expected_power_w(self) -> Floats:
        """Expected power of interleaving in every mode at the largest batch size, (n,)."""
        means = [updated[1].mean[-self.stage.mode_count :] for updated in (self._train, self._infer) if updated]
        watts: Floats = np.exp(np.max(means, axis=0))
        return watts

    def expected_gains(self, problem: ServingProblem) -> Floats:
        """What every trial promises for the problem, (k n,); below zero where it cannot be of use or was made."""
        stage, best = self.stage, self._best_trial(problem)
        train = [LogNormalSpread.from_belief(updated, 1, SPREAD_FACTOR) for updated in self._train]
        infer = [LogNormalSpread.from_belief(updated, len(stage.places), SPREAD_FACTOR) for updated in self._infer]
        if problem.family == "train":
            gain = expected_gain_training(problem, train[0], train[1], best)
        elif problem.family == "infer":
            gain = expected_gain_inference(
                problem, batch_sizes=stage.batch_sizes, seconds=infer[0], watts=infer[1], best=best
            )
        else:
            gain = expected_gain_both(
                problem,
                batch_sizes=stage.batch_sizes,
                train=(train[0], train[1]),
                infer=(infer[0], infer[1]),
                best=best,
            )
        gain = gain.ravel()
        gain[[stage.number_of_trial(trial) for trial in self.tried]] = -np.inf
        return gain

    def _best_trial(self, problem: ServingProblem) -> BestTrial | None:
        choice = find_best_trial(problem, self.stage.ground.batch_sizes, self.tried)
        if choice is None:
            return None
        seen = self.tried[Trial(choice.row, choice.batch)]
        size = 0 if choice.batch is None else self.stage.ground.batch_sizes[choice.batch]
        return BestTrial(seen.train_s, seen.infer_s, count_steps_per_window(problem, size, seen))
