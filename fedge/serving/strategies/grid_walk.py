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

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence

from fedge.serving.job_pair import KnobGrid, build_knob_grid
from fedge.serving.strategies import SearchContext
from fedge.serving.trial_search import (
    ServingProblem,
    Trial,
    TrialReading,
    TrialSearch,
    find_best_trial,
    meets_latency,
    request_trial,
)

CORES, CPU, GPU, MEM = range(4)
"""The knobs in the order of a grid's axes."""

MAX_TRIALS = 25
# Limit on the trials of a concurrent problem, not counting those in the top mode.

TriedModes = dict[Trial, TrialReading]


class GridWalk:
    """A walk over the grid at one batch size (None for training alone), from its middle mode on.

    Attributes:
        live: Open values of each knob, as indices of the grid's values.
    """

    def __init__(self, grid: KnobGrid, batch: int | None) -> None:
        self._grid, self._batch = grid, batch
        self.live = [list(range(len(values))) for values in grid.values]
        self.place = [len(values) // 2 for values in self.live]
        self.tried: TriedModes = {}

    def try_mode(self, place: Sequence[int]) -> Generator[Sequence[Trial], Sequence[TrialReading], TrialReading]:
        trial = Trial(self._grid.row(place), self._batch)
        self.tried[trial] = seen = yield from request_trial(trial)
        return seen

    def move(self, knob: int, *, up: bool) -> Generator[Sequence[Trial], Sequence[TrialReading], TrialReading]:
        """Move a knob halfway to the end of its open values and try that mode; values on the other side are closed."""
        live = self.live[knob]
        at = live.index(self.place[knob])
        self.place[knob] = live[(at + len(live)) // 2 if up else at // 2]
        self.live[knob] = live[at + 1 :] if up else live[:at]
        return (yield from self.try_mode(self.place))


class GridSearch(ABC):
    """A ``fedge.serving.strategies.SearchStrategy`` that finds mode and batch size by a walk.

    Where a combination of knob values was not measured, the walk uses the nearest one that was.
    """

    def __init__(self, context: SearchContext) -> None:
        self._grid = build_knob_grid(context.modes)
        self._batch_sizes = context.batch_sizes

    @abstractmethod
    def walk(
        self, walk: GridWalk, problem: ServingProblem
    ) -> Generator[Sequence[Trial], Sequence[TrialReading], None]: ...

    def search(self, problem: ServingProblem) -> TrialSearch:
        if problem.family == "train":
            return find_best_trial(problem, (), (yield from self._run_walk(problem, None)))
        if problem.family == "infer":
            return (yield from self._search_inference(problem))
        return (yield from self._search_concurrent(problem))

    def _run_walk(
        self, problem: ServingProblem, batch: int | None
    ) -> Generator[Sequence[Trial], Sequence[TrialReading], TriedModes]:
        walk = GridWalk(self._grid, batch)
        yield from self.walk(walk, problem)
        return walk.tried

    def _search_inference(self, problem: ServingProblem) -> TrialSearch:
        """Search at the smallest batch size; if that fails, try the next one in modes that met power and latency."""
        tried = yield from self._run_walk(problem, 0)
        found = find_best_trial(problem, self._batch_sizes, tried)
        if found is not None or len(self._batch_sizes) == 1:
            return found
        assert problem.latency_s is not None
        assert problem.rate_hz is not None
        room_s = problem.latency_s - self._batch_sizes[0] / problem.rate_hz
        held = [t for t, seen in tried.items() if seen.power_w <= problem.power_w and seen.infer_s <= room_s]
        again = (Trial(trial.row, 1) for trial in sorted(held, key=lambda trial: (tried[trial].infer_s, trial)))
        return (yield from self._find_first_feasible(problem, again))

    def _search_concurrent(self, problem: ServingProblem) -> TrialSearch:
        """Search at the largest batch size that the top mode sustains; if that fails, try smaller ones."""
        top = self._grid.row([len(values) - 1 for values in self._grid.values])
        for place in reversed(range(len(self._batch_sizes))):
            seen = yield from request_trial(Trial(top, place))
            if meets_latency(problem, self._batch_sizes[place], seen):
                break
        else:
            return None
        tried = yield from self._run_walk(problem, place)
        found = find_best_trial(problem, self._batch_sizes, tried)
        if found is not None:
            return found
        size, rate = self._batch_sizes[place], problem.rate_hz or 0.0
        kept_up = sorted((t for t, s in tried.items() if s.infer_s * rate <= size), key=lambda t: (tried[t].infer_s, t))
        again = [Trial(trial.row, smaller) for smaller in reversed(range(place)) for trial in kept_up]
        return (yield from self._find_first_feasible(problem, iter(again[: max(0, MAX_TRIALS - len(tried))])))

    def _find_first_feasible(self, problem: ServingProblem, trials: Iterator[Trial]) -> TrialSearch:
        for trial in trials:
            seen = yield from request_trial(trial)
            if (found := find_best_trial(problem, self._batch_sizes, {trial: seen})) is not None:
                return found
        return None


KNOB_ORDER = (CPU, GPU, CORES, MEM)
MAX_MODES = 7
"""Modes of one walk."""


class BinarySearch(GridSearch):
    """The strategy ``bs``."""

    def walk(self, walk: GridWalk, problem: ServingProblem) -> Generator[Sequence[Trial], Sequence[TrialReading], None]:
        last = yield from walk.try_mode(walk.place)
        while any(len(values) > 1 for values in walk.live):
            for knob in KNOB_ORDER:
                if len(walk.live[knob]) < 2:
                    continue
                if len(walk.tried) == MAX_MODES:
                    return
                last = yield from walk.move(knob, up=last.power_w < problem.power_w)


TIE_ORDER = (CORES, GPU, CPU, MEM)
"""Order of the knobs among equal scores."""
MAX_MOVES = 14
TRAIN_W, INFER_W = 1.0, 0.2
"""Smallest difference of power in watts for which a bracket has a score; the second is for inference alone."""


class GradientSearch(GridSearch):
    """The strategy ``gmd``.

    For both jobs, the power of the last mode decides which end of a bracket is replaced; otherwise that of the new one.
    """

    def walk(self, walk: GridWalk, problem: ServingProblem) -> Generator[Sequence[Trial], Sequence[TrialReading], None]:
        last = yield from walk.try_mode(walk.place)
        brackets = []
        for knob, values in enumerate(walk.live):
            end = values[0] if last.power_w > problem.power_w else values[-1]
            brackets.append((last, (yield from walk.try_mode([*walk.place[:knob], end, *walk.place[knob + 1 :]]))))
        for _ in range(MAX_MOVES):
            open_knobs = [knob for knob in TIE_ORDER if len(walk.live[knob]) > 1]
            scores = {knob: _score_bracket(problem, brackets[knob], last) for knob in open_knobs}
            knob = max(scores, key=lambda one: scores[one], default=CORES)
            if scores.get(knob, 0.0) == 0.0:
                break
            before, last = last, (yield from walk.move(knob, up=last.power_w < problem.power_w))
            first, second = brackets[knob]
            under = (before if problem.family == "concurrent" else last).power_w < problem.power_w
            brackets[knob] = (first, last) if under else (last, second)


def _score_bracket(problem: ServingProblem, bracket: tuple[TrialReading, TrialReading], last: TrialReading) -> float:
    """Return |dt / dP| of the job that is searched for: of two, the one that drew more power in the last mode."""
    infers = problem.family == "infer" or (problem.family == "concurrent" and last.train_w < last.infer_w)
    (t0, w0), (t1, w1) = ((s.infer_s, s.infer_w) if infers else (s.train_s, s.train_w) for s in bracket)
    least_w = INFER_W if problem.family == "infer" else TRAIN_W
    return 0.0 if abs(w1 - w0) < least_w else abs((t1 - t0) / (w1 - w0))
