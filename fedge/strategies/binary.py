"""Round-robin binary search: one knob after the other is halved towards the power budget, a baseline of Fulcrum.

The paper (arXiv 2509.20205) tells the order of the knobs and that seven modes are tried. Chosen by us: it starts in the
middle mode and moves a knob up when the last mode drew less than the budget, else down, as GMD does; the batch size
follows by GMD's rules (``walking``); the answer is the best of everything tried.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from fedge.concurrency.pair import grid_of
from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Search, Seen, Trial, try_one
from fedge.strategies import Ground
from fedge.strategies.walking import CORES, CPU, GPU, MEM, Walking, moved, walked

TURNS = (CPU, GPU, CORES, MEM)
MOST_MODES = 7
"""Of one walk."""


class Binary:
    """A ``fedge.strategies.Strategy``; raises ``BadInput`` when the modes are not a grid."""

    def __init__(self, ground: Ground) -> None:
        self._grid = grid_of(ground.modes)
        self._batch_sizes = ground.batch_sizes

    def search(self, problem: Problem) -> Search:
        return walked(self._walk, problem, self._grid, self._batch_sizes)

    def _walk(self, problem: Problem, batch: int | None) -> Walking:
        tried: dict[Trial, Seen] = {}

        def at(place: list[int]) -> Generator[Sequence[Trial], Sequence[Seen], Seen]:
            trial = Trial(self._grid.row(place), batch)
            tried[trial] = seen = yield from try_one(trial)
            return seen

        live = [list(range(len(values))) for values in self._grid.values]
        place = [len(values) // 2 for values in live]
        last = yield from at(place)
        while any(len(values) > 1 for values in live):
            for knob in TURNS:
                if len(live[knob]) < 2:
                    continue
                if len(tried) == MOST_MODES:
                    return tried
                place[knob], live[knob] = moved(live[knob], place[knob], up=last.power_w < problem.power_w)
                last = yield from at(place)
        return tried
