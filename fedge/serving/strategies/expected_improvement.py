"""The strategy ``fedge``: a few informative trials, then one after the other the trial of largest expected gain.

The chosen mode was measured and meets the limits as measured; predictions only select trials. The first trials do not
depend on their readings and are the same for all problems with the same batch sizes; on a table, the fit to them is the
same too and is cached. Later trials update it (``job_posterior.SequentialBelief``).
"""

from __future__ import annotations

import numpy as np

from fedge.serving.serving_problems import ServingProblem
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
from fedge.serving.strategies.trial_reuse import TrialReuse
from fedge.serving.trial_search import Trial, TrialReading, TrialSearch, find_best_trial, request_trial

FIRST_TRIALS = 7
# Trials before the first fit. Default: about half of ``MAX_TRIALS``, so that the rest can be chosen adaptively.
MAX_TRIALS = 15
# Limit on the trials of one problem.
MIN_GAIN = 0.0003
# Expected gain below which no further trial is made, as a share of the steps or of the seconds. Default.
MAX_CACHED_FITS = 12
# Limit on cached fits, about 40 MB each with five batch sizes of 441 modes.


def build_fedge_strategy(ground: SearchContext) -> SearchStrategy:
    """Create the strategy ``fedge``; with ``SearchContext.reuse``, trials are reused for all later problems."""
    return TrialReuse(ground) if ground.reuse else ExpectedImprovement(ground)


class ExpectedImprovement:
    """A ``fedge.serving.strategies.SearchStrategy`` that solves every problem from scratch; every job needs a prior."""

    def __init__(self, ground: SearchContext) -> None:
        self._ground = ground
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
        return find_best_trial(problem, self._ground.batch_sizes, learnt.tried)

    def _collectable_batches(self, problem: ServingProblem) -> BatchPlaces:
        """Return the batch sizes that can be collected within the latency budget."""
        if problem.rate_hz is None or problem.latency_s is None:
            return (None,)
        within = problem.rate_hz * problem.latency_s
        return tuple(place for place, size in enumerate(self._ground.batch_sizes) if size < within)

    def _cached_space(self, places: BatchPlaces) -> tuple[TrialSpace, OpeningTrials]:
        if places not in self._stages:
            stage = build_trial_space(self._ground, places)
            self._stages[places] = stage, OpeningTrials(stage)
        return self._stages[places]

    def _fit_first_trials(self, stage: TrialSpace, tried: dict[Trial, TrialReading]) -> TrialModel:
        key = stage.places, tuple(tried.items())
        if key not in self._fits:
            if len(self._fits) >= MAX_CACHED_FITS:
                self._fits.pop(next(iter(self._fits)))
            self._fits[key] = fit_beliefs(stage, tried)
        return TrialModel(stage, tried, self._fits[key])
