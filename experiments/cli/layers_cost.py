"""``fedge layers``: a network's totals, operator kinds and costliest layers, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from experiments.cli.command_output import check_output
from experiments.report.quantities import number
from fedge.costs.layers.network_cost import TRAINING_PASSES, LayerCost, NetworkCost
from fedge.costs.layers.network_record import RECORD_FORMAT, network_to_dict
from fedge.costs.layers.network_source import load_network_cost, parse_input_shape

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

StepKind = Literal["train", "infer"]


@dataclass(frozen=True, slots=True)
class LayerCostRow:
    """Cost of one or several layers for one step.

    Attributes:
        name: Layer or kind.
        kind: Kind of operator.
        layers: Number of layers.
        flop: Floating-point operations.
        bytes: Bytes moved.
        output: Output shape of a single layer.
    """

    name: str
    kind: str
    layers: int
    flop: float
    bytes: float
    output: str = ""


def print_layers(
    model: str, batch_size: int, input_shape: str | None, kind: StepKind, json_file: Path | None, top: int
) -> None:
    """Count a network's cost and print it.

    Raises:
        BadInput: If the network or an output file is invalid.
    """
    from rich.console import Console

    check_output("--json", json_file, starts=f'{{"format": "{RECORD_FORMAT}"')
    network = load_network_cost(model, parse_input_shape(input_shape))
    if json_file is not None:
        json_file.write_text(json.dumps(network_to_dict(network)) + "\n", encoding="utf-8")
    print_cost(Console(), network=network, batch_size=batch_size, kind=kind, top=top)
    if network.unknown:
        _warn_uncounted(Console(stderr=True), network)


def print_cost(console: Console, network: NetworkCost, batch_size: int, kind: StepKind, top: int) -> None:
    """Print the totals of one step and their breakdown."""
    sample = "x".join(map(str, network.input_shape))
    step = "a training step" if kind == "train" else "inference"
    console.print(f"[bold]{network.name}[/bold], {network.source}: {step} of {batch_size} x {sample}", highlight=False)
    console.print(_totals_table(network, batch_size, kind))
    console.print(_cost_table("By kind", cost_by_kind(network, batch_size, kind)))
    if top:
        rows = list_costliest_layers(network, batch_size, kind, top)
        console.print(_cost_table("The layers that move most", rows, single=True))


def cost_by_kind(network: NetworkCost, batch_size: int, kind: StepKind) -> list[LayerCostRow]:
    """Return the cost by kind of operator, most bytes first, without free operators.

    Args:
        network: The network.
        batch_size: Samples per step.
        kind: Training or inference.
    """
    kinds = dict.fromkeys(layer.kind for layer in network.layers)
    rows = [
        _sum_layers(name, [layer for layer in network.layers if layer.kind == name], batch_size, kind) for name in kinds
    ]
    return sorted((row for row in rows if row.flop or row.bytes), key=lambda row: -row.bytes)


def list_costliest_layers(network: NetworkCost, batch_size: int, kind: StepKind, top: int) -> list[LayerCostRow]:
    """Return the layers that move most bytes, which limit networks on boards more often than arithmetic does."""
    rows = [_sum_layers(layer.name, [layer], batch_size, kind) for layer in network.layers]
    return sorted(rows, key=lambda row: -row.bytes)[:top]


def _sum_layers(name: str, part: list[LayerCost], batch_size: int, kind: StepKind) -> LayerCostRow:
    work = NetworkCost(name, (), tuple(part), "").batch_work(batch_size, kind)
    output = "x".join(map(str, part[0].output)) if len(part) == 1 else ""
    return LayerCostRow(name, kind=part[0].kind, layers=len(part), flop=work.flop, bytes=work.bytes, output=output)


def _totals_table(network: NetworkCost, batch_size: int, kind: StepKind) -> Table:
    work = network.batch_work(batch_size, kind)
    times = f"{TRAINING_PASSES:g} x " if kind == "train" else ""
    batch = f"{batch_size} x " if batch_size > 1 else ""
    weights, moved = format_si(network.weight_bytes, "B"), format_si(network.activation_bytes, "B")
    return _plain_table([
        ("Computes", format_si(work.flop, "FLOP"), f"{times}{batch}{format_si(network.flop, 'FLOP')}"),
        ("Moves", format_si(work.bytes, "B"), f"{times}({weights} of weights + {batch}{moved} of activations)"),
        ("Intensity", number(work.intensity, 3, "FLOP/B") if work.bytes else number(None), ""),
        ("Parameters", f"{network.parameters:,}", ""),
        ("Activations", f"{network.activations:,}", "elements written per sample in a forward pass"),
        ("Convolutions", f"{len(network.convolutions):,}", ""),
    ])  # fmt: skip


def format_si(value: float, unit: str) -> str:
    """Format with a decimal SI prefix: 8.2063 GFLOP."""
    prefix, per = next(((p, per) for p, per in (("T", 1e12), ("G", 1e9), ("M", 1e6)) if value >= per), ("k", 1e3))
    return number(value / per, 5, prefix + unit)


def _plain_table(rows: Iterable[tuple[str, str, str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def _cost_table(title: str, rows: list[LayerCostRow], *, single: bool = False) -> Table:
    from rich.table import Table

    table = Table(
        box=None, padding=(0, 2, 0, 0), title=f"\n{title}", title_justify="left", title_style="bold",
        header_style="dim",
    )  # fmt: skip
    table.add_column("Layer" if single else "Kind", style="cyan", overflow="fold")
    table.add_column("Kind" if single else "Layers", justify="left" if single else "right")
    for column in ("MFLOP", "MB", "FLOP/B"):
        table.add_column(column, justify="right", no_wrap=True)
    if single:
        table.add_column("Output", no_wrap=True)
    for row in rows:
        intensity = number(row.flop / row.bytes, 3) if row.bytes else number(None)
        figures = (number(row.flop / 1e6, 4), number(row.bytes / 1e6, 4), intensity)
        table.add_row(row.name, row.kind if single else str(row.layers), *figures, *([row.output] if single else []))
    return table


def _warn_uncounted(console: Console, network: NetworkCost) -> None:
    several = len(network.unknown) > 1
    whose, they = (
        ("these operators", "they compute and move") if several else ("this operator", "it computes and moves")
    )
    console.print(
        f"NOT COUNTED: {', '.join(network.unknown)}. No rule counts {whose}: what {they} is missing above.",
        style="bold red",
        highlight=False,
        soft_wrap=True,
    )
