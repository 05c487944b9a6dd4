"""Layers of the known workloads' networks, counted in advance so that emulated boards need no torch.

``known.yaml`` holds a network's layers as text, one line per layer, with the columns ``LAYER_COLUMNS`` separated by
blanks: shapes as ``1x3x224x224`` (several separated by commas), a convolution as its seven numbers separated by commas,
``-`` for none.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from fedge.costs.layers.network_cost import Convolution, LayerCost, NetworkCost, Shape
from fedge.costs.layers.network_record import CONVOLUTION_COLUMNS as GEOMETRY
from fedge.costs.layers.network_record import convolution_to_list

LAYER_COLUMNS = (
    "name", "kind", "flop", "read_bytes", "written_bytes", "weight_bytes", "parameters", "activations", "inputs",
    "output", "convolution",
)  # fmt: skip
ABSENT = "-"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader if available: a board reads the file for every message, and Python's takes thirty times as long."""


@lru_cache(maxsize=1)
def _load_file() -> dict[str, dict[str, Any]]:
    text = (resources.files("fedge.costs.layers") / "known.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = yaml.load(text, _LOADER)  # noqa: S506 -- a safe loader
    return loaded


def list_known_workloads() -> tuple[str, ...]:
    """Return the workloads whose networks are known."""
    return tuple(_load_file())


@lru_cache(maxsize=32)
def find_known_network(workload: str) -> NetworkCost | None:
    """Return the shipped network of a workload, or None if it is not known."""
    entry = _load_file().get(workload)
    if entry is None:
        return None
    return NetworkCost(workload, tuple(entry["input_shape"]), parse_layers(entry["layers"]), entry["source"])


def parse_layers(text: str) -> tuple[LayerCost, ...]:
    """Parse the text of ``format_layers``.

    Raises:
        ValueError: The text is not of this form.
    """
    return tuple(_parse_layer(line) for line in text.splitlines())


def format_layers(network: NetworkCost) -> str:
    """Format a network's layers as text, one line per layer."""
    return "\n".join(map(_format_layer, network.layers))


def format_entry(network: NetworkCost) -> str:
    """Format a network's entry for ``known.yaml``."""
    rows = "".join(f"    {_format_layer(layer)}\n" for layer in network.layers)
    shape = list(network.input_shape)
    return f"{network.name}:\n  input_shape: {shape}\n  source: {network.source}\n  layers: |\n{rows}"


def _format_layer(layer: LayerCost) -> str:
    numbers = (layer.flop, layer.read_bytes, layer.written_bytes, layer.weight_bytes)
    shapes = ",".join(_format_shape(shape) for shape in layer.inputs) or ABSENT
    geometry = convolution_to_list(layer.convolution)
    return " ".join([
        "_".join(layer.name.split()) or ABSENT,
        layer.kind,
        *(f"{number:.17g}" for number in numbers),
        str(layer.parameters),
        str(layer.activations),
        shapes,
        _format_shape(layer.output) or ABSENT,
        ABSENT if geometry is None else ",".join(f"{number:.17g}" for number in geometry),
    ])  # fmt: skip


def _parse_layer(line: str) -> LayerCost:
    row = dict(zip(LAYER_COLUMNS, line.split(), strict=True))
    inputs, output, geometry = row["inputs"], row["output"], row["convolution"]
    return LayerCost(
        name=row["name"],
        kind=row["kind"],
        flop=float(row["flop"]),
        read_bytes=float(row["read_bytes"]),
        written_bytes=float(row["written_bytes"]),
        weight_bytes=float(row["weight_bytes"]),
        parameters=int(row["parameters"]),
        activations=int(row["activations"]),
        inputs=() if inputs == ABSENT else tuple(_parse_shape(text) for text in inputs.split(",")),
        output=() if output == ABSENT else _parse_shape(output),
        convolution=None if geometry == ABSENT else _parse_convolution(geometry),
    )


def _format_shape(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _parse_shape(text: str) -> Shape:
    return tuple(int(side) for side in text.split("x"))


def _parse_convolution(text: str) -> Convolution:
    numbers = (float(number) if "." in number else int(number) for number in text.split(","))
    return Convolution(**dict(zip(GEOMETRY, numbers, strict=True)))  # type: ignore[arg-type] # whole where it must be
