"""Gradient-based multi-dimensional search (GMD) of Fulcrum (arXiv 2509.20205).

Symbols: t, P seconds and watts of the job that is searched for; a bracket is a pair of tried modes, at first the
middle one and one that differs in a single knob; a knob's score is |dt / dP| over its bracket. From the middle mode the
knob of the largest score is moved by halves: to more power as long as the last mode stays below the budget, else less.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from fedge.concurrency.pair import Grid, grid_of
from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Search, Seen, Trial, try_one
from fedge.strategies import Ground
from fedge.strategies.walking import CORES, CPU, GPU, MEM, Walking, moved, walked

TIES = (CORES, GPU, CPU, MEM)
"""Among equal scores the first of these knobs is moved."""
MOST_MOVES = 14
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
        return walked(self._walk, problem, self._grid, self._batch_sizes)

    def _walk(self, problem: Problem, batch: int | None) -> Walking:
        if problem.family == "train":
            return _walk(Walk(self._grid, batch, problem.power_w, TRAIN_W, _training))
        if problem.family == "infer":
            return _walk(Walk(self._grid, batch, problem.power_w, INFER_W, _inference))
        return _walk(Walk(self._grid, batch, problem.power_w, TRAIN_W, _larger, tests_next=False))


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


def _walk(walk: Walk) -> Walking:
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
        place[knob], live[knob] = moved(live[knob], place[knob], up=last.power_w < walk.budget_w)
        before, last = last, (yield from at(place))
        first, second = brackets[knob]
        under = (last if walk.tests_next else before).power_w < walk.budget_w
        brackets[knob] = (first, last) if under else (last, second)
    return tried


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
