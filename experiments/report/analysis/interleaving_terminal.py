"""Terminal view of an interleaving plan: the choice, its reason and simulation, alternatives, relaxed limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from experiments.report.quantities import UNKNOWN, percent
from experiments.report.tables import Table, lay_out_lines, number_cell, print_lines, text_cell
from fedge.studies.serving.interleaving_advice import ProfiledTrial, SimulatedChoice, StrategySearch
from fedge.studies.serving.serving_planner import LimitChange, LimitVariation, ServingOption
from fedge.types import PowerMode

if TYPE_CHECKING:
    from rich.console import Console

    from fedge.studies.serving.interleaving_advice import InterleavingAdvice

LIMIT_UNITS = {"power": "W", "latency": "s", "rate": "requests/s"}
SHORT_UNITS = {"power": "W", "latency": "s", "rate": "/s"}
LIMIT_WORDS = {"power": "the power budget", "latency": "the latency budget", "rate": "the arrival rate"}
ARRIVAL_WORDS = {"constant": "even arrivals", "poisson": "Poisson arrivals", "bursts": "arrivals in bursts"}
OPTION_HEADINGS = ("batch", "per window", "per s", "infer, ms")
LABEL_WIDTH = 8
MAX_TRIALS = 30
"""Default number of a strategy's trials listed, so that they fit on one screen."""
FACTOR_THRESHOLD = 3.0
"""From this ratio on, a change reads better as a factor ("3.2 times") than in percent."""

LabelledLine = tuple[str, str]
"""Label, empty if the line continues the one before, and text."""


def print_interleaving(console: Console, advice: InterleavingAdvice) -> None:
    """Print the whole plan."""
    if advice.choice is None:
        console.print(lay_out_lines(_describe_infeasibility(advice), LABEL_WIDTH))
    else:
        console.print(lay_out_lines(_describe_choice(advice, advice.choice), LABEL_WIDTH))
        if advice.runners_up:
            _runners_up_table(advice.runners_up).print(console)
        _neighbours_table(advice.neighbours, advice).print(console)
    print_lines(console, (*_describe_search(advice), *_describe_sources(advice)))


def _describe_choice(advice: InterleavingAdvice, option: ServingOption) -> Iterator[LabelledLine]:
    services = advice.jobs.services
    yield "Mode", f"{option.mode} (CPU cores; CPU, GPU and memory clock)"
    for service, size, infer_s in zip(services, option.batch_sizes, option.infer_s, strict=True):
        window_s = size / service.rate_hz
        yield "Serve", f"{service.name}: batches of {size}, one every {window_s:.3f} s, each {1e3 * infer_s:.1f} ms"
    if option.train_s is not None:
        yield "Train", _describe_training(option, option.train_s, several=len(services) > 1)
    for service, needed_s in zip(services, option.latency_s, strict=True):
        rule = "for even arrivals (collecting and inferring a batch)"
        if len(services) > 1:
            rule = "at most, for even arrivals"
        yield "Latency", f"{service.name}: {needed_s:.3f} s of {service.latency_s:g} s, {rule}"
    watts = [f"{watts:.1f} W {name}" for name, watts in _list_powers(advice, option)]
    yield "Power", f"{option.power_w:.1f} W of {advice.options.max_power_w:g} W ({', '.join(watts)})"
    if services:
        yield "Serving", f"{percent(option.share, 0)} of time"
    yield "Limited", _describe_limits(advice)
    for what in advice.doubtful:
        yield "DOUBTFUL", f"{what}: measure this mode again before relying on the plan"
    if advice.simulation is not None:
        yield from _describe_simulation(advice, advice.simulation)


def _describe_training(option: ServingOption, train_s: float, *, several: bool) -> str:
    each = f"each {1e3 * train_s:.1f} ms"
    if not option.batch_sizes:
        return f"{option.steps_per_s:.2f} steps per second, {each}"
    if option.steps_per_s == 0 and several:
        return f"none: a training step ({each}) would make the services late"
    if option.steps_per_s == 0:
        left_ms = 1e3 * max(0.0, option.window_s - sum(option.infer_s))
        return f"none: serving leaves {left_ms:.1f} ms of a window, and a training step takes {1e3 * train_s:.1f} ms"
    longest = "longest " if several else ""
    window = f"{_format_count(option.steps)} steps per {longest}window of {option.window_s:.3f} s"
    return f"{window}, {option.steps_per_s:.2f} per second, {each}"


