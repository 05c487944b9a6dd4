"""Terminal views of concurrent training and inference: a plan, a turn in progress, the scores of strategies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from experiments.report.quantities import UNKNOWN, percent
from experiments.report.tables import (
    Cell,
    Column,
    Table,
    build_table,
    number_cell,
    percent_cell,
    print_facts,
    print_lines,
    text_cell,
    value_cell,
)
from fedge.serving.side_by_side import SideBySideOutcome
from fedge.studies.serving.interleaving_advice import SimulatedChoice, StrategySearch
from fedge.studies.serving.serving_planner import LimitChange, ServingOption
from fedge.studies.serving.strategy_study import LATENCY_TOLERANCE, POWER_TOLERANCE_W, StrategyRow
from fedge.worker.latency_histogram import LatencyHistogram, bin_index, bin_upper_s

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

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
    facts = _describe_infeasibility(advice) if advice.choice is None else _describe_choice(advice, advice.choice)
    print_facts(console, facts, label_width=LABEL_WIDTH)
    if advice.choice is not None:
        if advice.runners_up:
            options = advice.runners_up
            rows = [(_format_mode(one), *_format_option_figures(one), f"{one.power_w:.1f}") for one in options]
            _options_table("Alternatives", ("mode, MHz", *OPTION_HEADINGS, "W"), rows).print(console)
        _neighbours_table(advice).print(console)
    search: Iterable[str] = () if advice.search is None else _describe_search(advice.search)
    if len(advice.jobs.services) > 1:
        search = ("Strategies search for one service only; with several, no profiling order is shown.",)
    label = advice.tables.label
    what = {"measured": "were measured", "unknown": "are of unknown origin"}.get(label, f"come from a model ({label})")
    derived = f"Time and power {what}; windows, latencies and step counts follow from them."
    print_lines(console, (*search, *advice.tables.descriptions, derived))


def _describe_choice(advice: InterleavingAdvice, option: ServingOption) -> Iterator[LabelledLine]:
    services, several = advice.jobs.services, len(advice.jobs.services) > 1
    yield "Mode", f"{option.mode} (CPU cores; CPU, GPU and memory clock)"
    for service, size, infer_s in zip(services, option.batch_sizes, option.infer_s, strict=True):
        window_s = size / service.rate_hz
        yield "Serve", f"{service.name}: batches of {size}, one every {window_s:.3f} s, each {1e3 * infer_s:.1f} ms"
    if option.train_s is not None:
        yield "Train", _describe_training(option, option.train_s, several=several)
    rule = "at most, for even arrivals" if several else "for even arrivals (collecting and inferring a batch)"
    for service, needed_s in zip(services, option.latency_s, strict=True):
        yield "Latency", f"{service.name}: {needed_s:.3f} s of {service.latency_s:g} s, {rule}"
    watts = [] if option.train_w is None else [f"{option.train_w:.1f} W training"]
    watts += [f"{drawn_w:.1f} W {service.name}" for service, drawn_w in zip(services, option.infer_w, strict=True)]
    yield "Power", f"{option.power_w:.1f} W of {advice.options.max_power_w:g} W ({', '.join(watts)})"
    if services:
        yield "Serving", f"{percent(option.share, 0)} of time"
    if advice.limits:
        yield "Limited", "by " + " and ".join(LIMIT_WORDS[limit] for limit in advice.limits)
    else:
        aim = "faster training" if advice.jobs.train_s is not None else "faster inference"
        budgets = "power or 10 % more latency" if services else "power"
        yield "Limited", f"by the board: 10 % more {budgets} does not allow {aim}"
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
    window = f"{_format_short(option.steps)} steps per {longest}window of {option.window_s:.3f} s"
    return f"{window}, {option.steps_per_s:.2f} per second, {each}"


def _describe_simulation(advice: InterleavingAdvice, played: SimulatedChoice) -> Iterator[LabelledLine]:
    simulation, arrivals = played.simulation, advice.options.arrivals
    coming = ARRIVAL_WORDS.get(arrivals, f"{arrivals} arrivals")
    yield "Checked", f"simulation of {simulation.seconds:.0f} s with {coming}:"
    for service in simulation.services:
        quantiles = f"p50 {service.p50_s:.3f}, p95 {service.p95_s:.3f}, p99 {service.p99_s:.3f} s"
        late = f"{service.violations:.2f} % of {service.requests} requests late or dropped"
        yield "", f"{service.name}: {quantiles}, {late}"
    if simulation.steps_per_s > 0:
        run_over = " (a step may run past its window if the budget allows)" if not advice.has_several_services else ""
        yield "", f"{simulation.steps_per_s:.2f} training steps per second{run_over}"
    if advice.first is not None and played.holds:
        sizes = "+".join(map(str, advice.first.batch_sizes))
        first = f"{advice.first.mode}, batches of {sizes}" if sizes else str(advice.first.mode)
        yield "", f"Choice {played.tried} in order of preference: {first} violates the budget at p99"
    if not played.holds:
        yield "", f"NONE of {played.tried} simulated choices keeps the budget at p99; this one violates it least"


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
    change = f"{_format_short(move.factor)} times" if move.factor >= FACTOR_THRESHOLD else percent
    which = ", of all services; the first" if several and move.limit != "power" else ""
    why = ": batches fill sooner" if move.limit == "rate" and move.factor > 1 else ""
    return f"{LIMIT_WORDS[move.limit]}{which}: {move.now:g} -> {move.needed:.4g} {unit} ({change}{why})"


def _neighbours_table(advice: InterleavingAdvice) -> Table:
    alike = " (for all services; values of the first)" if advice.has_several_services else ""
    order, rows = list(LIMIT_UNITS), []
    for one in sorted(advice.neighbours, key=lambda one: (order.index(one.limit), one.factor)):
        limit = f"{one.limit} {one.value:.4g} {SHORT_UNITS[one.limit]}".replace(" /", "/")
        if one.option is None:
            rows.append((limit, *(UNKNOWN for _ in OPTION_HEADINGS), "no mode fits"))
        else:
            mode = "unchanged" if one.option == advice.best else _format_mode(one.option)
            rows.append((limit, *_format_option_figures(one.option), mode))
    return _options_table(f"Choices under other limits{alike}", ("limit", *OPTION_HEADINGS, "mode, MHz"), rows)


def _format_short(number: float) -> str:
    """Format with three digits, never with an exponent."""
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"


def _format_mode(option: ServingOption) -> str:
    return str(option.mode).removesuffix(" MHz")


def _format_option_figures(option: ServingOption) -> tuple[str, ...]:
    """Return an option's figures in the order of ``OPTION_HEADINGS``."""
    trains, serves = option.train_s is not None, bool(option.batch_sizes)
    return (
        "+".join(map(str, option.batch_sizes)) or UNKNOWN,
        _format_short(option.steps) if trains and serves else UNKNOWN,
        f"{option.steps_per_s:.2f}" if trains else UNKNOWN,
        "+".join(f"{1e3 * infer_s:.0f}" for infer_s in option.infer_s) or UNKNOWN,
    )


