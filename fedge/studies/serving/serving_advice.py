"""One plan for a person: the choice that holds when it is played, and what a strategy would have to profile for it."""

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
"""Choices that are played, in their order, until one holds at the 99th percentile; chosen by us."""
LEAST_S, MOST_S, REQUESTS = 60.0, 600.0, 5000
"""A choice is played until the slowest service has had so many requests, within these seconds. Chosen by us."""


@dataclass(frozen=True, slots=True)
class SimulatedChoice:
    """A choice and what came of playing it; ``tried`` counts the choices played, it among them."""

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
    """What a strategy that knows neither job would profile, in its order, what it would choose, and its worth."""

    strategy: str
    trials: tuple[ProfiledTrial, ...]
    chosen: ProfiledTrial | None
    worth: ProblemScore


def find_holding_choice(
    found: ServingChoices, order: Sequence[int], arrivals: Sequence[Arrivals]
) -> SimulatedChoice | None:
    """The first of the choices that keeps every latency budget at the 99th percentile under these arrivals.

    Where none of those played does, the one with the fewest violations; None for no choice or no service.
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
    """The choice as it is played; without room for a minibatch nothing is trained."""
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
    """How long a choice is played."""
    slowest_hz = min(service.rate_hz for service in jobs.services)
    return min(MOST_S, max(LEAST_S, REQUESTS / slowest_hz))


def _is_no_better(option: ServingOption, failed: ServingOption) -> bool:
    """Whether all jobs take as long or longer at the same batch sizes as in a choice that failed."""
    slower = all(a >= b for a, b in zip(option.infer_s, failed.infer_s, strict=True))
    same_training = (option.steps_per_s > 0) == (failed.steps_per_s > 0)
    trains_slower = option.train_s is None or failed.train_s is None or option.train_s >= failed.train_s
    return option.batch_sizes == failed.batch_sizes and slower and same_training and trains_slower


def _max_violations_pct(one: SimulatedChoice) -> float:
    return max(service.violations for service in one.simulation.services)


def search_with_strategy(name: str, ground: SearchContext, pair: JobPair, problem: ServingProblem) -> StrategySearch:
    """What the strategy would do, measuring by looking up the tables."""
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
