"""Plays a strategy on all problems of a pair, measuring by looking up the tables, and compares with brute force."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedge.concurrency.judging import holds
from fedge.concurrency.outcome import Choice, worth
from fedge.concurrency.pair import Pair
from fedge.concurrency.problems import Family, Problem
from fedge.concurrency.trial import Measure, Seen, Trial, on_table, play
from fedge.errors import FedgeError
from fedge.interfaces import Clock
from fedge.strategies import Ground, strategy_for
from fedge.studies.concurrent.row import Account, Breach, Gap, Row, filled


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A pair, its problems of one family, and what a strategy may know beforehand.

    ``ground`` carries neither a seed nor reuse: a job adds both. ``about`` is the row with what is known already.
    """

    pair: Pair
    family: Family
    problems: tuple[Problem, ...]
    ground: Ground
    about: Row


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A strategy on a case.

    With ``sample`` that many of the problems are drawn at random, in random order: a stream. The seed fixes the draw
    and whatever the strategy draws.
    """

    case: Case
    strategy: str
    seed: int = 0
    sample: int | None = None
    reuse: bool = False

    def __str__(self) -> str:
        return f"{self.strategy} on {self.case.pair.name} ({self.case.family}), seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best that a problem allows: N (for training alone minibatches per second) and t_in at it, and N a / b.

    The last is the largest of all feasible choices, not of the one with the largest N. None where nothing is feasible.
    """

    steps: float
    infer_s: float
    steps_per_s: float


def run(job: Job, clock: Clock) -> Row:
    """The row of one job; whatever the strategy raises becomes its ``error``."""
    blank = replace(job.case.about, strategy=job.strategy, seed=job.seed, reuse=job.reuse)
    began = clock.now_s()
    try:
        accounts = list(_accounts(job))
    except FedgeError as error:
        return replace(blank, error=str(error))
    except Exception as error:  # noqa: BLE001 - a strategy may be the user's own
        return replace(blank, error=f"{type(error).__name__}: {error}")
    return filled(blank, accounts, clock.now_s() - began)


def stream(problems: Sequence[Problem], count: int | None, seed: int) -> tuple[Problem, ...]:
    """``count`` of the problems in random order, each once at most; all of them, in their order, for None."""
    if count is None:
        return tuple(problems)
    chosen = np.random.default_rng(seed).permutation(len(problems))[:count]
    return tuple(problems[i] for i in chosen)


def optimum(problem: Problem, pair: Pair) -> Optimum | None:
    """By brute force over all modes and batch sizes: most minibatches per window, then least t_in."""
    every = worth(problem, pair)
    if not every.feasible.any():
        return None
    steps = every.steps[every.feasible]
    most = steps.max()
    return Optimum(
        float(most),
        float(every.infer_s[every.feasible][steps == most].min()),
        float(every.steps_per_s[every.feasible].max()),
    )


def _accounts(job: Job) -> Iterator[Account]:
    case = job.case
    strategy = strategy_for(job.strategy, replace(case.ground, reuse=job.reuse, seed=job.seed), "--strategy")
    measure = _remembering(on_table(case.pair))
    known: set[Trial] = set()
    for problem in stream(case.problems, job.sample, job.seed):
        found = play(strategy.search(problem), measure)
        new = set(found.tried) - known
        told = account(problem, case.pair, found.choice, len(new))
        yield replace(told, power_modes=len({trial.row for trial in new} - {trial.row for trial in known}))
        if job.reuse:
            known |= new


def _remembering(measure: Measure) -> Measure:
    """The same, looked up once: thousands of problems ask for the same trials."""
    seen: dict[Trial, Seen] = {}

    def again(trial: Trial) -> Seen:
        found = seen.get(trial)
        if found is None:
            found = seen[trial] = measure(trial)
        return found

    return again


def account(problem: Problem, pair: Pair, choice: Choice | None, tried: int) -> Account:
    """What an answer is worth by the tables; raises ``ValueError`` for a choice that the pair does not have."""
    top = optimum(problem, pair)
    if choice is None:
        return Account(top is not None, answered=False, tried=tried)
    _check(problem, pair, choice)
    seen = on_pair(pair, choice)
    batch = None if choice.batch is None else pair.batch_sizes[choice.batch]
    breach = _breach(problem, batch, seen)
    if top is None or not holds(problem, batch, seen):
        return Account(top is not None, answered=True, tried=tried, breach=breach)
    gap = _gap(problem, batch, seen, top)
    return Account(solvable=True, answered=True, tried=tried, solved=True, gap=gap, breach=breach)


def on_pair(pair: Pair, choice: Choice) -> Seen:
    """What the tables say of a choice."""
    nan = math.nan
    step = (float(pair.train_s[choice.row]), float(pair.train_w[choice.row])) if pair.trains else (nan, nan)
    if choice.batch is None:
        return Seen(*step, nan, nan)
    at = choice.batch, choice.row
    return Seen(*step, float(pair.infer_s[at]), float(pair.infer_w[at]))


def _check(problem: Problem, pair: Pair, choice: Choice) -> None:
    places = len(pair.batch_sizes) if problem.family != "train" else 0
    good_batch = choice.batch is None if not places else choice.batch is not None and 0 <= choice.batch < places
    if not 0 <= choice.row < len(pair.modes) or not good_batch:
        raise ValueError(f"answered {choice}: a row of {len(pair.modes)} and a place of {places} batch sizes")


def _breach(problem: Problem, batch: int | None, seen: Seen) -> Breach:
    over_w = max(0.0, seen.power_w - problem.power_w)
    over = over_w / problem.power_w
    if batch is None or problem.latency_s is None or problem.rate_hz is None:
        return Breach(over_w, over)
    latency = (batch / problem.rate_hz + seen.infer_s) / problem.latency_s - 1.0
    behind = seen.infer_s * problem.rate_hz / batch - 1.0
    return Breach(over_w, over, max(0.0, latency, behind), keeps_up=behind <= 0.0)


def _gap(problem: Problem, batch: int | None, seen: Seen, top: Optimum) -> Gap:
    """Loss and excess of a solved problem."""
    if batch is None or problem.rate_hz is None:
        longer = max(1.0, seen.train_s * top.steps)  # the best one's own product may round to less
        return Gap(longer - 1.0, 1.0 - 1.0 / longer)
    excess = seen.infer_s / top.infer_s - 1.0
    if problem.family == "infer" or top.steps == 0:
        return Gap(excess=excess)
    window_s = batch / problem.rate_hz
    steps = max(0.0, math.floor((window_s - seen.infer_s) / seen.train_s))
    return Gap(1.0 - steps / top.steps, 1.0 - steps / window_s / top.steps_per_s, excess)
