"""Round-robin binary search: one knob after the other is halved towards the power budget, a baseline of Fulcrum.

The paper (arXiv 2509.20205) tells the order of the knobs and that seven modes are tried. Chosen by us: it starts in the
middle mode and moves a knob up when the last mode drew less than the budget, else down, as GMD does; the batch size
follows by GMD's rules (``walking``); the answer is the best of everything tried.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from fedge.serving.job_pair import build_knob_grid
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import SearchContext
from fedge.serving.strategies.grid_walk import CORES, CPU, GPU, MEM, WalkTrials, bisect_knob, search_by_walk
from fedge.serving.trial_search import Trial, TrialReading, TrialSearch, request_trial

KNOB_ORDER = (CPU, GPU, CORES, MEM)
MAX_MODES = 7
"""Of one walk."""


class BinarySearch:
    """A ``fedge.serving.strategies.SearchStrategy``; raises ``BadInput`` when the modes are not a grid."""

    def __init__(self, ground: SearchContext) -> None:
        self._grid = build_knob_grid(ground.modes)
        self._batch_sizes = ground.batch_sizes

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
