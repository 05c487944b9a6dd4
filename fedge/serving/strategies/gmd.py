"""Gradient-based multi-dimensional search (GMD) of Fulcrum.

Symbols: t, P seconds and watts of the job that is searched for; a bracket is a pair of tried modes, at first the middle
one and one that differs in a single knob; a knob's score is |dt / dP| over its bracket. From the middle mode, the knob
of the largest score is moved by bisection: to more power while the last mode is below the budget, otherwise to less.

References:
    Fulcrum, arXiv 2509.20205.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from fedge.serving.job_pair import KnobGrid, build_knob_grid
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.grid_walk import CORES, CPU, GPU, MEM, WalkTrials, bisect_knob, search_by_walk
from fedge.serving.trial_search import Trial, TrialReading, TrialSearch, request_trial

TIE_ORDER = (CORES, GPU, CPU, MEM)
"""Order of the knobs among equal scores."""
MAX_MOVES = 14
TRAIN_W, INFER_W = 1.0, 0.2
"""Smallest difference of power in watts for which a bracket has a score; the second is for inference alone."""

ScoredReading = Callable[[TrialReading, TrialReading], tuple[float, float]]
"""Returns the seconds and watts used for the score from a trial's reading and the last trial's."""


class GradientSearch:
    """The strategy ``gmd``, a ``fedge.serving.strategies.SearchStrategy``.

    Raises:
        BadInput: If the modes are not a full grid.
    """

    def __init__(self, ground: SearchContext) -> None:
        self._grid = build_knob_grid(ground.modes)
        self._batch_sizes = ground.batch_sizes

    def search(self, problem: ServingProblem) -> TrialSearch:
        return search_by_walk(self._walk_problem, problem, self._grid, self._batch_sizes)

    def _walk_problem(self, problem: ServingProblem, batch: int | None) -> WalkTrials:
        if problem.family == "train":
            return _run_walk(
                GradientWalk(self._grid, batch=batch, budget_w=problem.power_w, least_w=TRAIN_W, side=_training_reading)
            )
        if problem.family == "infer":
            return _run_walk(
                GradientWalk(
                    self._grid, batch=batch, budget_w=problem.power_w, least_w=INFER_W, side=_inference_reading
                )
            )
        return _run_walk(
            GradientWalk(
                self._grid,
                batch=batch,
                budget_w=problem.power_w,
                least_w=TRAIN_W,
                side=_larger_power_reading,
                tests_next=False,
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class GradientWalk:
    """The settings of a walk at one batch size.

    Attributes:
        grid: Grid of the modes.
        batch: Index of the batch size; None for training alone.
        budget_w: Power budget.
        least_w: Smallest difference of power in watts for which a bracket has a score.
        side: Seconds and watts that are scored.
        tests_next: Whether the power of the new mode, instead of the last one's, decides which end of the bracket is
            replaced.
    """

    grid: KnobGrid
    batch: int | None
    budget_w: float
    least_w: float
    side: ScoredReading
    tests_next: bool = True


def _run_walk(walk: GradientWalk) -> WalkTrials:
    """Run the walk and return all its trials."""
    tried: dict[Trial, TrialReading] = {}

    def at(place: list[int]) -> Generator[Sequence[Trial], Sequence[TrialReading], TrialReading]:
        trial = Trial(walk.grid.row(place), walk.batch)
        tried[trial] = seen = yield from request_trial(trial)
        return seen

    live = [list(range(len(values))) for values in walk.grid.values]
    place = [len(values) // 2 for values in live]
    last = yield from at(place)
    brackets = []
    for knob, values in enumerate(live):
        end = values[0] if last.power_w > walk.budget_w else values[-1]
        brackets.append((last, (yield from at([*place[:knob], end, *place[knob + 1 :]]))))
    for _ in range(MAX_MOVES):
        scores = {knob: _score_bracket(walk, brackets[knob], last) for knob in TIE_ORDER if len(live[knob]) > 1}
        knob = max(scores, key=lambda one: scores[one], default=CORES)
        if scores.get(knob, 0.0) == 0.0:
            break
        place[knob], live[knob] = bisect_knob(live[knob], place[knob], up=last.power_w < walk.budget_w)
        before, last = last, (yield from at(place))
        first, second = brackets[knob]
        under = (last if walk.tests_next else before).power_w < walk.budget_w
        brackets[knob] = (first, last) if under else (last, second)
    return tried


def _score_bracket(walk: GradientWalk, bracket: tuple[TrialReading, TrialReading], last: TrialReading) -> float:
    (t0, w0), (t1, w1) = (walk.side(seen, last) for seen in bracket)
    return 0.0 if abs(w1 - w0) < walk.least_w else abs((t1 - t0) / (w1 - w0))


def _training_reading(seen: TrialReading, _last: TrialReading) -> tuple[float, float]:
    return seen.train_s, seen.train_w


def _inference_reading(seen: TrialReading, _last: TrialReading) -> tuple[float, float]:
    return seen.infer_s, seen.infer_w


def _larger_power_reading(seen: TrialReading, last: TrialReading) -> tuple[float, float]:
    """Return the reading of the job that drew more power in the last mode."""
    return _training_reading(seen, last) if last.train_w >= last.infer_w else _inference_reading(seen, last)