def _list_powers(advice: InterleavingAdvice, option: ServingOption) -> Iterator[tuple[str, float]]:
    if option.train_w is not None:
        yield "training", option.train_w
    for service, watts in zip(advice.jobs.services, option.infer_w, strict=True):
        yield service.name, watts


def _describe_limits(advice: InterleavingAdvice) -> str:
    if advice.limits:
        return "by " + " and ".join(LIMIT_WORDS[limit] for limit in advice.limits)
    aim = "faster training" if advice.jobs.train_s is not None else "faster inference"
    budgets = "power or 10 % more latency" if advice.jobs.services else "power"
    return f"by the board: 10 % more {budgets} does not allow {aim}"


def _describe_simulation(advice: InterleavingAdvice, played: SimulatedChoice) -> Iterator[LabelledLine]:
    simulation, coming = (
        played.simulation,
        ARRIVAL_WORDS.get(advice.options.arrivals, f"{advice.options.arrivals} arrivals"),
    )
    yield "Checked", f"simulation of {simulation.seconds:.0f} s with {coming}:"
    for service in simulation.services:
        quantiles = f"p50 {service.p50_s:.3f}, p95 {service.p95_s:.3f}, p99 {service.p99_s:.3f} s"
        yield (
            "",
            f"{service.name}: {quantiles}, {service.violations:.2f} % of {service.requests} requests late or dropped",
        )
    if simulation.steps_per_s > 0:
        run_over = " (a step may run past its window if the budget allows)" if not advice.has_several_services else ""
        yield "", f"{simulation.steps_per_s:.2f} training steps per second{run_over}"
    if advice.first is not None and played.holds:
        yield (
            "",
            f"Choice {played.tried} in order of preference: {_format_option(advice.first)} violates the budget at p99",
        )
    if not played.holds:
        yield "", f"NONE of {played.tried} simulated choices keeps the budget at p99; this one violates it least"


def _format_option(option: ServingOption) -> str:
    sizes = "+".join(map(str, option.batch_sizes))
    return f"{option.mode}, batches of {sizes}" if sizes else str(option.mode)


def _describe_infeasibility(advice: InterleavingAdvice) -> Iterator[LabelledLine]:
    yield "None", "No mode meets all limits."
    if not advice.moves:
        yield "", "The board cannot keep up with this rate in any mode: reduce the rate or choose another board."
        return
    for number, move in enumerate(advice.moves):
        yield "Nearest" if number == 0 else "Else", _describe_move(move, several=advice.has_several_services)
    for service in advice.jobs.services:
        if service.latency_s * service.rate_hz <= 1.0:
            apart = f"{service.name}: requests arrive {1 / service.rate_hz:.4g} s apart, which is at least the budget"
            yield "Note", f"{apart}; the latency includes this time as collecting, even for a batch of 1"


def _describe_move(move: LimitChange, *, several: bool) -> str:
    if move.limit == "both":
        return f"no single limit suffices: power and latency budgets {move.factor:.2f} times as large"
    unit = LIMIT_UNITS[move.limit]
    percent = f"{100 * (move.factor - 1):+.1f} %"
    change = f"{_format_count(move.factor)} times" if move.factor >= FACTOR_THRESHOLD else percent
    which = ", of all services; the first" if several and move.limit != "power" else ""
    why = ": batches fill sooner" if move.limit == "rate" and move.factor > 1 else ""
    return f"{LIMIT_WORDS[move.limit]}{which}: {move.now:g} -> {move.needed:.4g} {unit} ({change}{why})"


def _runners_up_table(options: Sequence[ServingOption]) -> Table:
    rows = [(_format_mode(option.mode), *_option_cells(option), f"{option.power_w:.1f}") for option in options]
    return _options_table("Alternatives", ("mode, MHz", *OPTION_HEADINGS, "W"), rows)


