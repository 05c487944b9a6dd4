"""A plan of training and inference on one board: mode, batch sizes and interleaving for given jobs and limits.

A choice is simulated request by request on a virtual clock, with the worker's interleaver, until one holds; beside it,
the profiling that a strategy would need.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedge import registry
from fedge.clock import SimulatedClock
from fedge.errors import BadInput
from fedge.serving.job_pair import JobPair
from fedge.serving.side_by_side import describe_arrivals
from fedge.serving.strategies import DEFAULT_STRATEGY, STRATEGIES, SearchContext, strategy_for
from fedge.serving.trial_search import ServingProblem, Trial, measure_from_table, run_search, select_family
from fedge.studies.serving import serving_planner
from fedge.studies.serving.job_tables import (
    ConcurrentJobOptions,
    JobTables,
    build_pair_knowledge,
    build_serving_jobs,
    list_implausible_rows,
    load_job_tables,
    require_positive,
)
from fedge.studies.serving.serving_planner import (
    LimitChange,
    LimitVariation,
    ServingChoices,
    ServingJobs,
    ServingOption,
)
from fedge.studies.serving.strategy_study import ProblemScore, score_answer
from fedge.types import PowerMode, ProfileTable
from fedge.worker.arrivals import KINDS, Arrivals, arrival_times, parse_arrivals
from fedge.worker.inference_interleaver import HostedService, Interleaver, ServiceStatistics
from fedge.worker.refusal import BadField

NO_STRATEGY = "none"


@dataclass(frozen=True, slots=True)
class ConcurrentPlanOptions:
    """The request of a plan.

    Attributes:
        strategy: Name of the strategy whose profiling is shown, or ``NO_STRATEGY``.
    """

    jobs: ConcurrentJobOptions
    max_power_w: float
    arrivals: str = "constant"
    strategy: str = DEFAULT_STRATEGY
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class InterleavingAdvice:
    """Everything that is shown; ``choice`` is None if nothing keeps the limits, and ``moves`` then says what would.

    ``first`` is the best choice by the formulas, if its simulation shows that it does not hold with such arrivals.
    ``doubtful`` names implausible measured rows behind the choice.
    """

    options: ConcurrentPlanOptions
    tables: JobTables
    jobs: ServingJobs
    search: StrategySearch | None
    choice: ServingOption | None = None
    first: ServingOption | None = None
    simulation: SimulatedChoice | None = None
    limits: tuple[str, ...] = ()
    runners_up: tuple[ServingOption, ...] = ()
    neighbours: tuple[LimitVariation, ...] = ()
    moves: tuple[LimitChange, ...] = ()
    doubtful: tuple[str, ...] = ()

    @property
    def best(self) -> ServingOption | None:
        return self.first or self.choice

    @property
    def has_several_services(self) -> bool:
        return len(self.jobs.services) > 1


def advise_interleaving(options: ConcurrentPlanOptions) -> InterleavingAdvice:
    """Compute the plan.

    Raises:
        BadInput: If an option or table is invalid.
    """
    require_positive("--max-power-w", options.max_power_w)
    if options.arrivals not in KINDS:
        raise BadInput("--arrivals", repr(options.arrivals), f"one of {', '.join(KINDS)}")
    if options.strategy != NO_STRATEGY:
        registry.load_named("--strategy", options.strategy, STRATEGIES)
    source = load_job_tables(options.jobs)
    jobs = build_serving_jobs(source, options.jobs)
    choices = serving_planner.enumerate_choices(jobs)
    order = choices.rank_places(options.max_power_w)
    advice = InterleavingAdvice(options, tables=source, jobs=jobs, search=_run_strategy(options, source))
    if not order:
        return replace(advice, moves=tuple(serving_planner.find_nearest_limits(jobs, options.max_power_w)))
    return _add_choice(advice, choices, order)


def _add_choice(advice: InterleavingAdvice, choices: ServingChoices, order: Sequence[int]) -> InterleavingAdvice:
    """Add the first of the choices, best first, that holds in a simulation, and those near it."""
    options, jobs, first = advice.options, advice.jobs, choices.build_option(order[0])
    arrivals = [
        build_arrivals(options.arrivals, service.rate_hz, options.seed + i) for i, service in enumerate(jobs.services)
    ]
    simulation = find_holding_choice(choices, order, arrivals)
    choice = first if simulation is None else simulation.option
    return replace(
        advice,
        choice=choice,
        first=None if choice == first else first,
        simulation=simulation,
        limits=tuple(serving_planner.find_binding_limits(jobs, options.max_power_w, first)),
        runners_up=tuple(option for option in serving_planner.list_runners_up(choices, order) if option != choice),
        neighbours=tuple(serving_planner.vary_limits(jobs, options.max_power_w)),
        doubtful=tuple(list_implausible_rows(_select_given_tables(advice.tables, choice), choice.mode)),
    )


def _select_given_tables(source: JobTables, choice: ServingOption) -> list[ProfileTable]:
    """Return the given tables with a row that the choice uses; empty if costs come from a model."""
    if not source.is_given:
        return []
    served = zip(source.infer, choice.batch_sizes, strict=True)
    chosen = [table for tables, size in served for table in tables if table.batch_size == size]
    return [*([] if source.train is None else [source.train]), *chosen]


def build_arrivals(kind: str, rate_hz: float, seed: int) -> Arrivals:
    """Return a service's arrival process; see ``describe_arrivals``.

    Raises:
        BadInput: If the kind or the rate is invalid.
    """
    try:
        return parse_arrivals(describe_arrivals(kind, rate_hz, seed))
    except BadField as error:
        raise BadInput("--arrivals", kind, str(error)) from error


def _run_strategy(options: ConcurrentPlanOptions, source: JobTables) -> StrategySearch | None:
    """Run the requested search strategy; strategies support one service at most."""
    if options.strategy == NO_STRATEGY or len(source.infer) > 1:
        return None
    pair, jobs = source.build_pair(), options.jobs
    family = select_family(source.train is not None, bool(source.infer))
    limits = (jobs.max_latency_s[0], jobs.rate_hz[0]) if source.infer else (None, None)
    knowledge = build_pair_knowledge(pair, source.train, source.infer[0] if source.infer else ())
    return search_with_strategy(
        options.strategy, knowledge.context, pair, ServingProblem(family, options.max_power_w, *limits)
    )


# JSON -----------------------------------------------------------------------------------------------------------------


def interleaving_advice_to_dict(advice: InterleavingAdvice) -> Mapping[str, Any]:
    """Return the plan for JSON; ``label`` is that of its weakest time or power."""
    options, jobs = advice.options, advice.jobs
    return {
        "feasible": advice.choice is not None,
        "power_w": options.max_power_w,
        "arrivals": options.arrivals,
        "services": [
            {"name": one.name, "rate_hz": one.rate_hz, "latency_s": one.latency_s, "batch_sizes": one.batch_sizes}
            for one in jobs.services
        ],
        "trains": jobs.train_s is not None,
        "label": advice.tables.label,
        "sources": advice.tables.descriptions,
        "choice": _option_to_dict(advice.choice),
        "best_for_even_arrivals": _option_to_dict(advice.first),
        "played": _simulation_to_dict(advice.simulation),
        "limited_by": advice.limits,
        "doubtful": advice.doubtful,
        "runners_up": [_option_to_dict(option) for option in advice.runners_up],
        "neighbours": [
            {"limit": one.limit, "factor": one.factor, "value": one.value, "choice": _option_to_dict(one.option)}
            for one in advice.neighbours
        ],
        "would_hold": [{**asdict(move), "factor": move.factor} for move in advice.moves],
        "strategy": _search_to_dict(advice.search),
    }


def _option_to_dict(option: ServingOption | None) -> Mapping[str, Any] | None:
    return None if option is None else asdict(option)


def _simulation_to_dict(one: SimulatedChoice | None) -> Mapping[str, Any] | None:
    if one is None:
        return None
    services = [{**asdict(service), "violations": service.violations} for service in one.simulation.services]
    means = {"seconds": one.simulation.seconds, "steps_per_s": one.simulation.steps_per_s}
    return {**means, "holds": one.holds, "tried": one.tried, "services": services}


def _search_to_dict(search: StrategySearch | None) -> Mapping[str, Any] | None:
    if search is None:
        return None
    worth = search.worth
    percent = {"loss": worth.loss, "excess": worth.excess}
    return {
        "name": search.strategy,
        "modes": len(search.trials),
        "trials": [asdict(trial) for trial in search.trials],
        "choice": None if search.chosen is None else asdict(search.chosen),
        "solved": worth.solved,
        **{name: None if math.isnan(value) else 100.0 * value for name, value in percent.items()},
    }


PERCENTILES = (50.0, 95.0, 99.0)
MAX_VIOLATIONS_PCT = 1.0
"""Share of late or dropped requests in percent up to which the 99th percentile holds."""


@dataclass(frozen=True, slots=True)
class SimulatedService:
    """A service of the plan: its batch size, latency budget, arrivals, and seconds of a full batch."""

    name: str
    batch_size: int
    latency_s: float
    arrivals: Arrivals
    infer_s: float


@dataclass(frozen=True, slots=True)
class ServiceLatencies:
    """Figures of a service's requests: percentiles of the latency, mean batch size, share of the time spent serving."""

    name: str
    requests: int
    late: int
    dropped: int
    p50_s: float
    p95_s: float
    p99_s: float
    worst_s: float
    mean_batch: float
    busy: float

    @property
    def violations(self) -> float:
        """Percentage of the requests that were late or dropped."""
        return 100.0 * (self.late + self.dropped) / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of simulating a plan for ``seconds`` of simulated time."""

    seconds: float
    services: tuple[ServiceLatencies, ...]
    steps_per_s: float

    @property
    def holds(self) -> bool:
        """Whether every service kept its latency budget at the 99th percentile, counting dropped requests as late."""
        return all(service.violations <= MAX_VIOLATIONS_PCT for service in self.services)


def simulate_plan(served: Sequence[SimulatedService], train_s: float | None, seconds: float) -> SimulationResult:
    """Serve, and train in steps of ``train_s`` unless it is None, for ``seconds`` of simulated time.

    A partial batch takes as long as a full one.
    """
    clock = SimulatedClock()
    seconds_of = {service.name: service.infer_s for service in served}

    interleaver = Interleaver(
        [HostedService(one.name, one.batch_size, one.latency_s) for one in served],
        arrivals={one.name: arrival_times(one.arrivals) for one in served},
        infer=lambda service, _: clock.sleep_s(seconds_of[service.name]),
        now_s=clock.now_s,
        wait_s=clock.sleep_s,
        training_share=0.0,
    )
    for service in served:
        interleaver.learn_batch(service.name, service.batch_size, service.infer_s)

    def over() -> bool:
        """Return whether the time is up, also while requests leave no time for training."""
        return clock.now_s() >= seconds

    steps = 0
    if train_s is None:
        interleaver.serve_while_idle(seconds)
    else:
        interleaver.learn_step(train_s)
        while not over():
            interleaver.serve_before_step(over)
            if not over():
                clock.sleep_s(train_s)
                steps += 1
        interleaver.end_step()
    counts, passed_s = interleaver.get_statistics(), clock.now_s()
    services = tuple(_summarize_service(name, counts[name], passed_s) for name in seconds_of)
    return SimulationResult(passed_s, services, steps / passed_s)


def _summarize_service(name: str, counts: ServiceStatistics, seconds: float) -> ServiceLatencies:
    p50, p95, p99 = (counts.histogram.percentile(q) or 0.0 for q in PERCENTILES)
    return ServiceLatencies(
        name,
        requests=counts.served + counts.dropped,
        late=counts.late,
        dropped=counts.dropped,
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        worst_s=counts.histogram.worst_s,
        mean_batch=counts.served / counts.batches if counts.batches else 0.0,
        busy=counts.busy_s / seconds,
    )


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
    simulation: SimulationResult
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
    choices: ServingChoices, order: Sequence[int], arrivals: Sequence[Arrivals]
) -> SimulatedChoice | None:
    """Return the first choice of ``order``, best first, that keeps every latency budget at the 99th percentile.

    Returns:
        The choice, or, if none of those simulated holds, the one with the fewest violations. None without choices or
        services.
    """
    jobs, best, tried = choices.jobs, None, 0
    if not jobs.services:
        return None
    failed: list[ServingOption] = []
    for place in order:
        option = choices.build_option(place)
        if any(_is_no_better(option, other) for other in failed):
            continue
        tried += 1
        one = SimulatedChoice(
            option,
            simulate_plan(
                list_simulated_services(jobs, option, arrivals),
                option.train_s if option.steps_per_s > 0 else None,  # nothing is trained without room for a step
                simulated_duration_s(jobs),
            ),
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


def list_simulated_services(
    jobs: ServingJobs, option: ServingOption, arrivals: Sequence[Arrivals]
) -> list[SimulatedService]:
    services = zip(jobs.services, option.batch_sizes, arrivals, option.infer_s, strict=True)
    return [
        SimulatedService(one.name, batch_size=size, latency_s=one.latency_s, arrivals=come, infer_s=infer_s)
        for one, size, come, infer_s in services
    ]


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


def search_with_strategy(name: str, context: SearchContext, pair: JobPair, problem: ServingProblem) -> StrategySearch:
    """Run a strategy's search with the tables in place of measurements."""
    result = run_search(strategy_for(name, context, "--strategy").search(problem), measure_from_table(pair))
    answer = result.choice
    return StrategySearch(
        name,
        tuple(_build_profiled_trial(pair, trial) for trial in result.tried),
        None if answer is None else _build_profiled_trial(pair, answer),
        score_answer(problem, pair, answer, len(result.tried)),
    )


def _build_profiled_trial(pair: JobPair, trial: Trial) -> ProfiledTrial:
    return ProfiledTrial(pair.modes[trial.row], None if trial.batch is None else pair.batch_sizes[trial.batch])
