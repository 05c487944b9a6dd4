"""How a search that walks over the grid of modes, knob by knob, finds the batch size too: by GMD's own rules.

Fulcrum (arXiv 2509.20205). Inference alone is walked at the smallest batch size; both jobs at once at the largest one
that the top mode can hold. Where nothing that was tried holds, the other batch size follows in the modes tried.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from fedge.serving.job_pair import KnobGrid
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.trial_search import Trial, TrialReading, TrialSearch, find_best_trial, meets_latency, request_trial

WalkTrials = Generator[Sequence[Trial], Sequence[TrialReading], dict[Trial, TrialReading]]
"""A walk at one batch size; it ends with everything that it tried."""
WalkFunction = Callable[[ServingProblem, int | None], WalkTrials]
"""The walk for a problem at a place among the batch sizes."""

CORES, CPU, GPU, MEM = range(4)
"""The knobs in the order of a grid's axes."""
MAX_TRIALS = 25
"""Training and inference at once: no more trials than these, beside those at the top mode."""


def bisect_knob(live: list[int], place: int, *, up: bool) -> tuple[int, list[int]]:
    """Half of the way to the end of a knob's values that are still open, and those beyond the present one."""
    at = live.index(place)
    if up:
        return live[(at + len(live)) // 2], live[at + 1 :]
    return live[at // 2], live[:at]


def search_by_walk(
    walk: WalkFunction, problem: ServingProblem, grid: KnobGrid, batch_sizes: tuple[int, ...]
) -> TrialSearch:
    """The search that walks so."""
    if problem.family == "train":
        return find_best_trial(problem, (), (yield from walk(problem, None)))
    if problem.family == "infer":
        return (yield from _search_inference(walk, problem, batch_sizes))
    return (yield from _search_concurrent(walk, problem, grid, batch_sizes))


def _search_inference(walk: WalkFunction, problem: ServingProblem, batch_sizes: tuple[int, ...]) -> TrialSearch:
    """At the smallest batch size; where that fails, the next one in the modes whose power and latency held."""
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
    """At the largest batch size that the top mode can hold; where that fails, smaller ones in the modes tried."""
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