def _neighbours_table(neighbours: Sequence[LimitVariation], advice: InterleavingAdvice) -> Table:
    alike = " (for all services; values of the first)" if advice.has_several_services else ""
    order = list(LIMIT_UNITS)
    ordered = sorted(neighbours, key=lambda one: (order.index(one.limit), one.factor))
    rows = [(_format_limit(one), *_neighbour_cells(one.option, advice.best)) for one in ordered]
    return _options_table(f"Choices under other limits{alike}", ("limit", *OPTION_HEADINGS, "mode, MHz"), rows)


def _format_limit(one: LimitVariation) -> str:
    return f"{one.limit} {one.value:.4g} {SHORT_UNITS[one.limit]}".replace(" /", "/")


def _neighbour_cells(option: ServingOption | None, now: ServingOption | None) -> tuple[str, ...]:
    if option is None:
        return *(UNKNOWN for _ in OPTION_HEADINGS), "no mode fits"
    return *_option_cells(option), "unchanged" if option == now else _format_mode(option.mode)


def _format_count(number: float) -> str:
    """Format with three digits, never with an exponent."""
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"


def _format_mode(mode: PowerMode) -> str:
    return str(mode).removesuffix(" MHz")


def _option_cells(option: ServingOption) -> tuple[str, str, str, str]:
    """Return batch sizes, steps per window, steps per second and inference times in ms."""
    trains, serves = option.train_s is not None, bool(option.batch_sizes)
    return (
        "+".join(map(str, option.batch_sizes)) or UNKNOWN,
        _format_count(option.steps) if trains and serves else UNKNOWN,
        f"{option.steps_per_s:.2f}" if trains else UNKNOWN,
        "+".join(f"{1e3 * infer_s:.0f}" for infer_s in option.infer_s) or UNKNOWN,
    )


def _describe_search(advice: InterleavingAdvice) -> Iterator[str]:
    """Yield what a strategy would profile; strategies search for one service only."""
    if len(advice.jobs.services) > 1:
        yield "Strategies search for one service only; with several, no profiling order is shown."
    elif advice.search is not None:
        yield from _describe_trials(advice.search)


def _describe_trials(search: StrategySearch) -> Iterator[str]:
    times = len(search.trials)
    where = _describe_search_space(search)
    yield f"Without tables, {search.strategy} would profile {times} times, in this order{where}:"
    more = f"; and {times - MAX_TRIALS} more (--json has all)" if times > MAX_TRIALS else ""
    yield "  " + "; ".join(_format_trial(trial) for trial in search.trials[:MAX_TRIALS]) + more
    if search.chosen is None:
        yield "  and would find no mode that meets the limits."
        return
    yield f"  and would choose {_format_trial(search.chosen)}{_describe_search_quality(search)}"


def _describe_search_space(search: StrategySearch) -> str:
    return "" if all(trial.batch_size is None for trial in search.trials) else " (mode at batch size of inference)"


def _describe_search_quality(search: StrategySearch) -> str:
    worth, gap = search.worth, search.worth.gap
    if not worth.solved:
        return ", which does NOT meet the limits."
    if search.chosen is not None and search.chosen.batch_size is None:
        return f": training steps {percent(gap.loss)} longer than the best choice's."
    if math.isnan(gap.loss):  # nothing is trained
        return f": inference {percent(gap.excess)} longer than the best choice's."
    return f": {percent(gap.loss)} less training than the best choice."


def _format_trial(trial: ProfiledTrial) -> str:
    return str(trial.mode) if trial.batch_size is None else f"{trial.mode} at {trial.batch_size}"


def _describe_sources(advice: InterleavingAdvice) -> Iterator[str]:
    yield from advice.tables.descriptions
    label = advice.tables.label
    what = {"measured": "were measured", "unknown": "are of unknown origin"}.get(label, f"come from a model ({label})")
    yield f"Time and power {what}; windows, latencies and step counts follow from them."


def _options_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Build a table without the columns that are unknown in all rows."""
    kept = [i for i in range(len(headings)) if any(row[i] != UNKNOWN for row in rows)]
    is_text = [i == 0 or headings[i].startswith("mode") for i in range(len(headings))]
    lines = tuple(tuple((text_cell if is_text[i] else number_cell)(row[i]) for i in kept) for row in rows)
    return Table(title.partition(" ")[0].lower(), tuple(headings[i] for i in kept), lines, title)
