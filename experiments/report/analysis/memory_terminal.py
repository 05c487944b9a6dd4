"""Terminal views of the memory of a training step: a prediction, and the errors of the methods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from experiments.report.quantities import number, percent
from experiments.report.tables import Cell, Table, number_cell, print_lines, text_cell, value_cell
from fedge.analysis.memory_prediction import CONFIDENT_SDS, MemoryPrediction
from fedge.costs.memory.memory_study import TARGETS, MemoryErrorRow
from fedge.costs.memory.step_need import LARGEST_BATCH

if TYPE_CHECKING:
    from rich.console import Console

WIDE_SD_LOG = 0.3
"""Spreads above this are shown as a factor instead of a percentage."""
TARGET_WORDS = {"memory": "memory", "latency": "time"}


def print_prediction(console: Console, prediction: MemoryPrediction) -> None:
    """Print the requested batch, the limit with its parts, and a table over batch sizes."""
    network, device, step = prediction.network, prediction.device, prediction.step
    sample = "x".join(map(str, network.input_shape))
    console.print(
        f"[bold]{network.name}[/bold] on {device.title}: a training step of {prediction.batch_size} x {sample}",
        highlight=False,
    )
    fits = "fits" if step.memory_mb <= prediction.limit_mb else "DOES NOT FIT"
    largest, sure = _format_batch(prediction.largest_batch), _format_batch(prediction.largest_sure_batch)
    share = percent(prediction.system_share, 0)
    lines = (
        f"Memory   {_format_mb(step.memory_mb)} ({_format_spread(step.memory_sd_log)}), {fits}",
        f"Time     {_format_seconds(step.step_s)} ({_format_spread(step.step_sd_log)})",
        f"Limit    {_format_mb(prediction.limit_mb)}: {device.ram_gb.value:g} GB less {share}, the system's",
        f"Largest  batch {largest}; surely (95 %) {sure}",
        f"From     {step.label}: {step.source}",
    )
    for line in lines:
        console.print(line, highlight=False)
    batch_table(prediction).print(console)
    if network.unknown:
        print_lines(console, [f"NOT COUNTED: {', '.join(network.unknown)}"], "bold red")


def batch_table(prediction: MemoryPrediction) -> Table:
    """Build a table of needs by batch size, with a verdict each."""
    rows = []
    for batch in prediction.listed_batches:
        step = prediction.predict_need(batch)
        rows.append((
            value_cell(batch),
            text_cell(_describe_fit(prediction, batch)),
            value_cell(step.memory_mb, ",.0f", "MB"),
            number_cell(number(step.step_s, 3), step.step_s, "s"),
            number_cell(number(batch / step.step_s, 3), batch / step.step_s),
        ))  # fmt: skip
    return Table("batches", ("batch", "verdict", "memory, MB", "s per step", "samples/s"), tuple(rows))


def _describe_fit(prediction: MemoryPrediction, batch: int) -> str:
    step = prediction.predict_need(batch)
    if step.memory_mb > prediction.limit_mb:
        return "does not fit"
    upper_mb = step.memory_mb * math.exp(CONFIDENT_SDS * step.memory_sd_log)
    return "may not fit" if upper_mb > prediction.limit_mb else "fits"


def build_error_tables(rows: Sequence[MemoryErrorRow]) -> Iterator[Table]:
    """Yield a table per split: one line per network with the methods' errors in memory and time, and their mean."""
    columns = [(method, target) for target in TARGETS for method in dict.fromkeys(row.method for row in rows)]
    heads = ("network", "steps", *(f"{TARGET_WORDS[target]} {method}" for method, target in columns))
    for split in dict.fromkeys(row.split for row in rows):
        title = "Held-out levels" if split == "within" else "Held-out network"
        errors = {(row.network, row.method, row.target): row for row in rows if row.split == split}
        networks = list(dict.fromkeys(network for network, _, _ in errors))
        lines = [_error_cells(network, [errors[network, *column] for column in columns]) for network in networks]
        for name, summary in (("mean", lambda values: sum(values) / len(values)), ("worst", max)):
            values = [summary([errors[network, *column].mape for network in networks]) for column in columns]
            lines.append((text_cell(name), number_cell(""), *(value_cell(one, ".1f", "%") for one in values)))
        yield Table(f"errors-{split}", heads, tuple(lines), f"{title}: error in %")


def _error_cells(network: str, errors: Sequence[MemoryErrorRow]) -> tuple[Cell, ...]:
    steps = "/".join(str(count) for count in dict.fromkeys(row.n for row in errors))
    return text_cell(network), number_cell(steps), *(value_cell(row.mape, ".1f", "%") for row in errors)


def _format_mb(value: float) -> str:
    return f"{value:,.0f} MB"


def _format_seconds(value: float) -> str:
    return number(value, 3, "s") if value >= 1.0 else number(value * 1e3, 3, "ms")


def _format_spread(sd_log: float) -> str:
    """Format one standard deviation: in percent if small, otherwise as a factor."""
    return f"± {percent(sd_log, 0)}" if sd_log <= WIDE_SD_LOG else f"to a factor of {math.exp(sd_log):.1f}"


def _format_batch(size: int) -> str:
    if size == 0:
        return "none"
    return f"above {LARGEST_BATCH:,}" if size >= LARGEST_BATCH else f"{size:,}"
