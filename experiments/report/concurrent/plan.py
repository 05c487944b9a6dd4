"""A plan for a terminal: the choice and why, what came of playing it, what else there is, what more would buy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fedge.studies.concurrent.advice import Played, Profiled, Search
from fedge.studies.concurrent.planning import Move, Neighbour, Option
from fedge.types import PowerMode

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from experiments.commands.concurrent_plan import Advice

UNITS = {"power": "W", "latency": "s", "rate": "requests/s"}
WORDS = {"power": "the power budget", "latency": "the latency budget", "rate": "the arrival rate"}


def as_text(advice: Advice) -> Group:
    """Everything that the plan says."""
    from rich.console import Group
    from rich.text import Text

    if advice.choice is None:
        parts: list[Text | Table] = [Text("\n".join(_refusal(advice)))]
    else:
        parts = [Text("\n".join(_choice(advice, advice.choice)))]
        if advice.runners_up:
            parts.append(_runners_up(advice.runners_up))
        parts.append(_neighbours(advice.neighbours, advice))
    if len(advice.jobs.services) > 1:
        parts.append(Text("Strategies search for one service: what to profile for several is not shown."))
    elif advice.search is not None:
        parts.append(Text("\n".join(_search(advice.search))))
    parts.append(Text("\n".join(_sources(advice)), style="dim"))
    return Group(*parts)


def _choice(advice: Advice, option: Option) -> Iterator[str]:
    trains, services = option.train_s is not None, advice.jobs.services
    yield f"Mode      {option.mode}"
    for service, size, infer_s in zip(services, option.batch_sizes, option.infer_s, strict=True):
        window_s = size / service.rate_hz
        yield f"Serve     {service.name}: batches of {size}, one every {window_s:.3f} s, each {1e3 * infer_s:.1f} ms"
    yield from _training(option, several=len(services) > 1)
    for service, needed_s in zip(services, option.latency_s, strict=True):
        yield f"Latency   {service.name}: at most {needed_s:.3f} s of {service.latency_s:g} s when requests come evenly"
    watts = [f"{watts:.1f} W {name}" for name, watts in _watts(advice, option)]
    yield f"Power     {option.power_w:.1f} W of {advice.asked.power_w:g} W ({', '.join(watts)})"
    if services:
        yield f"Serving   {100 * option.share:.0f} % of the time"
    yield f"Limited   {_limits(advice, trains=trains)}"
    if advice.played is not None:
        yield from _played(advice, advice.played)


def _training(option: Option, *, several: bool) -> Iterator[str]:
    if option.train_s is None:
        return
    each = f"each {1e3 * option.train_s:.1f} ms"
    if not option.batch_sizes:
        yield f"Train     {option.steps_per_s:.2f} minibatches per second, {each}"
    elif option.steps_per_s == 0:
        yield f"Train     nothing: no minibatch ({each}) fits beside serving"
    else:
        longest = "longest " if several else ""
        window = f"{option.steps:.3g} minibatches per {longest}window of {option.window_s:.3f} s"
        yield f"Train     {window}, {option.steps_per_s:.2f} per second, {each}"


def _watts(advice: Advice, option: Option) -> Iterator[tuple[str, float]]:
    if option.train_w is not None:
        yield "training", option.train_w
    for service, watts in zip(advice.jobs.services, option.infer_w, strict=True):
        yield service.name, watts


def _limits(advice: Advice, *, trains: bool) -> str:
    if advice.limits:
        return "by " + " and by ".join(WORDS[limit] for limit in advice.limits)
    aim = "minibatches" if trains else "speed"
    return f"by the board: 10 % more of no budget alone gives more {aim}"


def _played(advice: Advice, played: Played) -> Iterator[str]:
    seen = played.seen
    yield f"Played    {seen.seconds:.0f} s with {advice.asked.arrivals} arrivals on a virtual clock:"
    for one in seen.services:
        quantiles = f"p50 {one.p50_s:.3f}, p95 {one.p95_s:.3f}, p99 {one.p99_s:.3f} s"
        yield f"          {one.name}: {quantiles}, {one.violations:.2f} % of {one.requests} requests late or dropped"
    if seen.steps_per_s > 0:
        yield f"          {seen.steps_per_s:.2f} training minibatches per second"
    if advice.first is not None and played.holds:
        yield f"          It is choice {played.tried} of those played: {_short(advice.first)} does not hold at p99"
    if not played.holds:
        yield f"          NONE of {played.tried} choices played holds at p99; this one breaks least"


def _short(option: Option) -> str:
    sizes = "+".join(map(str, option.batch_sizes))
    return f"{option.mode}, batches of {sizes}" if sizes else str(option.mode)


def _refusal(advice: Advice) -> Iterator[str]:
    yield "Nothing holds all the limits."
    if not advice.moves:
        yield "The board cannot keep up with so many requests in any mode: serve fewer, or on another board."
        return
    several = len(advice.jobs.services) > 1
    for number, move in enumerate(advice.moves):
        yield f"{'Nearest' if number == 0 else 'Else   '}   {_moved(move, several=several)}"


def _moved(move: Move, *, several: bool) -> str:
    if move.limit == "both":
        return f"no limit alone is enough: power and latency budgets {move.factor:.2f} times as large"
    unit = UNITS[move.limit]
    change = f"{100 * (move.factor - 1):+.1f} %"
    which = ", all services alike; the first" if several and move.limit != "power" else ""
    return f"{WORDS[move.limit]}{which}: {move.now:g} -> {move.needed:.4g} {unit} ({change})"


def _runners_up(options: Sequence[Option]) -> Table:
    table = _table("What else holds", "mode, MHz", "batch", "per window", "per s", "t_in ms", "W")
    for option in options:
        table.add_row(_plain(option.mode), *_cells(option), f"{option.power_w:.1f}")
    return table


def _neighbours(neighbours: Sequence[Neighbour], advice: Advice) -> Table:
    table = _table("What another limit would give", "limit", "batch", "per window", "per s", "t_in ms", "mode, MHz")
    several = len(advice.jobs.services) > 1
    order = list(UNITS)
    for one in sorted(neighbours, key=lambda one: (order.index(one.limit), one.factor)):
        alike = " (all alike)" if several and one.limit != "power" else ""
        name = f"{one.limit} {one.value:.3g} {UNITS[one.limit]}{alike}"
        if one.option is None:
            table.add_row(name, "-", "-", "-", "-", "nothing holds")
        else:
            table.add_row(name, *_cells(one.option), _plain(one.option.mode))
    return table


def _plain(mode: PowerMode) -> str:
    return str(mode).removesuffix(" MHz")


def _cells(option: Option) -> tuple[str, str, str, str]:
    """Batch sizes, minibatches per window and per second, milliseconds of the batches."""
    trains, serves = option.train_s is not None, bool(option.batch_sizes)
    return (
        "+".join(map(str, option.batch_sizes)) or "-",
        f"{option.steps:.3g}" if trains and serves else "-",
        f"{option.steps_per_s:.2f}" if trains else "-",
        "+".join(f"{1e3 * infer_s:.0f}" for infer_s in option.infer_s) or "-",
    )


def _search(search: Search) -> Iterator[str]:
    yield f"Without such tables, {search.strategy} would profile {len(search.trials)} times, in this order:"
    yield "  " + "; ".join(_named(trial) for trial in search.trials)
    if search.chosen is None:
        yield "  and would find nothing that holds the limits."
        return
    yield f"  and would choose {_named(search.chosen)}{_worth(search)}"


def _worth(search: Search) -> str:
    worth, gap = search.worth, search.worth.gap
    if not worth.solved:
        return ", which does NOT hold the limits."
    if search.chosen is not None and search.chosen.batch_size is None:
        return f": minibatches {100 * gap.loss:.1f} % longer than the best's."
    if math.isnan(gap.loss):  # nothing is trained
        return f": t_in {100 * gap.excess:.1f} % above the best's."
    return f": {100 * gap.loss:.1f} % less training than the best."


def _named(trial: Profiled) -> str:
    return str(trial.mode) if trial.batch_size is None else f"{trial.mode} at {trial.batch_size}"


def _sources(advice: Advice) -> Iterator[str]:
    yield from advice.source.about
    what = "were measured" if advice.source.measured else "come from a model, not from this board"
    yield f"Seconds and watts {what}; windows, latencies and minibatches follow from them by the rules of interleaving."


def _table(title: str, first: str, *headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading.startswith("mode") else "right", no_wrap=True)
    return table
