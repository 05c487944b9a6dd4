"""The networks of the known workloads, counted beforehand, so that an emulated board needs no torch to cost them.

``known.yaml`` holds a network's layers as text, one line per layer, with ``COLUMNS`` apart by blanks: shapes as
``1x3x224x224`` (several apart by commas), a convolution as its seven numbers apart by commas, ``-`` for none.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from fedge.layers.network import Convolution, LayerCost, NetworkCost, Shape
from fedge.layers.record import COLUMNS as GEOMETRY
from fedge.layers.record import convolution_as_data

COLUMNS = (
    "name", "kind", "flop", "read_bytes", "written_bytes", "weight_bytes", "parameters", "activations", "inputs",
    "output", "convolution",
)  # fmt: skip
NONE = "-"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where it is: a board reads the file for every message, and Python's own takes thirty times as long."""


@lru_cache(maxsize=1)
def _file() -> dict[str, dict[str, Any]]:
    text = (resources.files("fedge.layers") / "known.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = yaml.load(text, _LOADER)  # noqa: S506 -- a safe loader
    return loaded


def known_workloads() -> tuple[str, ...]:
    """The workloads whose networks are known."""
    return tuple(_file())


@lru_cache(maxsize=32)
def known_network(workload: str) -> NetworkCost | None:
    """The network of a workload, as it is shipped; None for a workload that is not known."""
    entry = _file().get(workload)
    if entry is None:
        return None
    return NetworkCost(workload, tuple(entry["input_shape"]), layers_of(entry["layers"]), entry["source"])


def layers_of(text: str) -> tuple[LayerCost, ...]:
    """The layers of ``lines_of``; raises ``ValueError`` for other text."""
    return tuple(_layer(line) for line in text.splitlines())


def lines_of(network: NetworkCost) -> str:
    """A network's layers as text, one line per layer."""
    return "\n".join(map(_line, network.layers))


def as_text(network: NetworkCost) -> str:
    """A network's entry of ``known.yaml``."""
    rows = "".join(f"    {_line(layer)}\n" for layer in network.layers)
    shape = list(network.input_shape)
    return f"{network.name}:\n  input_shape: {shape}\n  source: {network.source}\n  layers: |\n{rows}"


def _line(layer: LayerCost) -> str:
    numbers = (layer.flop, layer.read_bytes, layer.written_bytes, layer.weight_bytes)
    shapes = ",".join(_shape_text(shape) for shape in layer.inputs) or NONE
    geometry = convolution_as_data(layer.convolution)
    return " ".join([
        "_".join(layer.name.split()) or NONE,
        layer.kind,
        *(f"{number:.17g}" for number in numbers),
        str(layer.parameters),
        str(layer.activations),
        shapes,
        _shape_text(layer.output) or NONE,
        NONE if geometry is None else ",".join(f"{number:.17g}" for number in geometry),
    ])  # fmt: skip


def _layer(line: str) -> LayerCost:
    row = dict(zip(COLUMNS, line.split(), strict=True))
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
        inputs=() if inputs == NONE else tuple(_shape(text) for text in inputs.split(",")),
        output=() if output == NONE else _shape(output),
        convolution=None if geometry == NONE else _convolution(geometry),
    )


def _shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _shape(text: str) -> Shape:
    return tuple(int(side) for side in text.split("x"))


def _convolution(text: str) -> Convolution:
    numbers = (float(number) if "." in number else int(number) for number in text.split(","))
    return Convolution(**dict(zip(GEOMETRY, numbers, strict=True)))  # type: ignore[arg-type] # whole where it must be
