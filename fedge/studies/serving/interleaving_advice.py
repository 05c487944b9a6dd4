"""A plan of training and inference on one board: mode, batch sizes and interleaving for given jobs and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedge import registry
from fedge.errors import BadInput
from fedge.serving.serving_problems import ServingProblem, select_family
from fedge.serving.side_by_side import describe_arrivals
from fedge.serving.strategies import DEFAULT_STRATEGY, STRATEGIES
from fedge.studies.serving import serving_planner
from fedge.studies.serving.job_tables import (
    ConcurrentJobOptions,
    JobTables,
    build_serving_jobs,
    list_implausible_rows,
    load_job_tables,
    require_positive,
)
from fedge.studies.serving.pair_knowledge import build_pair_knowledge
from fedge.studies.serving.serving_advice import (
    SimulatedChoice,
    StrategySearch,
    find_holding_choice,
    search_with_strategy,
)
from fedge.studies.serving.serving_planner import (
    LimitChange,
    LimitVariation,
    ServingChoices,
    ServingJobs,
    ServingOption,
)
from fedge.types import ProfileTable
from fedge.worker.arrivals import KINDS, Arrivals, parse_arrivals
from fedge.worker.refusal import BadField

NO_STRATEGY = "none"


@dataclass(frozen=True, slots=True)
class ConcurrentPlanOptions:
    """The request of a plan.

    Attributes:
        jobs: The jobs with their latency budgets and rates.
        max_power_w: The power budget in watts.
        arrivals: Kind of arrivals.
        strategy: Name of the strategy whose profiling is shown, or ``NO_STRATEGY``.
        seed: Seed of the arrivals.
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
        """The best option by the formulas."""
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
    search = _run_strategy(options, source)
    choices = serving_planner.enumerate_choices(jobs)
    order = choices.rank_places(options.max_power_w)
    if not order:
        moves = tuple(serving_planner.find_nearest_limits(jobs, options.max_power_w))
        return InterleavingAdvice(options, tables=source, jobs=jobs, search=search, moves=moves)
    return _build_advice(options, source=source, choices=choices, order=order, search=search)


def _build_advice(
    options: ConcurrentPlanOptions,
    source: JobTables,
    choices: ServingChoices,
    order: Sequence[int],
    search: StrategySearch | None,
) -> InterleavingAdvice:
    jobs, first = choices.jobs, choices.build_option(order[0])
    arrivals = [
        build_arrivals(options.arrivals, service.rate_hz, options.seed + i) for i, service in enumerate(jobs.services)
    ]
    simulation = find_holding_choice(choices, order, arrivals)
    choice = first if simulation is None else simulation.option
    return InterleavingAdvice(
        options,
        tables=source,
        jobs=jobs,
        choice=choice,
        first=None if choice == first else first,
        simulation=simulation,
        limits=tuple(serving_planner.find_binding_limits(jobs, options.max_power_w, first)),
        runners_up=tuple(option for option in serving_planner.list_runners_up(choices, order) if option != choice),
        neighbours=tuple(serving_planner.vary_limits(jobs, options.max_power_w)),
        search=search,
        doubtful=tuple(list_implausible_rows(_select_given_tables(source, choice), choice.mode)),
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
    percent = {"loss": worth.gap.loss, "excess": worth.gap.excess}
    return {
        "name": search.strategy,
        "modes": len(search.trials),
        "trials": [asdict(trial) for trial in search.trials],
        "choice": None if search.chosen is None else asdict(search.chosen),
        "solved": worth.solved,
        **{name: None if math.isnan(value) else 100.0 * value for name, value in percent.items()},
    }
