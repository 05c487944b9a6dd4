"""``fedge concurrent plan``: chooses mode, batch sizes and interleaving for given jobs and limits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from experiments.cli.concurrent_jobs import build_jobs, load_job_tables, require_positive
from experiments.cli.concurrent_tables import list_implausible_rows
from fedge import registry
from fedge.errors import BadInput
from fedge.serving.serving_problems import ProblemFamily, ServingProblem
from fedge.serving.strategies import STRATEGIES
from fedge.studies.serving import serving_planner
from fedge.studies.serving.interleaving_advice import (
    ConcurrentPlanOptions,
    InterleavingAdvice,
    JobTables,
)
from fedge.studies.serving.pair_knowledge import build_pair_knowledge
from fedge.studies.serving.serving_advice import (
    SimulatedChoice,
    StrategySearch,
    find_holding_choice,
    search_with_strategy,
)
from fedge.studies.serving.serving_planner import (
    ServingChoices,
    ServingOption,
)
from fedge.types import ProfileTable
from fedge.worker.arrivals import KINDS, Arrivals, parse_arrivals
from fedge.worker.request_fields import BadField

DYNAMIC_ARRIVALS = ((10.0, 0.5), (10.0, 1.5))
"""Phases of dynamic arrivals (seconds, multiple of the mean rate), repeated. A default whose mean is the given rate."""
NO_STRATEGY = "none"


def print_plan(asked: ConcurrentPlanOptions, *, as_json: bool) -> None:
    """Plan and print the result as text or JSON.

    Raises:
        BadInput: If an option or table is invalid.
    """
    advice = advise_interleaving(asked)
    if as_json:
        import typer

        typer.echo(json.dumps(as_data(advice), indent=2))
        return
    from rich.console import Console

    from experiments.report.analysis.interleaving_terminal import render_interleaving

    Console().print(render_interleaving(advice), crop=False)


def advise_interleaving(asked: ConcurrentPlanOptions) -> InterleavingAdvice:
    """Compute the plan.

    Raises:
        BadInput: If an option or table is invalid.
    """
    require_positive("--power-w", asked.power_w)
    if asked.arrivals not in KINDS:
        raise BadInput("--arrivals", repr(asked.arrivals), f"one of {', '.join(KINDS)}")
    if asked.strategy != NO_STRATEGY:
        registry.load_named("--strategy", asked.strategy, STRATEGIES)
    source = load_job_tables(asked.jobs)
    jobs = build_jobs(source, asked.jobs)
    search = _run_strategy(asked, source)
    found = serving_planner.enumerate_choices(jobs)
    order = found.rank_places(asked.power_w)
    if not order:
        moves = tuple(serving_planner.find_nearest_limits(jobs, asked.power_w))
        return InterleavingAdvice(
            asked,
            tables=source,
            jobs=jobs,
            choice=None,
            first=None,
            simulation=None,
            limits=(),
            runners_up=(),
            neighbours=(),
            moves=moves,
            search=search,
        )
    return _build_advice(asked, source=source, found=found, order=order, search=search)


def _build_advice(
    asked: ConcurrentPlanOptions,
    source: JobTables,
    found: ServingChoices,
    order: Sequence[int],
    search: StrategySearch | None,
) -> InterleavingAdvice:
    jobs, first = found.jobs, found.build_option(order[0])
    coming = [
        build_arrivals(asked.arrivals, service.rate_hz, asked.seed + i) for i, service in enumerate(jobs.services)
    ]
    seen = find_holding_choice(found, order, coming)
    choice = first if seen is None else seen.option
    return InterleavingAdvice(
        asked,
        tables=source,
        jobs=jobs,
        choice=choice,
        first=None if choice == first else first,
        simulation=seen,
        limits=tuple(serving_planner.find_binding_limits(jobs, asked.power_w, first)),
        runners_up=tuple(option for option in serving_planner.list_runners_up(found, order) if option != choice),
        neighbours=tuple(serving_planner.vary_limits(jobs, asked.power_w)),
        moves=(),
        search=search,
        doubtful=tuple(list_implausible_rows(_select_measured_tables(source, choice), choice.mode)),
    )


def _select_measured_tables(source: JobTables, choice: ServingOption) -> list[ProfileTable]:
    """Return the measured tables with a row that the choice uses; empty if costs come from a model."""
    if not source.is_measured:
        return []
    served = zip(source.infer, choice.batch_sizes, strict=True)
    chosen = [table for tables, size in served for table in tables if table.batch_size == size]
    return [*([] if source.train is None else [source.train]), *chosen]


def build_arrivals(kind: str, rate_hz: float, seed: int) -> Arrivals:
    """Return a service's arrival process.

    Args:
        kind: Kind of arrivals.
        rate_hz: Mean rate, in requests per second.
        seed: Seed of random arrivals.
    """
    fields: dict[str, Any] = {"kind": kind, "seed": seed}
    if kind == "dynamic":
        fields["rates"] = [(seconds, factor * rate_hz) for seconds, factor in DYNAMIC_ARRIVALS]
    else:
        fields["rate_hz"] = rate_hz
    try:
        return parse_arrivals(fields)
    except BadField as error:
        raise BadInput("--arrivals", kind, str(error)) from error


def _run_strategy(asked: ConcurrentPlanOptions, source: JobTables) -> StrategySearch | None:
    """Run the requested search strategy; strategies support one service at most."""
    if asked.strategy == NO_STRATEGY or len(source.infer) > 1:
        return None
    pair, typed = source.build_pair(), asked.jobs
    family: ProblemFamily = "train" if not source.infer else "infer" if source.train is None else "concurrent"
    limits = (typed.latency_s[0], typed.rate_hz[0]) if source.infer else (None, None)
    known = build_pair_knowledge(pair, source.train, source.infer[0] if source.infer else ())
    return search_with_strategy(asked.strategy, known.ground, pair, ServingProblem(family, asked.power_w, *limits))


# JSON -----------------------------------------------------------------------------------------------------------------


def as_data(advice: InterleavingAdvice) -> Mapping[str, Any]:
    """Return the plan for JSON; ``modelled`` states that none of its numbers was measured on a board."""
    asked, jobs = advice.options, advice.jobs
    return {
        "feasible": advice.choice is not None,
        "power_w": asked.power_w,
        "arrivals": asked.arrivals,
        "services": [
            {"name": one.name, "rate_hz": one.rate_hz, "latency_s": one.latency_s, "batch_sizes": one.batch_sizes}
            for one in jobs.services
        ],
        "trains": jobs.train_s is not None,
        "modelled": not advice.tables.is_measured,
        "sources": advice.tables.descriptions,
        "choice": _option_data(advice.choice),
        "best_for_even_arrivals": _option_data(advice.first),
        "played": _simulation_data(advice.simulation),
        "limited_by": advice.limits,
        "doubtful": advice.doubtful,
        "runners_up": [_option_data(option) for option in advice.runners_up],
        "neighbours": [
            {"limit": one.limit, "factor": one.factor, "value": one.value, "choice": _option_data(one.option)}
            for one in advice.neighbours
        ],
        "would_hold": [{**asdict(move), "factor": move.factor} for move in advice.moves],
        "strategy": _search_data(advice.search),
    }


def _option_data(option: ServingOption | None) -> Mapping[str, Any] | None:
    return None if option is None else asdict(option)


def _simulation_data(one: SimulatedChoice | None) -> Mapping[str, Any] | None:
    if one is None:
        return None
    services = [{**asdict(service), "violations": service.violations} for service in one.simulation.services]
    seen = {"seconds": one.simulation.seconds, "steps_per_s": one.simulation.steps_per_s}
    return {**seen, "holds": one.holds, "tried": one.tried, "services": services}


def _search_data(search: StrategySearch | None) -> Mapping[str, Any] | None:
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
