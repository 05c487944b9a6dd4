"""The strategy ``fedge``: a few informative trials, then one after the other the trial of largest expected gain.

The chosen mode was measured and meets the limits as measured; predictions only select trials. The first trials do not
depend on their readings and are the same for all problems with the same batch sizes; on a table, the fit to them is the
same too and is cached. Later trials update it (``job_posterior.SequentialBelief``).

Over a stream of problems of one pair of jobs, trials are reused for all later problems. A mode is then tried at every
batch size, since other problems may need them. The first modes are the most informative ones, followed by those with
the largest mean expected gain over problems similar to the first one, with other budgets, rates and latencies. After
that, every problem adds each mode's expected gain to a sum; a mode whose sum is large enough is tried, and the sums
restart at zero. The threshold grows with the number of modes tried, so that some remain for later problems.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import numpy as np

from fedge.serving.strategies import SearchContext, SearchStrategy
from fedge.serving.strategies.trial_model import (
    BatchPlaces,
    JobBeliefs,
    OpeningTrials,
    TrialModel,
    TrialSpace,
    build_trial_space,
    fit_beliefs,
)
from fedge.serving.trial_search import (
    ServingProblem,
    Trial,
    TrialReading,
    TrialSearch,
    find_best_trial,
    request_trial,
)
from fedge.types import Floats

FIRST_MODES = 12
# Modes before the first fit. Default: fewer leave the fit to the prior, more cannot be chosen adaptively.
MODES_AHEAD = 20
# Modes tried for a range of similar problems. Default: half of ``MAX_MODES``.
MAX_MODES = 40
# Limit on the modes tried over all problems.
MAX_MODES_PER_PROBLEM = 3
# Limit on further modes for one problem. Default: leaves trials for later problems.
MIN_GAIN_AHEAD = 0.002
# Smallest mean expected gain over similar problems for which a mode is tried. Default; a smaller value tries more.
WORTHWHILE, DEARER = 0.025, 1.08
# Threshold of the summed gains, and the factor by which it grows with every mode. Defaults: trade trials now against
# trials for later problems.
MIN_GAIN_UNSOLVED = 0.05
# Threshold of the summed gains while no trial meets the problem's limits. Default.
BUDGETS, FACTORS = 14, (0.6, 1.0, 1.6)
# Similar problems: number of power budgets, and factors on rate and latency. Defaults: more cover the range more finely
# and take longer.


class TrialReuse:
    """A ``fedge.serving.strategies.SearchStrategy`` that reuses its trials; needs a prior for every job."""

    def __init__(self, context: SearchContext) -> None:
        places: BatchPlaces = tuple(range(len(context.infer))) or (None,)
        self._stage = build_trial_space(context, places)
        self._openings = OpeningTrials(self._stage)
        self._learnt: TrialModel | None = None
        self._fitted_to = 0
        self._promised = np.zeros(len(context.modes))

    def search(self, problem: ServingProblem) -> TrialSearch:
        if self._learnt is None:
            rows = dict.fromkeys(trial.row for trial in self._openings.select_trials(problem.power_w, FIRST_MODES))
            trials = [trial for row in rows for trial in self._list_trials(row)]
            self._refit(dict(zip(trials, (yield trials), strict=True)))
            yield from self._try_ahead(problem)
        assert self._learnt is not None
        if len(self._learnt.tried) > self._fitted_to:
            self._refit(self._learnt.tried)
        choice = self._best_choice(problem)
        for _ in range(MAX_MODES_PER_PROBLEM):
            gain = self._mean_gains((problem,))
            self._promised += gain.clip(0.0)
            row = int(np.argmax(gain))
            wanted = MIN_GAIN_UNSOLVED if choice is None else WORTHWHILE * DEARER ** (self._mode_count - MODES_AHEAD)
            if self._mode_count >= MAX_MODES or self._promised[row] < wanted:
                break
            self._promised[:] = 0.0
            yield from self._try_mode(row)
            choice = self._best_choice(problem)
        return choice

    def _best_choice(self, problem: ServingProblem) -> Trial | None:
        assert self._learnt is not None
        return find_best_trial(problem, self._stage.context.batch_sizes, self._learnt.tried)

    @property
    def _mode_count(self) -> int:
        """Return the number of modes tried so far."""
        return 0 if self._learnt is None else len(self._learnt.tried) // len(self._stage.places)

    def _try_ahead(self, problem: ServingProblem) -> Generator[Sequence[Trial], Sequence[TrialReading], None]:
        assert self._learnt is not None
        while self._mode_count < MODES_AHEAD:
            gain = self._mean_gains(_similar_problems(problem, self._learnt.expected_power_w()))
            if gain.max() < MIN_GAIN_AHEAD:
                break
            yield from self._try_mode(int(np.argmax(gain)))

    def _try_mode(self, row: int) -> Generator[Sequence[Trial], Sequence[TrialReading], None]:
        assert self._learnt is not None
        trials = self._list_trials(row)
        for trial, seen in zip(trials, (yield trials), strict=True):
            self._learnt.tell(trial, seen)

    def _list_trials(self, row: int) -> list[Trial]:
        return [Trial(row, place) for place in self._stage.places]

    def _refit(self, tried: dict[Trial, TrialReading]) -> None:
        self._learnt = TrialModel(self._stage, tried, fit_beliefs(self._stage, tried))
        self._fitted_to = len(tried)

    def _mean_gains(self, problems: Sequence[ServingProblem]) -> Floats:
        """Return every mode's mean expected gain over ``problems``, (n,)."""
        assert self._learnt is not None
        gains = [np.minimum(self._learnt.expected_gains(problem), 1.0) for problem in problems]
        gain: Floats = np.mean(gains, axis=0).reshape(len(self._stage.places), -1).max(axis=0)
        return gain


