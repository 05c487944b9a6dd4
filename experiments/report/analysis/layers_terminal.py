"""Terminal view of a network's cost: totals, kinds of operators, and the costliest layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from experiments.report.quantities import number
from experiments.report.tables import Cell, Table, number_cell, print_lines, text_cell, value_cell
from fedge.costs.layers.network_cost import TRAINING_PASSES, NetworkCost
from fedge.costs.layers.network_source import LayerCostRow, LayerSummary

if TYPE_CHECKING:
    from rich.console import Console


def print_layer_summary(console: Console, summary: LayerSummary) -> None:
    """Print the totals of one step and their breakdown."""
    network = summary.network
    sample = "x".join(map(str, network.input_shape))
    step = "a training step" if summary.kind == "train" else "inference"
    console.print(
        f"[bold]{network.name}[/bold], {network.source}: {step} of {summary.batch_size} x {sample}", highlight=False
    )
    print_lines(console, _describe_totals(summary))
    kinds_table(summary.by_kind).print(console)
    if summary.costliest:
        costliest_table(summary.costliest).print(console)


def _describe_totals(summary: LayerSummary) -> Iterator[str]:
    """Yield a line per total: what, how much, and what it is made of."""
    network, batch_size, kind = summary.network, summary.batch_size, summary.kind
    work = network.batch_work(batch_size, kind)
    frozen = network.parameters - network.trained_parameters
    times = f"{TRAINING_PASSES:g} x " if kind == "train" and not frozen else ""
    batch = f"{batch_size} x " if batch_size > 1 else ""
    weights, moved = format_si(network.weight_bytes, "B"), format_si(network.activation_bytes, "B")
    totals = (
        ("Computes", format_si(work.flop, "FLOP"), f"{times}{batch}{format_si(network.flop, 'FLOP')}"),
        ("Moves", format_si(work.bytes, "B"), f"{times}({weights} of weights + {batch}{moved} of activations)"),
        ("Intensity", number(work.intensity, 3, "FLOP/B") if work.bytes else number(None), ""),
        ("Parameters", f"{network.parameters:,}", f"{network.trained_parameters:,} of them trained" if frozen else ""),
        ("Activations", f"{network.activations:,}", "elements written per sample in a forward pass"),
        ("Convolutions", f"{len(network.convolutions):,}", ""),
    )
    width = max(len(total) for _, total, _ in totals)
    for what, total, parts in totals:
        yield f"{what:<12}  {total:>{width}}  {parts}".rstrip()


def format_si(value: float, unit: str) -> str:
    """Format with a decimal SI prefix: 8.2063 GFLOP."""
    prefix, per = next(((p, per) for p, per in (("T", 1e12), ("G", 1e9), ("M", 1e6)) if value >= per), ("k", 1e3))
    return number(value / per, 5, prefix + unit)


def kinds_table(rows: Sequence[LayerCostRow]) -> Table:
    """Build a table of the cost of each kind of operator."""
    lines = tuple((text_cell(row.name), value_cell(row.layers), *_cost_cells(row)) for row in rows)
    return Table("kinds", ("kind", "layers", "MFLOP", "MB", "FLOP/B"), lines, "By kind")


def costliest_table(rows: Sequence[LayerCostRow]) -> Table:
    """Build a table of single layers."""
    lines = tuple((text_cell(row.name), text_cell(row.kind), *_cost_cells(row), text_cell(row.output)) for row in rows)
    return Table("layers", ("layer", "kind", "MFLOP", "MB", "FLOP/B", "output"), lines, "The layers that move most")


def _cost_cells(row: LayerCostRow) -> tuple[Cell, ...]:
    intensity = row.flop / row.bytes if row.bytes else None
    return (
        number_cell(number(row.flop / 1e6, 4), row.flop / 1e6, "MFLOP"),
        number_cell(number(row.bytes / 1e6, 4), row.bytes / 1e6, "MB"),
        number_cell(number(intensity, 3), intensity, "FLOP/B"),
    )


def print_uncounted(console: Console, network: NetworkCost) -> None:
    """Name the operators that no rule counts."""
    several = len(network.unknown) > 1
    whose, they = (
        ("these operators", "they compute and move") if several else ("this operator", "it computes and moves")
    )
    line = f"NOT COUNTED: {', '.join(network.unknown)}. No rule counts {whose}: what {they} is missing above."
    print_lines(console, [line], "bold red")
