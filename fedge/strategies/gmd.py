"""Gradient-based multi-dimensional search (GMD) of Fulcrum (arXiv 2509.20205).

Symbols: t, P seconds and watts of the job that is searched for; a bracket is a pair of tried modes, at first the
middle one and one that differs in a single knob; a knob's score is |dt / dP| over its bracket. From the middle mode the
knob of the largest score is moved by halves: to more power as long as the last mode stays below the budget, else less.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from fedge.concurrency.judging import best_tried, in_time
from fedge.concurrency.pair import Grid, grid_of
from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Search, Seen, Trial, try_one
from fedge.strategies import Ground

CORES, CPU, GPU, MEM = range(4)
TIES = (CORES, GPU, CPU, MEM)
"""Among equal scores the first of these knobs is moved."""
MOST_MOVES = 14
MOST_TRIES = 25
"""Training and inference at once: no more trials than these, beside those at the top mode."""
TRAIN_W, INFER_W = 1.0, 0.2
"""A bracket whose power differs by less says nothing; the latter for inference alone."""

Side = Callable[[Seen, Seen], tuple[float, float]]
"""Seconds and watts of a trial that count for the score, given it and the last trial."""


class Gmd:
    """A ``fedge.strategies.Strategy``; raises ``BadInput`` when the modes are not a grid."""

    def __init__(self, ground: Ground) -> None:
        self._grid = grid_of(ground.modes)
        self._batch_sizes = ground.batch_sizes

    def search(self, problem: Problem) -> Search:
        if problem.family == "train":
            return self._train(problem)
        return self._infer(problem) if problem.family == "infer" else self._concurrent(problem)

    def _train(self, problem: Problem) -> Search:
        tried = yield from _walk(Walk(self._grid, None, problem.power_w, TRAIN_W, _training))
        return best_tried(problem, (), tried)

    def _infer(self, problem: Problem) -> Search:
        """At the smallest batch size; where that fails, the next one in the modes whose power and latency held."""
        tried = yield from _walk(Walk(self._grid, 0, problem.power_w, INFER_W, _inference))
        found = best_tried(problem, self._batch_sizes, tried)
        if found is not None or len(self._batch_sizes) == 1:
            return found
        assert problem.latency_s is not None
        assert problem.rate_hz is not None
        room_s = problem.latency_s - self._batch_sizes[0] / problem.rate_hz
        held = [t for t, seen in tried.items() if seen.power_w <= problem.power_w and seen.infer_s <= room_s]
        again = (Trial(trial.row, 1) for trial in sorted(held, key=lambda trial: (tried[trial].infer_s, trial)))
        return (yield from self._first_that_holds(problem, again))

    def _concurrent(self, problem: Problem) -> Search:
        """At the largest batch size that the top mode can hold; where that fails, smaller ones in the modes tried."""
        top = self._grid.row([len(values) - 1 for values in self._grid.values])
        for place in reversed(range(len(self._batch_sizes))):
            seen = yield from try_one(Trial(top, place))
            if in_time(problem, self._batch_sizes[place], seen):
                break
        else:
            return None
        tried = yield from _walk(Walk(self._grid, place, problem.power_w, TRAIN_W, _larger, tests_next=False))
        found = best_tried(problem, self._batch_sizes, tried)
        if found is not None:
            return found
        size, rate = self._batch_sizes[place], problem.rate_hz or 0.0
        kept_up = sorted((t for t, s in tried.items() if s.infer_s * rate <= size), key=lambda t: (tried[t].infer_s, t))
        again = [Trial(trial.row, smaller) for smaller in reversed(range(place)) for trial in kept_up]
        return (yield from self._first_that_holds(problem, iter(again[: max(0, MOST_TRIES - len(tried))])))

    def _first_that_holds(self, problem: Problem, trials: Iterator[Trial]) -> Search:
        for trial in trials:
            seen = yield from try_one(trial)
            if (found := best_tried(problem, self._batch_sizes, {trial: seen})) is not None:
                return found
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """A walk at one batch size: the budget, the least difference of power that counts, and what is scored.

    ``tests_next`` says which power decides the side of the bracket that is replaced: the new mode's, or the last one's.
    """

    grid: Grid
    batch: int | None
    budget_w: float
    least_w: float
    side: Side
    tests_next: bool = True


def _walk(walk: Walk) -> Generator[Sequence[Trial], Sequence[Seen], dict[Trial, Seen]]:
    """Everything that the walk tried."""
    tried: dict[Trial, Seen] = {}

    def at(place: list[int]) -> Generator[Sequence[Trial], Sequence[Seen], Seen]:
        trial = Trial(walk.grid.row(place), walk.batch)
        tried[trial] = seen = yield from try_one(trial)
        return seen

    live = [list(range(len(values))) for values in walk.grid.values]
    place = [len(values) // 2 for values in live]
    last = yield from at(place)
    brackets = []
    for knob, values in enumerate(live):
        end = values[0] if last.power_w > walk.budget_w else values[-1]
        brackets.append((last, (yield from at([*place[:knob], end, *place[knob + 1 :]]))))
    for _ in range(MOST_MOVES):
        scores = {knob: _score(walk, brackets[knob], last) for knob in TIES if len(live[knob]) > 1}
        knob = max(scores, key=lambda one: scores[one], default=CORES)
        if scores.get(knob, 0.0) == 0.0:
            break
        place[knob], live[knob] = _moved(live[knob], place[knob], up=last.power_w < walk.budget_w)
        before, last = last, (yield from at(place))
        first, second = brackets[knob]
        under = (last if walk.tests_next else before).power_w < walk.budget_w
        brackets[knob] = (first, last) if under else (last, second)
    return tried


def _moved(live: list[int], place: int, *, up: bool) -> tuple[int, list[int]]:
    """Half of the way to the end of the values that are still open, and those beyond the present one."""
    at = live.index(place)
    if up:
        return live[(at + len(live)) // 2], live[at + 1 :]
    return live[at // 2], live[:at]


def _score(walk: Walk, bracket: tuple[Seen, Seen], last: Seen) -> float:
    (t0, w0), (t1, w1) = (walk.side(seen, last) for seen in bracket)
    return 0.0 if abs(w1 - w0) < walk.least_w else abs((t1 - t0) / (w1 - w0))


def _training(seen: Seen, _last: Seen) -> tuple[float, float]:
    return seen.train_s, seen.train_w


def _inference(seen: Seen, _last: Seen) -> tuple[float, float]:
    return seen.infer_s, seen.infer_w


def _larger(seen: Seen, last: Seen) -> tuple[float, float]:
    """Of the job that drew more in the last mode."""
    return _training(seen, last) if last.train_w >= last.infer_w else _inference(seen, last)
