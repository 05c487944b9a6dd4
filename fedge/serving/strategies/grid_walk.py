"""Searches of Fulcrum that walk over the grid of modes knob by knob: gradient-based (GMD), and binary search.

Both choose the batch size by GMD's rules: inference alone is searched at the smallest batch size; concurrent jobs at
the largest one that the top mode sustains. If no trial meets the limits, other batch sizes are tried in the modes
already tried.

GMD: t, P are seconds and watts of the job that is searched for; a bracket is a pair of tried modes, at first the middle
one and one that differs in a single knob; a knob's score is |dt / dP| over its bracket. From the middle mode, the knob
of the largest score is moved by bisection: to more power while the last mode is below the budget, otherwise to less.

Binary search: one knob after the other is bisected towards the power budget. The paper gives the order of the knobs and
the number of seven modes. It leaves the rest open; here the search starts in the middle mode and moves a knob as GMD
does; the answer is the best of all trials.

References:
    Fulcrum, arXiv 2509.20205.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from fedge.serving.job_pair import KnobGrid, build_knob_grid
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import SearchContext
from fedge.serving.trial_search import Trial, TrialReading, TrialSearch, find_best_trial, meets_latency, request_trial

WalkTrials = Generator[Sequence[Trial], Sequence[TrialReading], dict[Trial, TrialReading]]
"""A walk at one batch size; it returns all its trials."""
WalkFunction = Callable[[ServingProblem, int | None], WalkTrials]
"""Creates the walk for a problem at a batch size, given by its index."""

CORES, CPU, GPU, MEM = range(4)
"""The knobs in the order of a grid's axes."""
MAX_TRIALS = 25
# Limit on the trials of a concurrent problem, not counting those in the top mode.


def bisect_knob(live: list[int], place: int, *, up: bool) -> tuple[int, list[int]]:
    """Return the value halfway to the end of a knob's open values, and the open values beyond the current one."""
    at = live.index(place)
    if up:
        return live[(at + len(live)) // 2], live[at + 1 :]
    return live[at // 2], live[:at]


def search_by_walk(
    walk: WalkFunction, problem: ServingProblem, grid: KnobGrid, batch_sizes: tuple[int, ...]
) -> TrialSearch:
    """Return a search that finds mode and batch size by a walk."""
    if problem.family == "train":
        return find_best_trial(problem, (), (yield from walk(problem, None)))
    if problem.family == "infer":
        return (yield from _search_inference(walk, problem, batch_sizes))
    return (yield from _search_concurrent(walk, problem, grid, batch_sizes))


def _search_inference(walk: WalkFunction, problem: ServingProblem, batch_sizes: tuple[int, ...]) -> TrialSearch:
    """Search at the smallest batch size; if that fails, try the next one in modes that met power and latency."""
    tried = yield from walk(problem, 0)
    found = find_best_trial(problem, batch_sizes, tried)
    if found is not None or len(batch_sizes) == 1:
        return found
    assert problem.latency_s is not None
    assert problem.rate_hz is not None
    room_s = problem.latency_s - batch_sizes[0] / problem.rate_hz
    held = [t for t, seen in tried.items() if seen.power_w <= problem.power_w and seen.infer_s <= room_s]
    again = (Trial(trial.row, 1) for trial in sorted(held, key=lambda trial: (tried[trial].infer_s, trial)))
    return (yield from _find_first_feasible(problem, batch_sizes, again))


def _search_concurrent(
    walk: WalkFunction, problem: ServingProblem, grid: KnobGrid, batch_sizes: tuple[int, ...]
) -> TrialSearch:
    """Search at the largest batch size that the top mode sustains; if that fails, try smaller ones."""
    top = grid.row([len(values) - 1 for values in grid.values])
    for place in reversed(range(len(batch_sizes))):
        seen = yield from request_trial(Trial(top, place))
        if meets_latency(problem, batch_sizes[place], seen):
            break
    else:
        return None
    tried = yield from walk(problem, place)
    found = find_best_trial(problem, batch_sizes, tried)
    if found is not None:
        return found
    size, rate = batch_sizes[place], problem.rate_hz or 0.0
    kept_up = sorted((t for t, s in tried.items() if s.infer_s * rate <= size), key=lambda t: (tried[t].infer_s, t))
    again = [Trial(trial.row, smaller) for smaller in reversed(range(place)) for trial in kept_up]
    return (yield from _find_first_feasible(problem, batch_sizes, iter(again[: max(0, MAX_TRIALS - len(tried))])))


def _find_first_feasible(problem: ServingProblem, batch_sizes: tuple[int, ...], trials: Iterator[Trial]) -> TrialSearch:
    for trial in trials:
        seen = yield from request_trial(trial)
        if (found := find_best_trial(problem, batch_sizes, {trial: seen})) is not None:
            return found
    return None


KNOB_ORDER = (CPU, GPU, CORES, MEM)
MAX_MODES = 7
"""Modes of one walk."""


class BinarySearch:
    """The strategy ``bs``, a ``fedge.serving.strategies.SearchStrategy``.

    Raises:
        BadInput: If the modes are not a full grid.
    """

    def __init__(self, context: SearchContext) -> None:
        self._grid = build_knob_grid(context.modes)
        self._batch_sizes = context.batch_sizes

    def search(self, problem: ServingProblem) -> TrialSearch:
        return search_by_walk(self._walk, problem, self._grid, self._batch_sizes)

    def _walk(self, problem: ServingProblem, batch: int | None) -> WalkTrials:
        tried: dict[Trial, TrialReading] = {}

        def at(place: list[int]) -> Generator[Sequence[Trial], Sequence[TrialReading], TrialReading]:
            trial = Trial(self._grid.row(place), batch)
            tried[trial] = seen = yield from request_trial(trial)
            return seen

        live = [list(range(len(values))) for values in self._grid.values]
        place = [len(values) // 2 for values in live]
        last = yield from at(place)
        while any(len(values) > 1 for values in live):
            for knob in KNOB_ORDER:
                if len(live[knob]) < 2:
                    continue
                if len(tried) == MAX_MODES:
                    return tried
                place[knob], live[knob] = bisect_knob(live[knob], place[knob], up=last.power_w < problem.power_w)
                last = yield from at(place)
        return tried


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

    def __init__(self, context: SearchContext) -> None:
        self._grid = build_knob_grid(context.modes)
        self._batch_sizes = context.batch_sizes

    def search(self, problem: ServingProblem) -> TrialSearch:
        return search_by_walk(self._walk_problem, problem, self._grid, self._batch_sizes)

    def _walk_problem(self, problem: ServingProblem, batch: int | None) -> WalkTrials:
        sides = {"train": _training_reading, "infer": _inference_reading, "concurrent": _larger_power_reading}
        return _run_walk(
            GradientWalk(
                self._grid,
                batch=batch,
                budget_w=problem.power_w,
                least_w=INFER_W if problem.family == "infer" else TRAIN_W,
                side=sides[problem.family],
                tests_next=problem.family != "concurrent",
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
