"""Round-robin binary search, a baseline of Fulcrum: one knob after the other is bisected towards the power budget.

The paper gives the order of the knobs and the number of seven modes. It leaves the rest open; here the search starts in
the middle mode and moves a knob up if the last mode drew less than the budget, otherwise down, as GMD does; the batch
size follows GMD's rules (``grid_walk``); the answer is the best of all trials.

References:
    Fulcrum, arXiv 2509.20205.
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
"""Modes of one walk."""


class BinarySearch:
    """The strategy ``bs``, a ``fedge.serving.strategies.SearchStrategy``.

    Raises:
        BadInput: If the modes are not a full grid.
    """

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
