"""``fedge concurrent plan``: which mode, batch sizes and interleaving for some jobs and limits, and why."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from experiments.commands.concurrent_jobs import Source, Typed, jobs_of, positive, source_of
from experiments.commands.concurrent_tables import implausible
from fedge import registry
from fedge.concurrency.problems import Family, Problem
from fedge.errors import BadInput
from fedge.strategies import DEFAULT, STRATEGIES
from fedge.studies.concurrent import planning
from fedge.studies.concurrent.advice import Played, Search, played, searched
from fedge.studies.concurrent.ground import known_of
from fedge.studies.concurrent.planning import Every, Jobs, Move, Neighbour, Option
from fedge.types import ProfileTable
from fedge.worker.arrivals import KINDS, Arrivals, arrivals_of
from fedge.worker.fields import BadField

DYNAMIC = ((10.0, 0.5), (10.0, 1.5))
"""Dynamic arrivals: so many seconds at so many times the rate, and again. Chosen by us."""
NO_STRATEGY = "none"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were typed."""

    jobs: Typed
    power_w: float
    arrivals: str = "constant"
    strategy: str = DEFAULT
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """Everything that is shown; ``choice`` is None where nothing holds the limits, and then ``moves`` say what would.

    ``first`` is the best choice by the formulas, where playing it showed that it does not hold with such arrivals.
    ``doubtful`` names the measured rows behind the choice that no board can have meant.
    """

    asked: Asked
    source: Source
    jobs: Jobs
    choice: Option | None
    first: Option | None
    played: Played | None
    limits: tuple[str, ...]
    runners_up: tuple[Option, ...]
    neighbours: tuple[Neighbour, ...]
    moves: tuple[Move, ...]
    search: Search | None
    doubtful: tuple[str, ...] = ()

    @property
    def best(self) -> Option | None:
        """The best choice by the formulas."""
        return self.first or self.choice

    @property
    def several(self) -> bool:
        return len(self.jobs.services) > 1


def plan(asked: Asked, *, as_json: bool) -> None:
    """Plan, and print it as text or JSON; raises ``BadInput``."""
    advice = advise(asked)
    if as_json:
        import typer

        typer.echo(json.dumps(as_data(advice), indent=2))
        return
    from rich.console import Console

    from experiments.report.concurrent.plan import as_text

    Console().print(as_text(advice), crop=False)


def advise(asked: Asked) -> Advice:
    """The plan; raises ``BadInput`` for everything that is wrong with the options or the tables."""
    positive("--power-w", asked.power_w)
    if asked.arrivals not in KINDS:
        raise BadInput("--arrivals", repr(asked.arrivals), f"one of {', '.join(KINDS)}")
    if asked.strategy != NO_STRATEGY:
        registry.load("--strategy", asked.strategy, STRATEGIES)
    source = source_of(asked.jobs)
    jobs = jobs_of(source, asked.jobs)
    search = _search(asked, source)
    found = planning.every(jobs)
    order = found.order(asked.power_w)
    if not order:
        moves = tuple(planning.nearest(jobs, asked.power_w))
        return Advice(asked, source, jobs, None, None, None, (), (), (), moves, search)
    return _chosen(asked, source, found, order, search)


def _chosen(asked: Asked, source: Source, found: Every, order: Sequence[int], search: Search | None) -> Advice:
    jobs, first = found.jobs, found.option(order[0])
    coming = [coming_of(asked.arrivals, service.rate_hz, asked.seed + i) for i, service in enumerate(jobs.services)]
    seen = played(found, order, coming)
    choice = first if seen is None else seen.option
    return Advice(
        asked,
        source,
        jobs,
        choice,
        None if choice == first else first,
        seen,
        tuple(planning.limiting(jobs, asked.power_w, first)),
        tuple(option for option in planning.runners_up(found, order) if option != choice),
        tuple(planning.neighbours(jobs, asked.power_w)),
        (),
        search,
        tuple(implausible(_measured_behind(source, choice), choice.mode)),
    )


def _measured_behind(source: Source, choice: Option) -> list[ProfileTable]:
    """The measured tables of which the choice took a row; none where the costs come from a model."""
    if not source.measured:
        return []
    served = zip(source.infer, choice.batch_sizes, strict=True)
    chosen = [table for tables, size in served for table in tables if table.batch_size == size]
    return [*([] if source.train is None else [source.train]), *chosen]


def coming_of(kind: str, rate_hz: float, seed: int) -> Arrivals:
    """The arrivals of a service, ``rate_hz`` in the mean."""
    fields: dict[str, Any] = {"kind": kind, "seed": seed}
    if kind == "dynamic":
        fields["rates"] = [(seconds, factor * rate_hz) for seconds, factor in DYNAMIC]
    else:
        fields["rate_hz"] = rate_hz
    try:
        return arrivals_of(fields)
    except BadField as error:
        raise BadInput("--arrivals", kind, str(error)) from error


def _search(asked: Asked, source: Source) -> Search | None:
    """The strategies search for one service at most."""
    if asked.strategy == NO_STRATEGY or len(source.infer) > 1:
        return None
    pair, typed = source.pair(), asked.jobs
    family: Family = "train" if not source.infer else "infer" if source.train is None else "concurrent"
    limits = (typed.latency_s[0], typed.rate_hz[0]) if source.infer else (None, None)
    known = known_of(pair, source.train, source.infer[0] if source.infer else ())
    return searched(asked.strategy, known.ground, pair, Problem(family, asked.power_w, *limits))


# JSON -----------------------------------------------------------------------------------------------------------------


def as_data(advice: Advice) -> Mapping[str, Any]:
    """The plan for JSON; ``modelled`` says that no number of it was measured on a board."""
    asked, jobs = advice.asked, advice.jobs
    return {
        "feasible": advice.choice is not None,
        "power_w": asked.power_w,
        "arrivals": asked.arrivals,
        "services": [
            {"name": one.name, "rate_hz": one.rate_hz, "latency_s": one.latency_s, "batch_sizes": one.batch_sizes}
            for one in jobs.services
        ],
        "trains": jobs.train_s is not None,
        "modelled": not advice.source.measured,
        "sources": advice.source.about,
        "choice": _option(advice.choice),
        "best_for_even_arrivals": _option(advice.first),
        "played": _played(advice.played),
        "limited_by": advice.limits,
        "doubtful": advice.doubtful,
        "runners_up": [_option(option) for option in advice.runners_up],
        "neighbours": [
            {"limit": one.limit, "factor": one.factor, "value": one.value, "choice": _option(one.option)}
            for one in advice.neighbours
        ],
        "would_hold": [{**asdict(move), "factor": move.factor} for move in advice.moves],
        "strategy": _searched(advice.search),
    }


def _option(option: Option | None) -> Mapping[str, Any] | None:
    return None if option is None else asdict(option)


def _played(one: Played | None) -> Mapping[str, Any] | None:
    if one is None:
        return None
    services = [{**asdict(service), "violations": service.violations} for service in one.seen.services]
    seen = {"seconds": one.seen.seconds, "steps_per_s": one.seen.steps_per_s}
    return {**seen, "holds": one.holds, "tried": one.tried, "services": services}


def _searched(search: Search | None) -> Mapping[str, Any] | None:
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