def _similar_problems(problem: ServingProblem, watts: Floats) -> list[ServingProblem]:
    """Return problems that may follow: budgets over the modes' range of power, and other rates and latencies."""
    budgets = np.quantile(watts, np.linspace(0.02, 1.0, BUDGETS)).tolist()
    if problem.rate_hz is None or problem.latency_s is None:
        return [replace(problem, power_w=budget) for budget in budgets]
    return [
        replace(problem, power_w=budget, latency_s=problem.latency_s * longer, rate_hz=problem.rate_hz * faster)
        for budget in budgets
        for longer in FACTORS
        for faster in FACTORS
    ]


FIRST_TRIALS = 7
# Trials before the first fit. Default: about half of ``MAX_TRIALS``, so that the rest can be chosen adaptively.
MAX_TRIALS = 15
# Limit on the trials of one problem.
MIN_GAIN = 0.0003
# Expected gain below which no further trial is made, as a share of the steps or of the seconds. Default.
MAX_CACHED_FITS = 12
# Limit on cached fits, about 40 MB each with five batch sizes of 441 modes.


def build_fedge_strategy(context: SearchContext) -> SearchStrategy:
    """Create the strategy ``fedge``; with ``SearchContext.reuse``, trials are reused for all later problems."""
    return TrialReuse(context) if context.reuse else ExpectedImprovement(context)


class ExpectedImprovement:
    """A ``fedge.serving.strategies.SearchStrategy`` that solves every problem from scratch; every job needs a prior."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._stages: dict[BatchPlaces, tuple[TrialSpace, OpeningTrials]] = {}
        self._fits: dict[tuple[BatchPlaces, tuple[tuple[Trial, TrialReading], ...]], JobBeliefs] = {}

    def search(self, problem: ServingProblem) -> TrialSearch:
        places = self._collectable_batches(problem)
        if not places:
            return None
        stage, openings = self._cached_space(places)
        trials = openings.select_trials(problem.power_w, FIRST_TRIALS)
        learnt = self._fit_first_trials(stage, dict(zip(trials, (yield trials), strict=True)))
        while len(learnt.tried) < MAX_TRIALS:
            gain = learnt.expected_gains(problem)
            number = int(np.argmax(gain))
            if gain[number] < MIN_GAIN:
                break
            learnt.tell(stage.trial_at(number), (yield from request_trial(stage.trial_at(number))))
        return find_best_trial(problem, self._context.batch_sizes, learnt.tried)

    def _collectable_batches(self, problem: ServingProblem) -> BatchPlaces:
        """Return the batch sizes that can be collected within the latency budget."""
        if problem.rate_hz is None or problem.latency_s is None:
            return (None,)
        within = problem.rate_hz * problem.latency_s
        return tuple(place for place, size in enumerate(self._context.batch_sizes) if size < within)

    def _cached_space(self, places: BatchPlaces) -> tuple[TrialSpace, OpeningTrials]:
        if places not in self._stages:
            stage = build_trial_space(self._context, places)
            self._stages[places] = stage, OpeningTrials(stage)
        return self._stages[places]

    def _fit_first_trials(self, stage: TrialSpace, tried: dict[Trial, TrialReading]) -> TrialModel:
        key = stage.places, tuple(tried.items())
        if key not in self._fits:
            if len(self._fits) >= MAX_CACHED_FITS:
                self._fits.pop(next(iter(self._fits)))
            self._fits[key] = fit_beliefs(stage, tried)
        return TrialModel(stage, tried, self._fits[key])
