"""One plan for a person: the choice that holds when it is played, and what a strategy would have to profile for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedge.concurrency.outcome import Choice
from fedge.concurrency.pair import Pair
from fedge.concurrency.problems import Problem
from fedge.concurrency.trial import Trial, on_table, play
from fedge.strategies import Ground, strategy_for
from fedge.studies.concurrent import playing
from fedge.studies.concurrent.engine import account
from fedge.studies.concurrent.planning import Every, Jobs, Option
from fedge.studies.concurrent.row import Account
from fedge.types import PowerMode
from fedge.worker.arrivals import Arrivals

MOST_PLAYED = 40
"""Choices that are played, in their order, until one holds at the 99th percentile; chosen by us."""
LEAST_S, MOST_S, REQUESTS = 60.0, 600.0, 5000
"""A choice is played until the slowest service has had so many requests, within these seconds. Chosen by us."""


@dataclass(frozen=True, slots=True)
class Played:
    """A choice and what came of playing it; ``tried`` counts the choices played, it among them."""

    option: Option
    seen: playing.Seen
    tried: int

    @property
    def holds(self) -> bool:
        return self.seen.holds


@dataclass(frozen=True, slots=True)
class Profiled:
    """A trial of a strategy: the mode and, with inference, the batch size."""

    mode: PowerMode
    batch_size: int | None


@dataclass(frozen=True, slots=True)
class Search:
    """What a strategy that knows neither job would profile, in its order, what it would choose, and its worth."""

    strategy: str
    trials: tuple[Profiled, ...]
    chosen: Profiled | None
    worth: Account


def played(found: Every, order: Sequence[int], arrivals: Sequence[Arrivals]) -> Played | None:
    """The first of the choices that keeps every latency budget at the 99th percentile under these arrivals.

    Where none of those played does, the one with the fewest violations; None for no choice or no service.
    """
    jobs, best, tried = found.jobs, None, 0
    if not jobs.services:
        return None
    failed: list[Option] = []
    for place in order:
        option = found.option(place)
        if any(_no_better(option, other) for other in failed):
            continue
        tried += 1
        one = Played(option, playing.play(plan_of(jobs, option, arrivals), duration_s(jobs)), tried)
        if one.holds:
            return one
        failed.append(option)
        if best is None or _worst(one) < _worst(best):
            best = one
        if tried >= MOST_PLAYED:
            break
    return None if best is None else replace(best, tried=tried)


def plan_of(jobs: Jobs, option: Option, arrivals: Sequence[Arrivals]) -> playing.Plan:
    """The choice as it is played; without room for a minibatch nothing is trained."""
    services = zip(jobs.services, option.batch_sizes, arrivals, option.infer_s, strict=True)
    return playing.Plan(
        tuple(playing.Served(one.name, size, one.latency_s, come, infer_s) for one, size, come, infer_s in services),
        option.train_s if option.steps_per_s > 0 else None,
    )


def duration_s(jobs: Jobs) -> float:
    """How long a choice is played."""
    slowest_hz = min(service.rate_hz for service in jobs.services)
    return min(MOST_S, max(LEAST_S, REQUESTS / slowest_hz))


def _no_better(option: Option, failed: Option) -> bool:
    """Whether all jobs take as long or longer at the same batch sizes as in a choice that failed."""
    slower = all(a >= b for a, b in zip(option.infer_s, failed.infer_s, strict=True))
    same_training = (option.steps_per_s > 0) == (failed.steps_per_s > 0)
    trains_slower = option.train_s is None or failed.train_s is None or option.train_s >= failed.train_s
    return option.batch_sizes == failed.batch_sizes and slower and same_training and trains_slower


def _worst(one: Played) -> float:
    return max(service.violations for service in one.seen.services)


def searched(name: str, ground: Ground, pair: Pair, problem: Problem) -> Search:
    """What the strategy would do, measuring by looking up the tables."""
    found = play(strategy_for(name, ground, "--strategy").search(problem), on_table(pair))
    answer = found.choice
    return Search(
        name,
        tuple(_profiled(pair, trial) for trial in found.tried),
        None if answer is None else _profiled(pair, answer),
        account(problem, pair, answer, len(found.tried)),
    )


def _profiled(pair: Pair, trial: Trial | Choice) -> Profiled:
    return Profiled(pair.modes[trial.row], None if trial.batch is None else pair.batch_sizes[trial.batch])
