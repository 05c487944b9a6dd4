"""Advice for training and serving: the choice that holds in simulation, and the profiling a strategy would need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedge.serving.job_choice import JobChoice
from fedge.serving.job_pair import JobPair
from fedge.serving.serving_problems import ServingProblem
from fedge.serving.strategies import SearchContext, strategy_for
from fedge.serving.trial_search import Trial, measure_from_table, run_search
from fedge.studies.serving import serving_simulation
from fedge.studies.serving.serving_planner import ServingChoices, ServingJobs, ServingOption
from fedge.studies.serving.strategy_scores import ProblemScore
from fedge.studies.serving.strategy_study import score_answer
from fedge.types import PowerMode
from fedge.worker.arrivals import Arrivals

MAX_SIMULATED = 40
"""Default number of choices that are simulated, in their order, until one holds at the 99th percentile."""
LEAST_S, MOST_S, REQUESTS = 60.0, 600.0, 5000
"""A choice is simulated until the slowest service has had ``REQUESTS`` requests, within these limits in seconds.

The defaults leave 50 requests beyond the 99th percentile; more requests only take longer.
"""


@dataclass(frozen=True, slots=True)
class SimulatedChoice:
    """A choice and its simulation; ``tried`` is the number of choices simulated, this one included."""

    option: ServingOption
    simulation: serving_simulation.SimulationResult
    tried: int

    @property
    def holds(self) -> bool:
        return self.simulation.holds


@dataclass(frozen=True, slots=True)
class ProfiledTrial:
    """A trial of a strategy: the mode and, with inference, the batch size."""

    mode: PowerMode
    batch_size: int | None


@dataclass(frozen=True, slots=True)
class StrategySearch:
    """The trials of a strategy that knows neither job, in their order, its choice, and the choice's score."""

    strategy: str
    trials: tuple[ProfiledTrial, ...]
    chosen: ProfiledTrial | None
    worth: ProblemScore


def find_holding_choice(
    found: ServingChoices, order: Sequence[int], arrivals: Sequence[Arrivals]
) -> SimulatedChoice | None:
    """Return the first choice that keeps every latency budget at the 99th percentile under these arrivals.

    Args:
        found: All choices.
        order: Places of the choices to simulate, best first.
        arrivals: Arrivals of each service.

    Returns:
        The choice, or, if none of those simulated holds, the one with the fewest violations. None without choices or
        services.
    """
    jobs, best, tried = found.jobs, None, 0
    if not jobs.services:
        return None
    failed: list[ServingOption] = []
    for place in order:
        option = found.build_option(place)
        if any(_is_no_better(option, other) for other in failed):
            continue
        tried += 1
        one = SimulatedChoice(
            option,
            serving_simulation.simulate_plan(build_simulated_plan(jobs, option, arrivals), simulated_duration_s(jobs)),
            tried,
        )
        if one.holds:
            return one
        failed.append(option)
        if best is None or _max_violations_pct(one) < _max_violations_pct(best):
            best = one
        if tried >= MAX_SIMULATED:
            break
    return None if best is None else replace(best, tried=tried)


def build_simulated_plan(
    jobs: ServingJobs, option: ServingOption, arrivals: Sequence[Arrivals]
) -> serving_simulation.SimulatedPlan:
    """Return the plan to simulate for a choice; if it has no room for a step, nothing is trained."""
    services = zip(jobs.services, option.batch_sizes, arrivals, option.infer_s, strict=True)
    return serving_simulation.SimulatedPlan(
        tuple(
            serving_simulation.SimulatedService(
                one.name, batch_size=size, latency_s=one.latency_s, arrivals=come, infer_s=infer_s
            )
            for one, size, come, infer_s in services
        ),
        option.train_s if option.steps_per_s > 0 else None,
    )


def simulated_duration_s(jobs: ServingJobs) -> float:
    """Return how long a choice is simulated, in seconds of simulated time."""
    slowest_hz = min(service.rate_hz for service in jobs.services)
    return min(MOST_S, max(LEAST_S, REQUESTS / slowest_hz))


def _is_no_better(option: ServingOption, failed: ServingOption) -> bool:
    """Return whether all jobs take at least as long at the same batch sizes as in a choice that failed."""
    slower = all(a >= b for a, b in zip(option.infer_s, failed.infer_s, strict=True))
    same_training = (option.steps_per_s > 0) == (failed.steps_per_s > 0)
    trains_slower = option.train_s is None or failed.train_s is None or option.train_s >= failed.train_s
    return option.batch_sizes == failed.batch_sizes and slower and same_training and trains_slower


def _max_violations_pct(one: SimulatedChoice) -> float:
    return max(service.violations for service in one.simulation.services)


def search_with_strategy(name: str, ground: SearchContext, pair: JobPair, problem: ServingProblem) -> StrategySearch:
    """Run a strategy's search with the tables in place of measurements."""
    found = run_search(strategy_for(name, ground, "--strategy").search(problem), measure_from_table(pair))
    answer = found.choice
    return StrategySearch(
        name,
        tuple(_build_profiled_trial(pair, trial) for trial in found.tried),
        None if answer is None else _build_profiled_trial(pair, answer),
        score_answer(problem, pair, answer, len(found.tried)),
    )


def _build_profiled_trial(pair: JobPair, trial: Trial | JobChoice) -> ProfiledTrial:
    return ProfiledTrial(pair.modes[trial.row], None if trial.batch is None else pair.batch_sizes[trial.batch])
