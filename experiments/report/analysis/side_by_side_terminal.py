"""Terminal view of training and inference side by side; without a terminal, one plain line at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from experiments.report.quantities import UNKNOWN, percent
from experiments.report.tables import Cell, Table, number_cell, percent_cell, print_lines, text_cell, value_cell
from fedge.serving.side_by_side import SideBySideOutcome
from fedge.worker.latency_histogram import LatencyHistogram, bin_index, bin_upper_s

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
