"""Terminal views of concurrent training and inference: a plan, a turn in progress, the scores of strategies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from experiments.report.quantities import UNKNOWN, percent
from experiments.report.tables import (
    Cell,
    Table,
    number_cell,
    percent_cell,
    print_facts,
    print_lines,
    text_cell,
    value_cell,
)
from fedge.serving.side_by_side import SideBySideOutcome
from fedge.studies.serving.interleaving_advice import ProfiledTrial, SimulatedChoice, StrategySearch
from fedge.studies.serving.serving_planner import LimitChange, LimitVariation, ServingOption
from fedge.studies.serving.strategy_study import LATENCY_TOLERANCE, POWER_TOLERANCE_W, StrategyRow
from fedge.types import PowerMode
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
    if advice.choice is None:
        print_facts(console, _describe_infeasibility(advice), label_width=LABEL_WIDTH)
    else:
        print_facts(console, _describe_choice(advice, advice.choice), label_width=LABEL_WIDTH)
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
    worth = search.worth
    if not worth.solved:
        return ", which does NOT meet the limits."
    if search.chosen is not None and search.chosen.batch_size is None:
        return f": training steps {percent(worth.loss)} longer than the best choice's."
    if math.isnan(worth.loss):  # nothing is trained
        return f": inference {percent(worth.excess)} longer than the best choice's."
    return f": {percent(worth.loss)} less training than the best choice."


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


OUTCOME_HEADS = ("approach", "steps/s", "requests", "p50, ms", "p95, ms", "p99, ms", "late", "dropped", "batch")


def build_outcome_table(outcomes: list[SideBySideOutcome], latency_s: float) -> Table:
    """Build a table of all turns, one outcome each; ``latency_s`` is the latency budget."""
    serves = any(one.service is not None for one in outcomes)
    title = f"latency budget {format_milliseconds(latency_s)} ms" if serves else ""
    rows = tuple(
        (
            text_cell(one.approach),
            value_cell(one.minibatches_hz, ".1f", "1/s"),
            *_service_cells(one),
        )
        for one in outcomes
    )
    return Table("turns", OUTCOME_HEADS, rows, title)


def _service_cells(outcome: SideBySideOutcome) -> list[Cell]:
    service = outcome.service
    if service is None:
        return [number_cell(UNKNOWN)] * 7
    latencies_s = [outcome.percentile_s(quantile) for quantile in (50, 95, 99)]
    size = service.served / service.batches if service.batches else None
    return [
        value_cell(service.requests),
        *(number_cell(format_milliseconds(one), None if one is None else 1e3 * one, "ms") for one in latencies_s),
        percent_cell(outcome.violation_share, 2),
        value_cell(service.dropped),
        value_cell(size, ".1f"),
    ]


def format_milliseconds(seconds: float | None) -> str:
    """Format milliseconds with three digits, or a dash if unknown."""
    return UNKNOWN if seconds is None else f"{1e3 * seconds:.3g}" if seconds < 1.0 else f"{1e3 * seconds:.0f}"


FAMILY_TITLES = {"train": "training alone", "infer": "inference alone", "concurrent": "training and inference"}


StrategyColumn = tuple[str, Callable[[StrategyRow], float | None], int]
"""Heading of a column of figures, how it is read from a row, and its decimals."""


def print_strategies(console: Console, rows: Sequence[StrategyRow]) -> None:
    """Print one table of results per pair and problem family, and what the columns mean."""
    for table in build_strategy_tables(rows):
        table.print(console)
    note = (
        f"Percent, except counts. Violations: choices that exceed the power by more than {POWER_TOLERANCE_W:g} W or "
        f"the latency by more than {100 * LATENCY_TOLERANCE:g} %, or cannot keep up. Excess: inference time over the "
        f"optimum's. Modes: trials per feasible problem."
    )
    print_lines(console, [note])


def build_strategy_tables(rows: Sequence[StrategyRow]) -> list[Table]:
    """Build one table of results per pair and problem family."""
    cases = dict.fromkeys((row.pair, row.family) for row in rows)
    return [_case_table([row for row in rows if (row.pair, row.family) == case]) for case in cases]


def _case_table(rows: Sequence[StrategyRow]) -> Table:
    first = rows[0]
    problems = max(row.problems for row in rows)
    title = f"{first.pair}: {FAMILY_TITLES[first.family]}, {problems} problem{'' if problems == 1 else 's'}"
    if first.modes_left_out is not None:
        title += f", {first.modes_left_out} implausible modes excluded"
    columns = _select_columns(rows)
    seeded = len({row.seed for row in rows}) > 1
    heads = ("strategy", *(("seed",) if seeded else ()), "solved", *(heading for heading, _, _ in columns))
    lines = tuple(
        (
            text_cell(row.strategy if row.error is None else f"{row.strategy} (failed)"),
            *((value_cell(row.seed),) if seeded else ()),
            number_cell(UNKNOWN if row.error is not None else f"{row.solved}/{row.solvable}"),
            *(value_cell(None if row.error is not None else read(row), f".{digits}f") for _, read, digits in columns),
        )
        for row in rows
    )
    return Table(f"{first.pair}-{first.family}", heads, lines, title)


def _select_columns(rows: Sequence[StrategyRow]) -> list[StrategyColumn]:
    """Return the columns that the family has; the total only with reuse."""
    family = rows[0].family
    found: list[StrategyColumn] = [
        ("share, %", lambda row: row.solved_share, 1),
        ("violations, %", lambda row: row.violations, 2),
    ]
    if family != "infer":
        found.append(("loss, mean", lambda row: row.loss_mean, 1))
        found.append(("loss, median", lambda row: row.loss_median, 1))
    if family != "train":
        found.append(("excess, mean", lambda row: row.excess_mean, 1))
    if family == "infer":
        found.append(("excess, median", lambda row: row.excess_median, 1))
    found.append(("modes, mean", lambda row: row.modes_mean, 1))
    found.append(("modes, max", lambda row: row.modes_max, 0))
    if any(row.reuse for row in rows):
        found.append(("modes, total", lambda row: row.modes_total, 0))
    return [*found, ("s", lambda row: row.seconds, 1)]
