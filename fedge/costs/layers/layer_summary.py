"""Summary of a network's cost for one step: its totals, its kinds of operators, and its costliest layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedge.costs.layers.network_cost import LayerCost, NetworkCost
from fedge.costs.layers.network_source import load_network_cost, parse_input_shape

StepKind = Literal["train", "infer"]


@dataclass(frozen=True, slots=True)
class LayerCostRow:
    """Cost of one layer (with its output shape) or of all layers of a kind, for one step."""

    name: str
    kind: str
    layers: int
    flop: float
    bytes: float
    output: str = ""


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """A network's cost for one step.

    Attributes:
        by_kind: Cost by kind of operator, most bytes first, without free operators.
        costliest: The layers that move most bytes, in this order.
    """

    network: NetworkCost
    batch_size: int
    kind: StepKind
    by_kind: tuple[LayerCostRow, ...]
    costliest: tuple[LayerCostRow, ...]


def count_network(model: str, input_shape: str | None, batch_size: int, kind: StepKind, top: int) -> LayerSummary:
    """Load a network (see ``load_network_cost``) and summarise its cost, with its ``top`` costliest layers.

    Raises:
        BadInput: If the network or the shape is invalid.
    """
    return summarize_layers(load_network_cost(model, parse_input_shape(input_shape)), batch_size, kind, top)


def summarize_layers(network: NetworkCost, batch_size: int, kind: StepKind, top: int) -> LayerSummary:
    """Summarise the cost of one step; see ``count_network``."""
    costliest = list_costliest_layers(network, batch_size, kind, top)
    return LayerSummary(
        network,
        batch_size=batch_size,
        kind=kind,
        by_kind=tuple(cost_by_kind(network, batch_size, kind)),
        costliest=tuple(costliest),
    )


def cost_by_kind(network: NetworkCost, batch_size: int, kind: StepKind) -> list[LayerCostRow]:
    """Return the cost by kind of operator, most bytes first, without free operators."""
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
