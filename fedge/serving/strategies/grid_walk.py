"""Choice of the batch size in searches that walk over the grid of modes knob by knob, by GMD's rules.

Inference alone is searched at the smallest batch size; concurrent jobs at the largest one that the top mode sustains.
If no trial meets the limits, other batch sizes are tried in the modes already tried.

References:
    Fulcrum, arXiv 2509.20205.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from fedge.serving.job_pair import KnobGrid
from fedge.serving.serving_problems import ServingProblem
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