def _describe_search(search: StrategySearch) -> Iterator[str]:
    """Yield what a strategy would profile, and how good its choice would be."""
    times = len(search.trials)
    trials = [
        str(one.mode) if one.batch_size is None else f"{one.mode} at {one.batch_size}"
        for one in (*search.trials[:MAX_TRIALS], *filter(None, [search.chosen]))
    ]
    chosen = None if search.chosen is None else trials.pop()
    where = "" if all(trial.batch_size is None for trial in search.trials) else " (mode at batch size of inference)"
    yield f"Without tables, {search.strategy} would profile {times} times, in this order{where}:"
    more = f"; and {times - MAX_TRIALS} more (--json has all)" if times > MAX_TRIALS else ""
    yield "  " + "; ".join(trials) + more
    if search.chosen is None:
        yield "  and would find no mode that meets the limits."
        return
    worth = search.worth
    if not worth.solved:
        quality = ", which does NOT meet the limits."
    elif search.chosen.batch_size is None:
        quality = f": training steps {percent(worth.loss)} longer than the best choice's."
    elif math.isnan(worth.loss):  # nothing is trained
        quality = f": inference {percent(worth.excess)} longer than the best choice's."
    else:
        quality = f": {percent(worth.loss)} less training than the best choice."
    yield f"  and would choose {chosen}{quality}"


def _options_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Build a table without the columns that are unknown in all rows."""
    kept = [i for i in range(len(headings)) if any(row[i] != UNKNOWN for row in rows)]
    is_text = [i == 0 or headings[i].startswith("mode") for i in range(len(headings))]
    lines = tuple(tuple((text_cell if is_text[i] else number_cell)(row[i]) for i in kept) for row in rows)
    return Table(title.partition(" ")[0].lower(), tuple(headings[i] for i in kept), lines, title)


BAR_GLYPHS = " ▁▂▃▄▅▆▇█"
STRIP_WIDTH = 48
LINE_EVERY_S = 5.0
"""Default interval of plain lines, in seconds: often enough to show progress, rare enough for a log."""


class SideBySideProgress:
    """Show the progress of a turn of ``seconds``; may be called with a new outcome as often as desired."""

    def __init__(
        self, title: str, seconds: float, console: Console, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._seconds, self._console, self._now_s = title, seconds, console, now_s
        self._live: Live | None = None
        self._printed_s = now_s()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, outcome: SideBySideOutcome) -> None:
        """Show the outcome so far."""
        if self._live is not None:
            self._live.update(self._view(outcome), refresh=True)
        elif self._now_s() - self._printed_s >= LINE_EVERY_S:
            self._printed_s = self._now_s()
            text = f"{outcome.approach}  {outcome.seconds:.0f}/{self._seconds:.0f} s  {format_outcome(outcome)}"
            print_lines(self._console, [text])

    def _view(self, outcome: SideBySideOutcome) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table as RichTable
        from rich.text import Text

        head = RichTable.grid(padding=(0, 2))
        clock = Text(f"{outcome.seconds:.0f}/{self._seconds:.0f} s")
        bar = ProgressBar(self._seconds, min(outcome.seconds, self._seconds), width=24)
        head.add_row(Text(outcome.approach, style="bold"), Text(self._title), clock, bar)
        shown: list[RenderableType] = [head, Text(format_outcome(outcome))]
        if outcome.service is not None and outcome.service.histogram.count:
            shown.append(Text(format_histogram(outcome.service.histogram)))
        return Group(*shown)


def format_outcome(outcome: SideBySideOutcome) -> str:
    """Format the results of a turn in one line: requests, latencies in ms, violations, training throughput."""
    training = f"training {outcome.minibatches_hz:.1f} steps/s"
    service = outcome.service
    if service is None:
        return training
    latencies = "/".join(format_milliseconds(outcome.percentile_s(q)) for q in (50, 95, 99))
    dropped = "" if not service.dropped else f"  dropped {service.dropped}"
    return (
        f"requests {service.requests}  p50/p95/p99 {latencies} ms  violations "
        f"{percent(outcome.violation_share, 2)}{dropped}"
        f"  waiting {service.waiting}  {training}"
    )


def format_histogram(histogram: LatencyHistogram) -> str:
    """Draw a latency histogram as one line of bars on a logarithmic scale, with the budget marked."""
    budget = bin_index(histogram.budget_s)
    first, last = min(*histogram.bins, budget), max(*histogram.bins, budget)
    step = max(1, -(-(last - first + 1) // STRIP_WIDTH))
    columns = [0] * ((last - first) // step + 1)
    for place, count in histogram.bins.items():
        columns[(place - first) // step] += count
    # Non-empty bins stay visible, however few requests they hold.
    bars = [BAR_GLYPHS[-(-count * (len(BAR_GLYPHS) - 1) // max(columns))] for count in columns]
    bars.insert((budget - first) // step + 1, "|")
    return (
        f"{format_milliseconds(bin_upper_s(first))} ms {''.join(bars)} {format_milliseconds(bin_upper_s(last))} "
        f"ms  (| budget)"
    )


def build_outcome_table(outcomes: list[SideBySideOutcome], latency_s: float) -> Table:
    """Build a table of all turns, one outcome each; ``latency_s`` is the latency budget."""

    def latency_cell(one: SideBySideOutcome, quantile: float) -> Cell:
        found_s = None if one.service is None else one.percentile_s(quantile)
        return number_cell(format_milliseconds(found_s), None if found_s is None else 1e3 * found_s, "ms")

    def service_cell(one: SideBySideOutcome, figure: str) -> Cell:
        return value_cell(None if one.service is None else getattr(one.service, figure))

    def batch_size(one: SideBySideOutcome) -> float | None:
        return one.service.served / one.service.batches if one.service and one.service.batches else None

    columns: tuple[Column[SideBySideOutcome], ...] = (
        ("approach", lambda one: text_cell(one.approach)),
        ("steps/s", lambda one: value_cell(one.minibatches_hz, ".1f", "1/s")),
        ("requests", lambda one: service_cell(one, "requests")),
        ("p50, ms", lambda one: latency_cell(one, 50)),
        ("p95, ms", lambda one: latency_cell(one, 95)),
        ("p99, ms", lambda one: latency_cell(one, 99)),
        ("late", lambda one: percent_cell(None if one.service is None else one.violation_share, 2)),
        ("dropped", lambda one: service_cell(one, "dropped")),
        ("batch", lambda one: value_cell(batch_size(one), ".1f")),
    )
    serves = any(one.service is not None for one in outcomes)
    title = f"latency budget {format_milliseconds(latency_s)} ms" if serves else ""
    return build_table("turns", columns, outcomes, title)


def format_milliseconds(seconds: float | None) -> str:
    """Format milliseconds with three digits, or a dash if unknown."""
    return UNKNOWN if seconds is None else f"{1e3 * seconds:.3g}" if seconds < 1.0 else f"{1e3 * seconds:.0f}"


FAMILY_TITLES = {"train": "training alone", "infer": "inference alone", "concurrent": "training and inference"}
STRATEGY_FIGURES = (
    ("share, %", "solved_share", 1, ("train", "infer", "concurrent")),
    ("violations, %", "violations", 2, ("train", "infer", "concurrent")),
    ("loss, mean", "loss_mean", 1, ("train", "concurrent")),
    ("loss, median", "loss_median", 1, ("train", "concurrent")),
    ("excess, mean", "excess_mean", 1, ("infer", "concurrent")),
    ("excess, median", "excess_median", 1, ("infer",)),
    ("modes, mean", "modes_mean", 1, ("train", "infer", "concurrent")),
    ("modes, max", "modes_max", 0, ("train", "infer", "concurrent")),
    ("modes, total", "modes_total", 0, ("reuse",)),
    ("s", "seconds", 1, ("train", "infer", "concurrent")),
)
"""Heading, field and decimals of a figure, and the problem families that have it."""


def print_strategies(console: Console, rows: Sequence[StrategyRow]) -> None:
    """Print one table of results per pair and problem family, and what the columns mean."""
    for pair, family in dict.fromkeys((row.pair, row.family) for row in rows):
        _strategies_table([row for row in rows if (row.pair, row.family) == (pair, family)]).print(console)
    note = (
        f"Percent, except counts. Violations: choices that exceed the power by more than {POWER_TOLERANCE_W:g} W or "
        f"the latency by more than {100 * LATENCY_TOLERANCE:g} %, or cannot keep up. Excess: inference time over the "
        f"optimum's. Modes: trials per feasible problem."
    )
    print_lines(console, [note])


def _strategies_table(rows: Sequence[StrategyRow]) -> Table:
    first, problems = rows[0], max(row.problems for row in rows)
    title = f"{first.pair}: {FAMILY_TITLES[first.family]}, {problems} problem{'' if problems == 1 else 's'}"
    if first.modes_left_out is not None:
        title += f", {first.modes_left_out} implausible modes excluded"
    shown = {first.family, "reuse" if any(row.reuse for row in rows) else ""}
    figures = [figure for figure in STRATEGY_FIGURES if shown & {*figure[-1]}]
    seeded = len({row.seed for row in rows}) > 1
    lines = []
    for row in rows:
        failed = row.error is not None
        lines.append((
            text_cell(f"{row.strategy} (failed)" if failed else row.strategy),
            *((value_cell(row.seed),) if seeded else ()),
            number_cell(UNKNOWN if failed else f"{row.solved}/{row.solvable}"),
            *(value_cell(None if failed else getattr(row, field), f".{digits}f") for _, field, digits, _ in figures),
        ))  # fmt: skip
    heads = ("strategy", *(("seed",) if seeded else ()), "solved", *(heading for heading, *_ in figures))
    return Table(f"{first.pair}-{first.family}", heads, tuple(lines), title)
